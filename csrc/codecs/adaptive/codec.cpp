// A few pairs of vectors and, for what they leave, a quantizer with one step whose levels are coded
// by the sizes of those around them.
//
// docs/wire-format.md#adaptive is the norm.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/payload.hpp"
#include "codecs/adaptive/lattice_groups.hpp"
#include "codecs/adaptive/learned_basis.hpp"
#include "codecs/adaptive/search.hpp"
#include "codecs/codecs.hpp"
#include "coding/bits.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kLevelSlot = RateControl::kSymbolSlot;
constexpr std::size_t kDecodedSlot = kLevelSlot + 1;

// The one byte of a payload without any other.
constexpr std::uint8_t kAllZero = 0;
constexpr std::uint8_t kAllNan = 1;

constexpr unsigned kMaxLanesLog2 = 5;
// In place of a rank: the matrix is turned, and its rank is in the fields behind the tables.
constexpr unsigned kTurnedForm = kMaxAdaptiveRank + 1;
constexpr float kPointUnit = 0x1p-5f;  // of the steps between a level and what it stands for

// Decoded at once, if a row is not longer.
constexpr std::size_t kPiece = 4096;
// With pairs a piece has eight rows if that is no more than this, as products then use what they
// load of a vector more than once.
constexpr std::size_t kLongPiece = 8 * 3072;

// What the levels stand for.
struct Points {
  float step = 0;
  int first = 0;  // magnitude 1 stands for 1 + first / 32 steps
  int other = 0;  // and m > 1 for m + other / 32

  float value(std::int32_t level) const {
    if (level == 0) return 0;
    const auto magnitude = static_cast<float>(std::abs(level));
    const auto off = static_cast<float>(magnitude == 1 ? first : other);
    const float size =
        std::min((magnitude + off * kPointUnit) * step, std::numeric_limits<float>::max());
    return level < 0 ? -size : size;
  }
};

// Of a large tensor, about so many elements tell what its levels stand for: runs, evenly spaced,
// and an odd number of runs apart, so that they are not of the same columns of each row.
constexpr std::size_t kLookedAt = std::size_t{1} << 18;
constexpr std::size_t kLookedRun = 4096;

// The means of what the levels stand for.
Points find_points(const float* x, const std::uint8_t* symbols, std::size_t n, float step) {
  double sums[2] = {};
  std::uint64_t counts[2] = {};
  const double inverse = 1 / static_cast<double>(step);
  const auto look = [&](std::size_t i) {
    const unsigned magnitude = (symbols[i] % kClassSymbols + 1u) / 2;
    if (magnitude == 0 || magnitude == kTopMagnitude) return;
    const unsigned which = magnitude == 1 ? 0 : 1;
    sums[which] += std::fabs(static_cast<double>(x[i])) * inverse - magnitude;
    ++counts[which];
  };
  const std::size_t every = (n / kLookedAt | 1) * kLookedRun;
  for (std::size_t begin = 0; begin < n; begin += every) {
    const std::size_t end = std::min(begin + kLookedRun, n);
    std::size_t i = begin;
    for (; i + 8 <= end; i += 8) {
      // The upper bit of each byte whose symbol is not 0.
      const std::uint64_t levels = load<std::uint64_t>(symbols + i) & 0x0F0F0F0F0F0F0F0Fu;
      std::uint64_t left = (levels + 0x7F7F7F7F7F7F7F7Fu) & 0x8080808080808080u;
      for (; left != 0; left &= left - 1) {
        look(i + static_cast<std::size_t>(__builtin_ctzll(left)) / 8);
      }
    }
    for (; i < end; ++i) look(i);
  }
  const auto mean = [&](int which) {
    if (counts[which] == 0) return 0;
    const double off = sums[which] / static_cast<double>(counts[which]) * 32;
    return static_cast<int>(std::min(std::max(std::floor(off + 0.5), -8.0), 7.0));
  };
  return {step, mean(0), mean(1)};
}

