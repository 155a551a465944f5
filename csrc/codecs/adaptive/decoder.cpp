#include "codecs/adaptive/decoder.hpp"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "codecs/adaptive/band_stream.hpp"
#include "codecs/adaptive/frequency_tables.hpp"
#include "codecs/adaptive/group_decoder.hpp"
#include "codecs/adaptive/group_form.hpp"
#include "codecs/adaptive/learned_basis.hpp"
#include "codecs/adaptive/payload.hpp"
#include "codecs/adaptive/reconstruction.hpp"
#include "codecs/adaptive/scratch_slots.hpp"
#include "codecs/adaptive/symbol_stream.hpp"

namespace gradcomp {
namespace {

// A payload, opened for Reconstruction to make its elements.
class OpenedPayload {
 public:
  Status open(Span<const std::uint8_t> in, const DecodeOptions& options, Scratch& scratch,
              std::size_t n);

  const Reconstruction& elements() const { return elements_; }

 private:
  Status read_basis(Span<const std::uint8_t> in, Span<const float> learned);
  Status read_streams(Span<const std::uint8_t> in, const FrequencyTables& shapes,
                      const FlagTable* flags, const PayloadHead& head, const LowRank& low_rank,
                      Scratch& scratch);
  // Sets the value of each code, and those of elements whose magnitude or index is above
  // kTopMagnitude.
  void set_values(const LevelValues& values, Span<const LevelMatrix> bands);

