#include "codecs/adaptive/encoder.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/bytes.hpp"
#include "codecs/adaptive/band_stream.hpp"
#include "codecs/adaptive/group_coder.hpp"
#include "codecs/adaptive/payload.hpp"
#include "codecs/adaptive/symbol_stream.hpp"

namespace gradcomp {
namespace {

// Of a large tensor, runs of kRun elements with kSample elements in all tell the reconstruction
// points. An odd number of runs lies between two of them, so that they do not all come from the
// same columns.
constexpr std::size_t kSample = std::size_t{1} << 14;
constexpr std::size_t kRun = 1024;

// The means of the elements by level, as LevelValues has them.
LevelValues find_level_values(const float* x, const std::uint8_t* symbols, std::size_t n,
                              float step) {
  double sums[2] = {};
  std::uint64_t counts[2] = {};
  const double inverse = 1 / static_cast<double>(step);
  const auto add = [&](std::size_t i) {
    const unsigned magnitude = (symbols[i] % kClassSymbols + 1u) / 2;
    if (magnitude == 0 || magnitude == kTopMagnitude) return;
    const unsigned which = magnitude == 1 ? 0 : 1;
    sums[which] += std::fabs(static_cast<double>(x[i])) * inverse - magnitude;
    ++counts[which];
  };
  const std::size_t every = (n / kSample | 1) * kRun;
  for (std::size_t begin = 0; begin < n; begin += every) {
    const std::size_t end = std::min(begin + kRun, n);
    std::size_t i = begin;
    for (; i + 8 <= end; i += 8) {
      // The upper bit of each byte whose symbol is not 0.
      const std::uint64_t levels = load<std::uint64_t>(symbols + i) & 0x0F0F0F0F0F0F0F0Fu;
      std::uint64_t left = (levels + 0x7F7F7F7F7F7F7F7Fu) & 0x8080808080808080u;
      for (; left != 0; left &= left - 1) {
        add(i + static_cast<std::size_t>(__builtin_ctzll(left)) / 8);
      }
    }
    for (; i < end; ++i) add(i);
  }
  const auto mean = [&](int which) {
    if (counts[which] == 0) return 0;
    const double off = sums[which] / static_cast<double>(counts[which]) * 32;
    return static_cast<int>(std::min(std::max(std::floor(off + 0.5), -8.0), 7.0));
  };
  return {step, mean(0), mean(1)};
}

// Writes the sizes of all streams but the last, and the streams: one for each band, the first one
// with the factors' high numbers before it. `groups`: nullptr where all elements are levels.
// Returns the end, or nullptr where they do not fit.
std::uint8_t* write_streams(const TensorPlan& plan, const FrequencyTables& tables,
                            const FlagTable& flags, const GroupCoder* groups, std::size_t lanes,
                            std::uint8_t* to, const std::uint8_t* end) {
  const Quantized& quantized = plan.quantized;
  const MatrixShape& shape = quantized.shape();
  const std::size_t bands = shape.bands();
  std::uint8_t* const sizes = to;
  to += 4 * (bands - 1);
  const RansEncodeTable table = tables.encode_table();
  const RansEncodeTable flag_table = flags.encode_table();
  std::vector<std::uint8_t> factor_symbols;
  std::vector<SymbolMatrix> matrices = quantized.factor_symbols(&factor_symbols);
  for (std::size_t b = 0; b < bands; ++b) {
    const std::size_t at = shape.band_begin(b) * shape.cols;
    const auto left = static_cast<std::size_t>(end - to);
    std::size_t size = 0;
    if (groups != nullptr) {
      size = groups->encode_band(b, {matrices.data(), matrices.size()}, lanes, to, left);
    } else {
      matrices.push_back(
          {quantized.rest() + at, plan.symbols + at, shape.rows_of_band(b), shape.cols});
      std::vector<DeadZone> zones(matrices.size() - 1, whole_numbers());
      zones.push_back(dead_zone(plan.step));
      const BandGroups* const band =
          plan.counted.zero_groups ? &plan.zero_groups.bands[b] : nullptr;
      size = encode_stream({matrices.data(), matrices.size()}, zones.data(), table, band,
                           flag_table, lanes, to, left);
    }
    if (size == 0) return nullptr;
    if (b + 1 < bands) store(sizes + 4 * b, static_cast<std::uint32_t>(size));
    to += size;
    matrices.clear();
  }
  return to;
}

}  // namespace

void write_payload(TensorPlan* plan, bool points, Span<std::uint8_t> out, std::size_t* written) {
  const Quantized& quantized = plan->quantized;
  const MatrixShape& shape = quantized.shape();
  const LowRank& low_rank = quantized.low_rank();
  const float step = plan->step;
  std::uint8_t* const begin = out.data();
  *written = 1;
  plan->values = {step, 0, 0};
  if (!(step > 0)) {
    begin[0] = step == 0 ? kAllZero : kAllNan;
    return;
  }
  plan->quantize(step);
  FrequencyTables tables;
  FlagTable flags;
  std::unique_ptr<GroupCoder> groups;
  double expected = 0;  // bytes
  if (points) {
    groups = std::make_unique<GroupCoder>(quantized, plan->counted, plan->symbols, plan->groups);
    expected = groups->bytes();
    tables = groups->tables();
  } else {
    expected = quantized.finish(plan->counted, &tables, &flags);
  }
  if (expected == 1) {
    begin[0] = kAllZero;
    plan->values.step = 0;
    return;
  }
  *written = 0;
  if (expected > static_cast<double>(out.size())) return;
  const bool any_points = points && groups->form().start != GroupForm::kNoPoints;
  if (any_points) {
    groups->put_levels(plan->symbols);
    plan->counted.step = 0;
  }
  const std::size_t lanes = quantized.lanes(expected);
  plan->values = find_level_values(quantized.rest(), plan->symbols, shape.size(), step);
  const bool zero_groups = plan->counted.zero_groups;
  PayloadHead{lanes, low_rank.rank, quantized.turned(), zero_groups, shape.cols, plan->values}
      .write(begin);
  std::uint8_t* to = begin + kHeadBytes;
  to += tables.write(to);
  if (points) to += groups->form().write(to);
  if (zero_groups) to += ZeroGroupFields{lanes, flags}.write(to);
  if (quantized.turned()) {
    TurnedFields{low_rank.rank, plan->basis}.write(to);
    to += kTurnedBytes;
  }
  if (low_rank.rank != 0) to = write_factors(low_rank, to);
  const std::uint8_t* const end = write_streams(
      *plan, tables, flags, any_points ? groups.get() : nullptr, lanes, to, out.end());
  if (end != nullptr) *written = static_cast<std::size_t>(end - begin);
}

Reconstruction reconstruct(const TensorPlan& plan, const LearnedBasis& basis) {
  const Quantized& quantized = plan.quantized;
  Reconstruction result;
  result.shape = quantized.shape();
  if (!(plan.values.step > 0)) {
    result.constant = plan.values.step;
    return result;
  }
  result.codes = plan.symbols;
  for (int magnitude = 1; magnitude <= static_cast<int>(kTopMagnitude); ++magnitude) {
    result.table[2 * magnitude - 1] = plan.values.value(magnitude);
    result.table[2 * magnitude] = plan.values.value(-magnitude);
  }
  std::vector<Escape> escapes;
  find_escapes({quantized.rest(), plan.symbols, result.shape.rows, result.shape.cols},
               dead_zone(plan.step), &escapes);
  for (const Escape& escape : escapes) {
    result.exceptions.push_back({escape.at, plan.values.value(escape.level)});
  }
  const LowRank& low_rank = quantized.low_rank();
  result.rank = low_rank.rank;
  result.p = low_rank.p.values.data();
  result.v = low_rank.v.values.data();
  if (quantized.turned()) result.basis = basis;
  return result;
}

}  // namespace gradcomp