// A payload taken apart, from numel and the bytes.
struct Decoded {
  Shape2 shape;
  Points points;
  GroupForm groups;
  std::size_t rank = 0;
  SharedBasis basis;  // from which the matrix is seen, if any
  std::vector<float> p;
  std::vector<float> v;
  const std::int8_t* levels = nullptr;  // nullptr: all elements are `points.step`, 0 or NaN
  std::vector<LevelMatrix> bands;

  // The elements [begin, end): whole rows where there is a rank.
  void fill(std::size_t begin, std::size_t end, float* y) const {
    if (levels == nullptr) {
      std::fill(y, y + (end - begin), points.step);
      return;
    }
    // Levels take 4 bits, with points 8.
    float table[256];
    const unsigned bits = groups.start == GroupForm::kNoPoints ? 4 : 8;
    const unsigned mask = (1u << bits) - 1;
    if (bits == 8) groups.fill_values(points.step, table);
    for (int level = -8; level < 8; ++level) table[level & mask] = points.value(level);
    std::uint8_t symbols[kPiece];
    for (std::size_t at = begin; at < end; at += kPiece) {
      const std::size_t count = std::min(kPiece, end - at);
      for (std::size_t i = 0; i < count; ++i) {
        symbols[i] = static_cast<std::uint8_t>(levels[at + i] & mask);
      }
      kernels().look_up(symbols, table, bits, y + (at - begin), count);
    }
    patch(begin, end, y);
    if (rank == 0) return;
    const std::size_t row = begin / shape.cols;
    kernels().linalg->outer(p.data() + row, shape.rows, v.data(), shape.cols, rank,
                            (end - begin) / shape.cols, shape.cols, {nullptr, y, nullptr},
                            shape.cols);
  }

  // All elements.
  void fill(float* y) const {
    for_parts([&](std::size_t begin, std::size_t end) { fill(begin, end, y + begin); });
    if (basis.rank != 0) turn_back(basis, y);
  }

  // Calls fn(begin, end) for parts of all elements, on all threads.
  template <typename Fn>
  void for_parts(const Fn& fn) const {
    const std::size_t unit = rank == 0 ? 1 : shape.cols;
    const std::size_t eight = std::min<std::size_t>(8, kLongPiece / unit);
    const std::size_t piece = std::max<std::size_t>({1, kPiece / unit, eight}) * unit;
    for_ranges(shape.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      // A piece belongs to the range it begins in.
      std::size_t at = (begin + piece - 1) / piece * piece;
      for (; at < end; at += piece) fn(at, std::min(at + piece, shape.size()));
    });
  }

 private:
  void patch(std::size_t begin, std::size_t end, float* y) const {
    const std::size_t each = shape.band_rows() * shape.cols;
    for (std::size_t b = begin / each; b * each < end && b < bands.size(); ++b) {
      const std::vector<Escape>& escapes = bands[b].escapes;
      const std::size_t first = begin > b * each ? begin - b * each : 0;
      auto escape = std::lower_bound(
          escapes.begin(), escapes.end(), first,
          [](const Escape& one, std::size_t position) { return one.at < position; });
      for (; escape != escapes.end() && b * each + escape->at < end; ++escape) {
        const std::size_t at = b * each + escape->at;
        y[at - begin] = levels[at] >= kPointCodes ? groups.value(points.step, escape->level)
                                                  : points.value(escape->level);
      }
    }
  }
};

// What share() has found, with the memory that it is in. The thread's next bucket gets the same, as
// new memory costs more than the arithmetic.
struct Plans final : public BucketWork {
  std::vector<Plan> of;
  std::unique_ptr<Scratch> memory;

  Plans() : memory(std::move(spare())) {
    if (memory == nullptr) memory = std::make_unique<Scratch>();
  }
  ~Plans() override { spare() = std::move(memory); }

 private:
  static std::unique_ptr<Scratch>& spare() {
    thread_local std::unique_ptr<Scratch> kept;
    return kept;
  }
};

