#include "codecs/adaptive/decoder.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codecs/adaptive/frequency_tables.hpp"
#include "codecs/adaptive/group_decoder.hpp"
#include "codecs/adaptive/group_form.hpp"
#include "codecs/adaptive/learned_basis.hpp"
#include "codecs/adaptive/payload.hpp"
#include "codecs/adaptive/scratch_slots.hpp"
#include "codecs/adaptive/symbol_stream.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Elements that are decoded at once, where a row is not longer.
constexpr std::size_t kPiece = 4096;
// With a low-rank part a piece has eight rows if that is no more than this: outer products then use
// each value of V that they load more than once.
constexpr std::size_t kLongPiece = 8 * 3072;

// A payload whose streams are decoded to levels and factors, from which fill() makes elements.
class DecodedPayload {
 public:
  Status open(Span<const std::uint8_t> in, const DecodeOptions& options, Scratch& scratch,
              std::size_t n);

  // Whether elements depend on all others, so that fill() must make all of them at once.
  bool turned() const { return basis_.rank != 0; }
  // Makes all elements.
  void fill(float* y) const {
    for_parts([&](std::size_t begin, std::size_t end) { fill(begin, end, y + begin); });
    if (turned()) turn_back(basis_, y);
  }
  // Makes the elements [begin, end) of a matrix that is not turned: whole rows where there is a
  // low-rank part.
  void fill(std::size_t begin, std::size_t end, float* y) const;

  // Calls fn(begin, end) for pieces that make up all elements, on all threads.
  template <typename Fn>
  void for_parts(const Fn& fn) const {
    const std::size_t unit = rank_ == 0 ? 1 : shape_.cols;
    const std::size_t eight = std::min<std::size_t>(8, kLongPiece / unit);
    const std::size_t piece = std::max<std::size_t>({1, kPiece / unit, eight}) * unit;
    for_ranges(shape_.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      // A piece belongs to the range that it begins in.
      std::size_t at = (begin + piece - 1) / piece * piece;
      for (; at < end; at += piece) fn(at, std::min(at + piece, shape_.size()));
    });
  }

 private:
  Status read_basis(Span<const std::uint8_t> in, Span<const float> learned);
  Status read_streams(Span<const std::uint8_t> in, const FrequencyTables& shapes, std::size_t lanes,
                      const LowRank& low_rank, Scratch& scratch);
  // Replaces the elements of [begin, end) whose magnitude or index is above kTopMagnitude.
  void patch(std::size_t begin, std::size_t end, float* y) const;

  MatrixShape shape_;
  LevelValues values_;
  GroupForm groups_;
  std::size_t rank_ = 0;
  LearnedBasis basis_;  // of a turned matrix
  std::vector<float> p_;
  std::vector<float> v_;
  // nullptr: all elements are `values_.step`, which is 0 or NaN.
  const std::int8_t* levels_ = nullptr;
  std::vector<LevelMatrix> bands_;
};

void DecodedPayload::fill(std::size_t begin, std::size_t end, float* y) const {
  if (levels_ == nullptr) {
    std::fill(y, y + (end - begin), values_.step);
    return;
  }
  // Levels need 4 bits, and 8 together with the codes of points.
  float table[256];
  const unsigned bits = groups_.start == GroupForm::kNoPoints ? 4 : 8;
  const unsigned mask = (1u << bits) - 1;
  if (bits == 8) groups_.fill_values(values_.step, table);
  for (int level = -8; level < 8; ++level) table[level & mask] = values_.value(level);
  std::uint8_t symbols[kPiece];
  for (std::size_t at = begin; at < end; at += kPiece) {
    const std::size_t count = std::min(kPiece, end - at);
    for (std::size_t i = 0; i < count; ++i) {
      symbols[i] = static_cast<std::uint8_t>(levels_[at + i] & mask);
    }
    kernels().look_up(symbols, table, bits, y + (at - begin), count);
  }
  patch(begin, end, y);
  if (rank_ == 0) return;
  const std::size_t row = begin / shape_.cols;
  kernels().linalg->outer(p_.data() + row, shape_.rows, v_.data(), shape_.cols, rank_,
                          (end - begin) / shape_.cols, shape_.cols, {nullptr, y, nullptr},
                          shape_.cols);
}

void DecodedPayload::patch(std::size_t begin, std::size_t end, float* y) const {
  const std::size_t each = shape_.band_rows() * shape_.cols;
  for (std::size_t b = begin / each; b * each < end && b < bands_.size(); ++b) {
    const std::vector<Escape>& escapes = bands_[b].escapes;
    const std::size_t first = begin > b * each ? begin - b * each : 0;
    auto escape =
        std::lower_bound(escapes.begin(), escapes.end(), first,
                         [](const Escape& one, std::size_t position) { return one.at < position; });
    for (; escape != escapes.end() && b * each + escape->at < end; ++escape) {
      const std::size_t at = b * each + escape->at;
      y[at - begin] = levels_[at] >= kPointCodes ? groups_.value(values_.step, escape->level)
                                                 : values_.value(escape->level);
    }
  }
}