  Reconstruction elements_;
  GroupForm groups_;
  std::vector<float> p_;
  std::vector<float> v_;
};

Status OpenedPayload::open(Span<const std::uint8_t> in, const DecodeOptions& options,
                           Scratch& scratch, std::size_t n) {
  if (in.size() == 1 && in[0] <= kAllNan) {
    elements_.shape = {1, n};
    if (in[0] == kAllNan) elements_.constant = std::numeric_limits<float>::quiet_NaN();
    return {};
  }
  PayloadHead head;
  GRADCOMP_TRY(PayloadHead::read(in, n, options.basis, options.points, &head));
  elements_.shape = {n / head.cols, head.cols};
  elements_.rank = head.rank;
  const auto skip = [&](std::size_t bytes) { in = {in.data() + bytes, in.size() - bytes}; };
  skip(kHeadBytes);
  FrequencyTables shapes;
  const std::size_t table_bytes = shapes.read(in);
  if (table_bytes == 0) return wire_error("the payload ends before its tables");
  skip(table_bytes);
  if (options.points) {
    const std::size_t form_bytes = groups_.read(in);
    if (form_bytes == 0) {
      return wire_error("the fields of groups are cut short, or their start is above " +
                        std::to_string(GroupForm::kNoPoints));
    }
    skip(form_bytes);
  }
  ZeroGroupFields zero_groups;
  if (head.zero_groups) {
    std::size_t bytes = 0;
    GRADCOMP_TRY(zero_groups.read(in, &bytes));
    skip(bytes);
    head.lanes = zero_groups.lanes;
  }
  if (head.turned) {
    GRADCOMP_TRY(read_basis(in, options.learned));
    skip(kTurnedBytes);
  }
  LowRank low_rank;
  std::size_t factor_bytes = 0;
  GRADCOMP_TRY(read_factors(in, elements_.shape, elements_.rank, &low_rank, &factor_bytes));
  skip(factor_bytes);
  const FlagTable* const flags = head.zero_groups ? &zero_groups.flags : nullptr;
  return read_streams(in, shapes, flags, head, low_rank, scratch);
}

// The rank of a turned matrix and, if it is the one that the payload was made with, the basis.
Status OpenedPayload::read_basis(Span<const std::uint8_t> in, Span<const float> learned) {
  const MatrixShape& shape = elements_.shape;
  const LearnedBasis basis = LearnedBasis::of(learned, shape.rows, shape.cols);
  if (basis.rank == 0) {
    return wire_error(
        "the payload needs the basis that ranks keep of this tensor's averages (preset=basis), "
        "and here is none: only a rank that has taken part in the steps before can decode it");
  }
  TurnedFields fields;
  GRADCOMP_TRY(TurnedFields::read(in, &fields));
  if (fields.basis != basis.check) {
    return wire_error("the payload was made with another basis, whose CRC-32C is " +
                      std::to_string(fields.basis) + ", and here it is " +
                      std::to_string(basis.check) +
                      ": the ranks' states differ; load the same checkpoint on all of them");
  }
  elements_.rank = fields.rank;
  elements_.basis = basis;
  return {};
}

std::vector<float> factor_values(const Factor& factor, const LevelMatrix& high) {
  std::vector<std::int32_t> levels(high.levels, high.levels + high.size());
  for (const Escape& escape : high.escapes) levels[escape.at] = escape.level;
  std::vector<float> values(levels.size());
  for (std::size_t k = 0; k < factor.rank; ++k) {
    const std::size_t begin = k * factor.size;
    for (std::size_t i = begin; i < begin + factor.size; ++i) {
      values[i] = factor_value(levels[i], factor.low[i], factor.shift[k], factor.step[k]);
    }
  }
  return values;
}

// Finds the stream of each band.
Status cut_streams(Span<const std::uint8_t> in, std::size_t bands,
                   std::vector<Span<const std::uint8_t>>* streams) {
  const std::size_t sizes = 4 * (bands - 1);
  if (in.size() < sizes) return wire_error("the payload ends before its bands");
  std::size_t at = sizes;
  for (std::size_t b = 0; b < bands; ++b) {
    const std::size_t left = in.size() - at;
    const std::size_t size = b + 1 < bands ? load<std::uint32_t>(in.data() + 4 * b) : left;
    if (size > left) {
      return wire_error("a band of " + std::to_string(size) + " bytes, and " +
                        std::to_string(left) + " are left");
    }
    streams->push_back({in.data() + at, size});
    at += size;
  }
  return {};
}

Status OpenedPayload::read_streams(Span<const std::uint8_t> in, const FrequencyTables& shapes,
                                   const FlagTable* flags, const PayloadHead& head,
                                   const LowRank& low_rank, Scratch& scratch) {
  const MatrixShape& shape = elements_.shape;
  const std::size_t rank = elements_.rank;
  const std::size_t count = shape.bands();
  std::vector<Span<const std::uint8_t>> streams;
  GRADCOMP_TRY(cut_streams(in, count, &streams));
  const Span<std::int8_t> levels = scratch.get<std::int8_t>(kLevelSlot, shape.size());
  if (levels.empty()) return capacity_error("out of memory while decoding");
  std::vector<std::int8_t> high(rank * (shape.rows + shape.cols));
  std::vector<LevelMatrix> factors;
  if (rank != 0) {
    factors.push_back({high.data(), rank, shape.cols});
    factors.push_back({high.data() + rank * shape.cols, rank, shape.rows});
  }
  std::vector<LevelMatrix> bands;
  for (std::size_t b = 0; b < count; ++b) {
    bands.push_back(
        {levels.data() + shape.band_begin(b) * shape.cols, shape.rows_of_band(b), shape.cols});
  }
  ClassTables tables;
  shapes.fill(&tables);
  std::vector<std::uint8_t> failed(count, 0);
  shape.for_bands([&](std::size_t b) {
    std::vector<LevelMatrix> matrices;
    if (b == 0) matrices = factors;
    matrices.push_back(bands[b]);
    const Span<LevelMatrix> all{matrices.data(), matrices.size()};
    const bool valid = groups_.start == GroupForm::kNoPoints
                           ? decode_stream(streams[b], tables, flags, head.lanes, all)
                           : decode_groups(streams[b], tables, groups_, head.lanes, all);
    failed[b] = valid ? 0 : 1;
    bands[b] = std::move(matrices.back());
    matrices.pop_back();
    if (b == 0) factors = std::move(matrices);
  });
  for (std::size_t b = 0; b < count; ++b) {
    if (failed[b] != 0) return wire_error("band " + std::to_string(b) + " is damaged");
  }
  elements_.codes = reinterpret_cast<const std::uint8_t*>(levels.data());
  set_values(head.values, {bands.data(), bands.size()});
  if (rank != 0) {
    v_ = factor_values(low_rank.v, factors.front());
    p_ = factor_values(low_rank.p, factors.back());
    elements_.v = v_.data();
    elements_.p = p_.data();
  }
  return {};
}

void OpenedPayload::set_values(const LevelValues& values, Span<const LevelMatrix> bands) {
  // Levels need 4 bits, and 8 together with the codes of points.
  elements_.bits = groups_.start == GroupForm::kNoPoints ? 4 : 8;
  if (elements_.bits == 8) groups_.fill_values(values.step, elements_.table);
  const unsigned mask = (1u << elements_.bits) - 1;
  for (int level = -8; level < 8; ++level) {
    elements_.table[static_cast<unsigned>(level) & mask] = values.value(level);
  }
  std::size_t begin = 0;
  for (const LevelMatrix& band : bands) {
    for (const Escape& escape : band.escapes) {
      const float value = band.levels[escape.at] >= kPointCodes
                              ? groups_.value(values.step, escape.level)
                              : values.value(escape.level);
      elements_.exceptions.push_back({begin + escape.at, value});
    }
    begin += band.size();
  }
}

}  // namespace

Status decode_payload(Span<const std::uint8_t> in, const DecodeOptions& options, Scratch& scratch,
                      Span<float> y) {
  OpenedPayload payload;
  GRADCOMP_TRY(payload.open(in, options, scratch, y.size()));
  payload.elements().fill(y.data());
  return {};
}

Status decode_payload_add(Span<const std::uint8_t> in, const DecodeOptions& options,
                          Scratch& scratch, float weight, Span<float> acc) {
  OpenedPayload payload;
  GRADCOMP_TRY(payload.open(in, options, scratch, acc.size()));
  return payload.elements().add(weight, {}, scratch, acc);
}

}  // namespace gradcomp