class Adaptive final : public Codec {
 public:
  explicit Adaptive(const Recipe& recipe)
      : points_(recipe.params.has("coder") && recipe.params.choice("coder") == "polar"),
        shares_basis_(recipe.params.has("preset") && recipe.params.choice("preset") == "basis"),
        control_(recipe.params.real("rate"), rank_of(recipe.params.choice("rank")), points_) {}

  Caps caps() const noexcept override {
    Caps caps;
    caps.shares = true;
    caps.learns = shares_basis_;
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept override {
    return n < kMinAdaptive ? 4 * n : 3 * n + kMinAdaptive;
  }

  Status share(Span<const BucketTensor> tensors, const Call&, Span<std::uint64_t> shares,
               std::unique_ptr<BucketWork>* work) const override {
    auto plans = std::make_unique<Plans>();
    GRADCOMP_TRY(control_.find(tensors, *plans->memory, &plans->of));
    for (std::size_t i = 0; i < shares.size(); ++i) shares[i] = i;
    *work = std::move(plans);
    return {};
  }

  std::size_t carried() const noexcept override { return Carried::kNumbers; }

  std::size_t basis_size(std::size_t n, std::size_t cols) const noexcept override {
    if (!shares_basis_ || n < kMinAdaptive) return 0;
    const Shape2 shape = Shape2::of(n, cols);
    return shared_basis_size(shape.rows, shape.cols);
  }

  Status learn(Span<const float> average, const Call& call, Span<float> basis) const override {
    const std::size_t size = basis_size(average.size(), call.cols);
    if (size == 0 || basis.size() != size) {
      return argument_error("a basis of " + std::to_string(basis.size()) + " numbers; '" +
                            "adaptive' keeps " + std::to_string(size) + " of this tensor");
    }
    const Shape2 shape = Shape2::of(average.size(), call.cols);
    return learn_basis(average.data(), shape.rows, shape.cols, *call.scratch, basis);
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    const std::size_t n = x.size();
    const std::size_t room = max_encoded_size(n);
    GRADCOMP_TRY(check_room(out, room));
    if (n < kMinAdaptive) {
      for (std::size_t i = 0; i < n; ++i) store(out.data() + 4 * i, x[i]);
      *written = 4 * n;
      return {};
    }
    std::vector<Plan> alone;
    Plan* plan = nullptr;
    if (call.work == nullptr) {
      const BucketTensor tensor{x, call.cols, {}, call.basis};
      GRADCOMP_TRY(control_.find({&tensor, 1}, *call.scratch, &alone));
      plan = alone.data();
    } else {
      plan = &static_cast<Plans*>(call.work)->of[call.share];
    }
    for (;; plan->step *= 2) {
      GRADCOMP_TRY(encode_step(plan, {out.data(), room}, written));
      if (*written != 0) return {};
      // It did not fit.
      plan->quantized = Quantized(x.data(), plan->quantized.shape());
      plan->counted = {};
    }
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    if (y.size() < kMinAdaptive) {
      GRADCOMP_TRY(check_payload_size(in, 4 * y.size(), y.size()));
      for (std::size_t i = 0; i < y.size(); ++i) y[i] = load<float>(in.data() + 4 * i);
      return {};
    }
    Decoded decoded;
    GRADCOMP_TRY(open(in, call, y.size(), &decoded));
    decoded.fill(y.data());
    return {};
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override {
    if (acc.size() < kMinAdaptive) {
      GRADCOMP_TRY(check_payload_size(in, 4 * acc.size(), acc.size()));
      kernels().f32_add(in.data(), weight, acc.data(), acc.size());
      return {};
    }
    Decoded decoded;
    GRADCOMP_TRY(open(in, call, acc.size(), &decoded));
    if (decoded.basis.rank != 0) {
      const Span<float> room = call.scratch->get<float>(kDecodedSlot, acc.size());
      if (room.empty()) return capacity_error("out of memory while decoding");
      decoded.fill(room.data());
      kernels().f32_add(reinterpret_cast<const std::uint8_t*>(room.data()), weight, acc.data(),
                        acc.size());
      return {};
    }
    decoded.for_parts([&](std::size_t begin, std::size_t end) {
      float piece[kPiece];
      std::unique_ptr<float[]> long_row;
      float* values = piece;
      if (end - begin > kPiece) {
        long_row.reset(new float[end - begin]);
        values = long_row.get();
      }
      decoded.fill(begin, end, values);
      kernels().f32_add(reinterpret_cast<const std::uint8_t*>(values), weight, acc.data() + begin,
                        end - begin);
    });
    return {};
  }

 private:
  static int rank_of(const std::string& choice) {
    return choice == "auto" ? RateControl::kAuto : std::stoi(choice);
  }

  // Sets *written to 0 where the payload does not fit `out`.
  Status encode_step(Plan* plan, Span<std::uint8_t> out, std::size_t* written) const {
    const Quantized& quantized = plan->quantized;
    const float step = plan->step;
    const Shape2& shape = quantized.shape();
    const LowRank& low_rank = quantized.low_rank();
    std::uint8_t* const begin = out.data();
    begin[0] = step == 0 ? kAllZero : kAllNan;
    *written = 1;
    if (!(step > 0)) return {};
    std::uint8_t* const symbols = plan->symbols;
    if (plan->counted.step != step) plan->counted = quantized.quantize(step, symbols);
    AdaptiveTables tables;
    std::unique_ptr<GroupCoder> groups;  // where there are points
    double expected = 0;
    if (points_) {
      groups = std::make_unique<GroupCoder>(quantized, plan->counted, symbols, plan->groups);
      expected = groups->bytes();
      tables = groups->tables();
    } else {
      expected = quantized.finish(plan->counted, &tables);
    }
    if (expected == 1) {
      begin[0] = kAllZero;
      return {};
    }
    *written = 0;
    if (expected > static_cast<double>(out.size())) return {};
    const std::size_t lanes = quantized.lanes(expected);
    const bool any_points = points_ && groups->form().start != GroupForm::kNoPoints;
    if (any_points) {
      groups->put_levels(symbols);
      plan->counted.step = 0;
    }
    const Points points = find_points(quantized.rest(), symbols, shape.size(), step);
    const std::size_t form = quantized.turned() ? kTurnedForm : low_rank.rank;
    begin[0] = static_cast<std::uint8_t>(log2_of(lanes) | form << 3);
    begin[1] = static_cast<std::uint8_t>((points.first + 8) | (points.other + 8) << 4);
    store(begin + 2, static_cast<std::uint32_t>(shape.cols));
    store(begin + 6, step);
    std::uint8_t* to = begin + kAdaptiveHead;
    to += tables.write(to);
    if (points_) to += groups->form().write(to);
    if (quantized.turned()) {
      *to = static_cast<std::uint8_t>(low_rank.rank);
      store(to + 1, plan->basis);
      to += kTurnedHead;
    }
    if (low_rank.rank != 0) to = write_factors(low_rank, to);
    const std::size_t bands = shape.bands();
    std::uint8_t* const sizes = to;
    to += 4 * (bands - 1);
    const RansEncodeTable table = tables.encode_table();
    std::vector<std::uint8_t> factor_symbols;
    std::vector<SymbolMatrix> matrices = quantized.factor_symbols(&factor_symbols);
    for (std::size_t b = 0; b < bands; ++b) {
      const std::size_t first = b * shape.band_rows();
      const std::size_t rows = std::min(shape.band_rows(), shape.rows - first);
      const std::size_t at = first * shape.cols;
      const auto left = static_cast<std::size_t>(out.end() - to);
      std::size_t size = 0;
      if (any_points) {
        size = groups->encode_band(b, {matrices.data(), matrices.size()}, lanes, to, left);
      } else {
        matrices.push_back({quantized.rest() + at, symbols + at, rows, shape.cols});
        std::vector<DeadZone> zones(matrices.size() - 1, whole_numbers());
        zones.push_back(dead_zone(step));
        size =
            encode_stream({matrices.data(), matrices.size()}, zones.data(), table, lanes, to, left);
      }
      if (size == 0) return {};
      if (b + 1 < bands) store(sizes + 4 * b, static_cast<std::uint32_t>(size));
      to += size;
      matrices.clear();
    }
    *written = static_cast<std::size_t>(to - begin);
    return {};
  }

  static unsigned log2_of(std::size_t lanes) {
    return static_cast<unsigned>(__builtin_ctzll(lanes));
  }

  static std::uint8_t* write_factors(const LowRank& low_rank, std::uint8_t* to) {
    store(to, static_cast<std::uint16_t>(float_bits(low_rank.p.step[0]) >> 16));
    to += 2;
    for (std::size_t k = 0; k < low_rank.rank; ++k) {
      store(to, static_cast<std::uint16_t>(float_bits(low_rank.v.step[k]) >> 16));
      to[2] = static_cast<std::uint8_t>(low_rank.v.shift[k] | low_rank.p.shift[k] << 4);
      to += 3;
    }
    BitWriter writer(to);
    for (const Factor* factor : {&low_rank.v, &low_rank.p}) {
      for (std::size_t k = 0; k < factor->rank; ++k) {
        if (factor->shift[k] == 0) continue;
        for (std::size_t i = 0; i < factor->size; ++i) {
          writer.put(factor->low[k * factor->size + i], factor->shift[k]);
        }
      }
    }
    return to + writer.finish();
  }

  Status open(Span<const std::uint8_t> in, const Call& call, std::size_t n,
              Decoded* decoded) const {
    if (in.size() == 1 && in[0] <= kAllNan) {
      decoded->shape = {1, n};
      if (in[0] == kAllNan) decoded->points.step = std::numeric_limits<float>::quiet_NaN();
      return {};
    }
    if (in.size() < kAdaptiveHead) {
      return wire_error("the payload has " + std::to_string(in.size()) + " bytes; its head has " +
                        std::to_string(kAdaptiveHead));
    }
    const float step = load<float>(in.data() + 6);
    decoded->points.step = step;
    if (!std::isfinite(step) || step <= 0) {
      return wire_error("the step is " + std::to_string(step) + "; it must be finite and above 0");
    }
    const unsigned lanes_log2 = in[0] & 7u;
    const bool turned = shares_basis_ && in[0] >> 3 == kTurnedForm;
    decoded->rank = turned ? 0 : in[0] >> 3;
    const std::size_t cols = load<std::uint32_t>(in.data() + 2);
    if (cols == 0 || cols > n || n % cols != 0) {
      return wire_error("rows of " + std::to_string(cols) + " elements do not make up " +
                        std::to_string(n));
    }
    decoded->shape = {n / cols, cols};
    if (lanes_log2 > kMaxLanesLog2) {
      return wire_error("2^" + std::to_string(lanes_log2) + " states; there are at most 2^" +
                        std::to_string(kMaxLanesLog2));
    }
    decoded->points.first = static_cast<int>(in[1] & 15u) - 8;
    decoded->points.other = static_cast<int>(in[1] >> 4) - 8;
    Span<const std::uint8_t> rest{in.data() + kAdaptiveHead, in.size() - kAdaptiveHead};
    const auto skip = [&](std::size_t bytes) { rest = {rest.data() + bytes, rest.size() - bytes}; };
    AdaptiveTables shapes;
    const std::size_t table_bytes = shapes.read(rest);
    if (table_bytes == 0) return wire_error("the payload ends before its tables");
    skip(table_bytes);
    if (points_) {
      const std::size_t form_bytes = decoded->groups.read(rest);
      if (form_bytes == 0) {
        return wire_error("the fields of groups are cut short, or their start is above " +
                          std::to_string(GroupForm::kNoPoints));
      }
      skip(form_bytes);
    }
    Factor p, v;
    if (turned) {
      GRADCOMP_TRY(read_basis(rest, call.basis, decoded));
      skip(kTurnedHead);
    }
    if (decoded->rank > std::min({kMaxAdaptiveRank, decoded->shape.rows, cols})) {
      return wire_error("a rank of " + std::to_string(decoded->rank) +
                        "; of this matrix it is at most " +
                        std::to_string(std::min({kMaxAdaptiveRank, decoded->shape.rows, cols})));
    }
    if (decoded->rank != 0) {
      std::size_t bytes = 0;
      GRADCOMP_TRY(read_factors(rest, *decoded, &p, &v, &bytes));
      skip(bytes);
    }
    return read_streams(rest, call, shapes, std::size_t{1} << lanes_log2, p, v, decoded);
  }

  // The rank of a turned matrix, and the basis, if it is the one that is meant.
  static Status read_basis(Span<const std::uint8_t> in, Span<const float> kept, Decoded* decoded) {
    const SharedBasis basis = SharedBasis::of(kept, decoded->shape.rows, decoded->shape.cols);
    if (basis.rank == 0) {
      return wire_error(
          "the payload needs the basis that ranks keep of this tensor's averages (preset=basis), "
          "and here is none: only a rank that has taken part in the steps before can decode it");
    }
    if (in.size() < kTurnedHead) return wire_error("the payload ends before its rank and basis");
    const auto check = load<std::uint32_t>(in.data() + 1);
    if (check != basis.check) {
      return wire_error("the payload was made with another basis, whose CRC-32C is " +
                        std::to_string(check) + ", and here it is " + std::to_string(basis.check) +
                        ": the ranks' states differ; load the same checkpoint on all of them");
    }
    decoded->rank = in[0];
    decoded->basis = basis;
    return {};
  }

  static Status read_factors(Span<const std::uint8_t> in, const Decoded& decoded, Factor* p,
                             Factor* v, std::size_t* bytes) {
    const std::size_t fields = factor_fields(decoded.rank);
    if (in.size() < fields) return wire_error("the payload ends before its factors");
    const auto step_at = [&](std::size_t at) {
      return bits_float(std::uint32_t{load<std::uint16_t>(in.data() + at)} << 16);
    };
    p->rank = decoded.rank;
    v->rank = decoded.rank;
    p->size = decoded.shape.rows;
    v->size = decoded.shape.cols;
    bool finite = true;
    for (std::size_t k = 0; k < decoded.rank; ++k) {
      p->step[k] = step_at(0);
      v->step[k] = step_at(2 + 3 * k);
      finite = finite && std::isfinite(p->step[k]) && std::isfinite(v->step[k]);
      const std::uint8_t shifts = in[4 + 3 * k];
      v->shift[k] = shifts & 15u;
      p->shift[k] = shifts >> 4;
    }
    if (!finite) return wire_error("a factor's step is not finite");
    const std::size_t low_bytes = (p->low_bits() + v->low_bits() + 7) / 8;
    // Both factors have low bits of each number in one stream.
    if (in.size() - fields < low_bytes) {
      return wire_error("the payload ends before its factors");
    }
    BitReader reader({in.data() + fields, low_bytes});
    for (Factor* factor : {v, p}) {
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

  static std::vector<float> factor_values(const Factor& factor, const LevelMatrix& high) {
    std::vector<std::int32_t> levels(high.levels, high.levels + high.size());
    for (const Escape& escape : high.escapes) levels[escape.at] = escape.level;
    std::vector<float> values(levels.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t k = i / factor.size;
      values[i] = factor_value(levels[i], factor.low[i], factor.shift[k], factor.step[k]);
    }
    return values;
  }

  static Status read_streams(Span<const std::uint8_t> in, const Call& call,
                             const AdaptiveTables& shapes, std::size_t lanes, const Factor& p,
                             const Factor& v, Decoded* decoded) {
    const Shape2& shape = decoded->shape;
    const std::size_t bands = shape.bands();
    const std::size_t sizes = 4 * (bands - 1);
    if (in.size() < sizes) return wire_error("the payload ends before its bands");
    std::vector<Span<const std::uint8_t>> streams;
    std::size_t at = sizes;
    for (std::size_t b = 0; b < bands; ++b) {
      const std::size_t left = in.size() - at;
      const std::size_t size = b + 1 < bands ? load<std::uint32_t>(in.data() + 4 * b) : left;
      if (size > left) {
        return wire_error("a band of " + std::to_string(size) + " bytes, and " +
                          std::to_string(left) + " are left");
      }
      streams.push_back({in.data() + at, size});
      at += size;
    }
    const Span<std::int8_t> levels = call.scratch->get<std::int8_t>(kLevelSlot, shape.size());
    if (levels.empty()) return capacity_error("out of memory while decoding");
    std::vector<std::int8_t> high(p.rank * shape.rows + v.rank * shape.cols);
    std::vector<LevelMatrix> factors;
    if (p.rank != 0) {
      factors.push_back({high.data(), v.rank, shape.cols});
      factors.push_back({high.data() + v.rank * shape.cols, p.rank, shape.rows});
    }
    for (std::size_t b = 0; b < bands; ++b) {
      const std::size_t first = b * shape.band_rows();
      decoded->bands.push_back({levels.data() + first * shape.cols,
                                std::min(shape.band_rows(), shape.rows - first), shape.cols});
    }
    ClassTables tables;
    shapes.fill(&tables);
    std::vector<std::uint8_t> failed(bands, 0);
    const GroupForm& groups = decoded->groups;
    for_tasks(bands, [&](std::size_t b) {
      std::vector<LevelMatrix> matrices;
      if (b == 0) matrices = factors;
      matrices.push_back(decoded->bands[b]);
      const Span<LevelMatrix> all{matrices.data(), matrices.size()};
      failed[b] = !(groups.start == GroupForm::kNoPoints
                        ? decode_stream(streams[b], tables, lanes, all)
                        : decode_groups(streams[b], tables, groups, lanes, all));
      decoded->bands[b] = std::move(matrices.back());
      matrices.pop_back();
      if (b == 0) factors = std::move(matrices);
    });
    for (std::size_t b = 0; b < bands; ++b) {
      if (failed[b] != 0) return wire_error("band " + std::to_string(b) + " is damaged");
    }
    decoded->levels = levels.data();
    if (p.rank != 0) {
      decoded->v = factor_values(v, factors.front());
      decoded->p = factor_values(p, factors.back());
    }
    return {};
  }

  bool points_;
  bool shares_basis_;
  RateControl control_;
};

}  // namespace

StageInfo adaptive_stage() {
  StageInfo stage;
  stage.name = "adaptive";
  stage.id = 29;
  stage.summary =
      "a low rank part and, for what it leaves, an entropy-coded quantizer whose tables follow the "
      "sizes of rows and columns; one step for all tensors of a bucket, at a given rate";
  stage.paper =
      "none; its parts: Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS 2019; Sullivan: Efficient "
      "Scalar Quantization of Exponential and Laplacian Random Variables, IEEE Trans. Inf. Theory "
      "1996; Wu, Memon: Context-Based, Adaptive, Lossless Image Coding, IEEE Trans. Commun. 1997";
  stage.nonfinite =
      "a NaN or Inf makes the whole tensor NaN; tensors of fewer than 64 elements keep it";
  stage.example = "adaptive(rate=0.25)";
  stage.params = {
      real_param("rate", "0.25", 0.02, 4,
                 "bits per element of a bucket on the wire, within 3 %, all included, where frames "
                 "alone do not take more than half of it"),
      choice_param("rank", "auto", "auto|0|1|2|4|8|16",
                   "pairs of vectors; auto: what costs least, for each tensor"),
      // Without a default, so that specs without it, and their hashes in frames, are what they were
      // before there was a choice.
      choice_param("coder", nullptr, "ecsq|polar",
                   "of what pairs leave; polar: points of a lattice, half chosen by polar codes, "
                   "where that costs less; without: ecsq"),
      choice_param(
          "preset", nullptr, "default|basis",
          "basis: all ranks keep directions of past averages, and see gradients from them; "
          "without state (Codec.encode, BytePS, gossip) and without: default"),
  };
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Adaptive>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
