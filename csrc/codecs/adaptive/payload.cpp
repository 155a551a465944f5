#include "codecs/adaptive/payload.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/bytes.hpp"
#include "coding/bits.hpp"

namespace gradcomp {
namespace {

constexpr unsigned kMaxLanesLog2 = 5;
// Takes the place of the lanes in the head of a payload with zero groups.
constexpr unsigned kZeroGroups = kMaxLanesLog2 + 1;
// Takes the place of the rank in the head of a turned matrix.
constexpr unsigned kTurnedForm = kMaxAdaptiveRank + 1;
constexpr float kValueUnit = 0x1p-5f;  // of LevelValues::first and other, in steps

// A factor's step travels as the upper half of a float32.
void write_step(float step, std::uint8_t* out) {
  store(out, static_cast<std::uint16_t>(float_bits(step) >> 16));
}
float read_step(const std::uint8_t* in) {
  return bits_float(std::uint32_t{load<std::uint16_t>(in)} << 16);
}

unsigned lanes_log2(std::size_t lanes) { return static_cast<unsigned>(__builtin_ctzll(lanes)); }

Status lanes_error(unsigned log2) {
  return wire_error("2^" + std::to_string(log2) + " states; there are at most 2^" +
                    std::to_string(kMaxLanesLog2));
}

}  // namespace

float LevelValues::value(std::int32_t level) const {
  if (level == 0) return 0;
  const auto magnitude = static_cast<float>(std::abs(level));
  const auto off = static_cast<float>(magnitude == 1 ? first : other);
  const float size =
      std::min((magnitude + off * kValueUnit) * step, std::numeric_limits<float>::max());
  return level < 0 ? -size : size;
}

void PayloadHead::write(std::uint8_t* out) const {
  const std::size_t form = turned ? kTurnedForm : rank;
  out[0] = static_cast<std::uint8_t>((zero_groups ? kZeroGroups : lanes_log2(lanes)) | form << 3);
  out[1] = static_cast<std::uint8_t>((values.first + 8) | (values.other + 8) << 4);
  store(out + 2, static_cast<std::uint32_t>(cols));
  store(out + 6, values.step);
}

Status PayloadHead::read(Span<const std::uint8_t> in, std::size_t n, bool basis, bool points,
                         PayloadHead* head) {
  if (in.size() < kHeadBytes) {
    return wire_error("the payload has " + std::to_string(in.size()) + " bytes; its head has " +
                      std::to_string(kHeadBytes));
  }
  const float step = load<float>(in.data() + 6);
  if (!std::isfinite(step) || step <= 0) {
    return wire_error("the step is " + std::to_string(step) + "; it must be finite and above 0");
  }
  const std::size_t cols = load<std::uint32_t>(in.data() + 2);
  if (cols == 0 || cols > n || n % cols != 0) {
    return wire_error("rows of " + std::to_string(cols) + " elements do not make up " +
                      std::to_string(n));
  }
  const unsigned log2 = in[0] & 7u;
  head->zero_groups = log2 == kZeroGroups && !points;
  if (log2 > kMaxLanesLog2 && !head->zero_groups) return lanes_error(log2);
  const unsigned form = in[0] >> 3;
  head->lanes = head->zero_groups ? 0 : std::size_t{1} << log2;
  head->turned = basis && form == kTurnedForm;
  head->rank = head->turned ? 0 : form;
  head->cols = cols;
  head->values = {step, static_cast<int>(in[1] & 15u) - 8, static_cast<int>(in[1] >> 4) - 8};
  return {};
}

std::size_t ZeroGroupFields::write(std::uint8_t* out) const {
  out[0] = static_cast<std::uint8_t>(lanes_log2(lanes));
  return 1 + flags.write(out + 1);
}

Status ZeroGroupFields::read(Span<const std::uint8_t> in, std::size_t* bytes) {
  const std::size_t table = in.empty() ? 0 : flags.read({in.data() + 1, in.size() - 1});
  if (table == 0) {
    return wire_error("the fields of zero groups are cut short, or a level is above " +
                      std::to_string(kZeroLevels - 1));
  }
  if (in[0] > kMaxLanesLog2) return lanes_error(in[0]);
  lanes = std::size_t{1} << in[0];
  *bytes = 1 + table;
  return {};
}

void TurnedFields::write(std::uint8_t* out) const {
  out[0] = static_cast<std::uint8_t>(rank);
  store(out + 1, basis);
}

Status TurnedFields::read(Span<const std::uint8_t> in, TurnedFields* fields) {
  if (in.size() < kTurnedBytes) return wire_error("the payload ends before its rank and basis");
  *fields = {in[0], load<std::uint32_t>(in.data() + 1)};
  return {};
}

std::uint8_t* write_factors(const LowRank& low_rank, std::uint8_t* out) {
  write_step(low_rank.p.step[0], out);
  out += 2;
  for (std::size_t k = 0; k < low_rank.rank; ++k) {
    write_step(low_rank.v.step[k], out);
    out[2] = static_cast<std::uint8_t>(low_rank.v.shift[k] | low_rank.p.shift[k] << 4);
    out += 3;
  }
  BitWriter writer(out);
  for (const Factor* factor : {&low_rank.v, &low_rank.p}) {
    for (std::size_t k = 0; k < factor->rank; ++k) {
      if (factor->shift[k] == 0) continue;
      for (std::size_t i = 0; i < factor->size; ++i) {
        writer.put(factor->low[k * factor->size + i], factor->shift[k]);
      }
    }
  }
  return out + writer.finish();
}

Status read_factors(Span<const std::uint8_t> in, const MatrixShape& shape, std::size_t rank,
                    LowRank* low_rank, std::size_t* bytes) {
  const std::size_t most = std::min({kMaxAdaptiveRank, shape.rows, shape.cols});
  if (rank > most) {
    return wire_error("a rank of " + std::to_string(rank) + "; of this matrix it is at most " +
                      std::to_string(most));
  }
  *bytes = 0;
  if (rank == 0) return {};
  const std::size_t fields = factor_fields(rank);
  if (in.size() < fields) return wire_error("the payload ends before its factors");
  Factor& p = low_rank->p;
  Factor& v = low_rank->v;
  low_rank->rank = p.rank = v.rank = rank;
  p.size = shape.rows;
  v.size = shape.cols;
  bool finite = true;
  for (std::size_t k = 0; k < rank; ++k) {
    p.step[k] = read_step(in.data());
    v.step[k] = read_step(in.data() + 2 + 3 * k);
    finite = finite && std::isfinite(p.step[k]) && std::isfinite(v.step[k]);
    const std::uint8_t shifts = in[4 + 3 * k];
    v.shift[k] = shifts & 15u;
    p.shift[k] = shifts >> 4;
  }
  if (!finite) return wire_error("a factor's step is not finite");
  // The low bits of both factors are one stream.
  const std::size_t low_bytes = (low_rank->low_bits() + 7) / 8;
  if (in.size() - fields < low_bytes) return wire_error("the payload ends before its factors");
  BitReader reader({in.data() + fields, low_bytes});
  for (Factor* factor : {&v, &p}) {
    factor->low.assign(factor->rank * factor->size, 0);
    for (std::size_t k = 0; k < factor->rank; ++k) {
      if (factor->shift[k] == 0) continue;
      for (std::size_t i = 0; i < factor->size; ++i) {
        factor->low[k * factor->size + i] =
            static_cast<std::uint16_t>(reader.get(factor->shift[k]));
      }
    }
  }
  if (!reader.finished()) return wire_error("the padding of the factors is not zero");
  *bytes = fields + low_bytes;
  return {};
}

}  // namespace gradcomp