Status DecodedPayload::open(Span<const std::uint8_t> in, const DecodeOptions& options,
                            Scratch& scratch, std::size_t n) {
  if (in.size() == 1 && in[0] <= kAllNan) {
    shape_ = {1, n};
    if (in[0] == kAllNan) values_.step = std::numeric_limits<float>::quiet_NaN();
    return {};
  }
  PayloadHead head;
  GRADCOMP_TRY(PayloadHead::read(in, n, options.basis, &head));
  shape_ = {n / head.cols, head.cols};
  values_ = head.values;
  rank_ = head.rank;
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
  if (head.turned) {
    GRADCOMP_TRY(read_basis(in, options.learned));
    skip(kTurnedBytes);
  }
  LowRank low_rank;
  std::size_t factor_bytes = 0;
  GRADCOMP_TRY(read_factors(in, shape_, rank_, &low_rank, &factor_bytes));
  skip(factor_bytes);
  return read_streams(in, shapes, head.lanes, low_rank, scratch);
}

// The rank of a turned matrix and, if it is the one that the payload was made with, the basis.
Status DecodedPayload::read_basis(Span<const std::uint8_t> in, Span<const float> learned) {
  const LearnedBasis basis = LearnedBasis::of(learned, shape_.rows, shape_.cols);
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
  rank_ = fields.rank;
  basis_ = basis;
  return {};
}

std::vector<float> factor_values(const Factor& factor, const LevelMatrix& high) {
  std::vector<std::int32_t> levels(high.levels, high.levels + high.size());
  for (const Escape& escape : high.escapes) levels[escape.at] = escape.level;
  std::vector<float> values(levels.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t k = i / factor.size;
    values[i] = factor_value(levels[i], factor.low[i], factor.shift[k], factor.step[k]);
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

Status DecodedPayload::read_streams(Span<const std::uint8_t> in, const FrequencyTables& shapes,
                                    std::size_t lanes, const LowRank& low_rank, Scratch& scratch) {
  const std::size_t bands = shape_.bands();
  std::vector<Span<const std::uint8_t>> streams;
  GRADCOMP_TRY(cut_streams(in, bands, &streams));
  const Span<std::int8_t> levels = scratch.get<std::int8_t>(kLevelSlot, shape_.size());
  if (levels.empty()) return capacity_error("out of memory while decoding");
  std::vector<std::int8_t> high(rank_ * (shape_.rows + shape_.cols));
  std::vector<LevelMatrix> factors;
  if (rank_ != 0) {
    factors.push_back({high.data(), rank_, shape_.cols});
    factors.push_back({high.data() + rank_ * shape_.cols, rank_, shape_.rows});
  }
  for (std::size_t b = 0; b < bands; ++b) {
    bands_.push_back(
        {levels.data() + shape_.band_begin(b) * shape_.cols, shape_.rows_of_band(b), shape_.cols});
  }
  ClassTables tables;
  shapes.fill(&tables);
  std::vector<std::uint8_t> failed(bands, 0);
  shape_.for_bands([&](std::size_t b) {
    std::vector<LevelMatrix> matrices;
    if (b == 0) matrices = factors;
    matrices.push_back(bands_[b]);
    const Span<LevelMatrix> all{matrices.data(), matrices.size()};
    const bool valid = groups_.start == GroupForm::kNoPoints
                           ? decode_stream(streams[b], tables, lanes, all)
                           : decode_groups(streams[b], tables, groups_, lanes, all);
    failed[b] = valid ? 0 : 1;
    bands_[b] = std::move(matrices.back());
    matrices.pop_back();
    if (b == 0) factors = std::move(matrices);
  });
  for (std::size_t b = 0; b < bands; ++b) {
    if (failed[b] != 0) return wire_error("band " + std::to_string(b) + " is damaged");
  }
  levels_ = levels.data();
  if (rank_ != 0) {
    v_ = factor_values(low_rank.v, factors.front());
    p_ = factor_values(low_rank.p, factors.back());
  }
  return {};
}

}  // namespace

Status decode_payload(Span<const std::uint8_t> in, const DecodeOptions& options, Scratch& scratch,
                      Span<float> y) {
  DecodedPayload decoded;
  GRADCOMP_TRY(decoded.open(in, options, scratch, y.size()));
  decoded.fill(y.data());
  return {};
}

Status decode_payload_add(Span<const std::uint8_t> in, const DecodeOptions& options,
                          Scratch& scratch, float weight, Span<float> acc) {
  DecodedPayload decoded;
  GRADCOMP_TRY(decoded.open(in, options, scratch, acc.size()));
  const auto add = [&](const float* values, std::size_t begin, std::size_t end) {
    kernels().f32_add(reinterpret_cast<const std::uint8_t*>(values), weight, acc.data() + begin,
                      end - begin);
  };
  if (decoded.turned()) {
    const Span<float> y = scratch.get<float>(kDecodedSlot, acc.size());
    if (y.empty()) return capacity_error("out of memory while decoding");
    decoded.fill(y.data());
    add(y.data(), 0, y.size());
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
    add(values, begin, end);
  });
  return {};
}

}  // namespace gradcomp
