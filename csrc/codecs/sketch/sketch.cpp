// Count sketch: a table much smaller than the tensor. Elements are added to its cells with random
// signs; the estimate of an element is a median over the table's rows. Payload: the table, float32,
// row by row; or the elements themselves if the table is not smaller.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "base/rng.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Elements of a run go to consecutive cells from one random cell on. Two elements share a cell with
// the same probability as with independent random cells, and memory is read in order.
constexpr std::size_t kRun = 32;
constexpr std::size_t kPiece = 1024;  // elements per piece: their estimates fit the L1 cache
constexpr std::size_t kPieceRuns = kPiece / kRun;
constexpr std::size_t kMaxRows = 15;
// An estimate is significant, not noise, if in every row it reaches this multiple of the root mean
// square of the cells.
constexpr double kHeavy = 3;
constexpr double kFloatMax = std::numeric_limits<float>::max();
// Upper bound, approximate, for the variance of the median of some rows relative to the variance of
// their mean.
constexpr double kMedianVariance = 1.5;

// Hashes of the runs of a piece: the first cell in a row, and the signs of the elements, one bit
// each.
struct Hashes {
  std::uint32_t start[kPieceRuns];
  std::uint32_t signs[kPieceRuns];
};

template <typename Cell>
void hash(std::uint64_t stream, std::size_t row, std::size_t begin, const Cell* cells,
          std::size_t cols, Hashes* hashes) {
  alignas(64) std::uint32_t words[2 * kPieceRuns];
  const std::uint64_t first = (std::uint64_t{row} << 28) + 2 * (begin / kRun);
  kernels().random_words(stream, first, words, 2 * kPieceRuns);
  for (std::size_t run = 0; run < kPieceRuns; ++run) {
    hashes->start[run] = static_cast<std::uint32_t>(std::uint64_t{words[2 * run]} * cols >> 32);
    hashes->signs[run] = words[2 * run + 1];
    // Every run may be in different cache lines and another page: prefetch early.
    const Cell* const cell = cells + hashes->start[run];
    __builtin_prefetch(cell);
    __builtin_prefetch(cell + kRun / 2);
    __builtin_prefetch(cell + kRun - 1);
  }
}

// Bit j of `signs` as a mask; a table of bits, because not every instruction set has shifts by
// lane.
constexpr std::array<std::uint32_t, kRun> kBits = [] {
  std::array<std::uint32_t, kRun> bits{};
  for (std::size_t j = 0; j < kRun; ++j) bits[j] = 1u << j;
  return bits;
}();
std::uint32_t sign_mask(std::uint32_t signs, std::size_t j) {
  return (signs & kBits[j]) == kBits[j] ? ~0u : 0u;
}

// Integer with the order of the numbers, -0 below 0. Changing the sign of a number complements its
// key. NaN is above all numbers, whatever its sign.
std::int32_t order_key(float x) {
  const std::uint32_t magnitude = float_bits(x) & kMagnitudeMask;
  if (magnitude > kInfBits) return static_cast<std::int32_t>(kNanBits);
  return static_cast<std::int32_t>(std::signbit(x) ? ~magnitude : magnitude);
}

float number_of(std::int32_t key) {
  const auto bits = static_cast<std::uint32_t>(key);
  return bits_float(key < 0 ? ~bits | 0x80000000u : bits);
}

void sort_pairs(std::int32_t* __restrict a, std::int32_t* __restrict b) {
  for (std::size_t i = 0; i < kPiece; ++i) {
    const std::int32_t low = std::min(a[i], b[i]);
    const std::int32_t high = std::max(a[i], b[i]);
    a[i] = low;
    b[i] = high;
  }
}

struct Table {
  std::size_t cols;
  Span<std::int32_t> keys;  // of the cells; every row is followed by a copy of its first cells
  bool has_nan;
  // An estimate is multiplied by `shrink` unless all rows reach `heavy` with one sign.
  std::int32_t heavy;  // an order key
  float shrink;
};

class Sketch final : public Codec {
 public:
  explicit Sketch(const Params& params)
      : ratio_(params.real("ratio")),
        rows_(static_cast<std::size_t>(params.integer("rows"))),
        unbiased_(params.boolean("unbiased")) {}

  Caps caps() const noexcept override {
    Caps caps;
    caps.summable = true;
    caps.nonlinear = rows_ > 1;
    caps.seeded = true;
    caps.finite = false;  // the sum in a cell may overflow
    caps.payload_type = PayloadType::kFloat32;
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept override {
    return 4 * std::min(n, rows_ * cols(n));
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    const std::size_t n = x.size();
    GRADCOMP_TRY(check_room(out, max_encoded_size(n)));
    *written = max_encoded_size(n);
    if (exact(n)) {
      if (n > 0) std::memcpy(out.data(), x.data(), 4 * n);
      return {};
    }
    const std::size_t cols = this->cols(n);
    Span<float> table = call.scratch->get<float>(0, rows_ * (cols + kRun));
    if (table.empty()) return out_of_memory(n);
    // One thread per row, so that its sums have one order.
    for_rows(n, [&](std::size_t row) {
      float* const cells = table.data() + row * (cols + kRun);
      std::memset(cells, 0, 4 * (cols + kRun));
      for (std::size_t begin = 0; begin < n; begin += kPiece) {
        Hashes hashes;
        hash(call.stream, row, begin, cells, cols, &hashes);
        add_piece(x.data() + begin, std::min(kPiece, n - begin), hashes, cells);
      }
      for (std::size_t i = 0; i < kRun; ++i)
        cells[i] += cells[cols + i];  // wrap around the row's end
      for (std::size_t i = 0; i < cols; ++i) {
        const bool nan = cells[i] != cells[i];  // the bits of a NaN would depend on the compiler
        store(out.data() + 4 * (row * cols + i), nan ? bits_float(kNanBits) : cells[i]);
      }
    });
    return {};
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    const std::size_t n = y.size();
    GRADCOMP_TRY(check_payload_size(in, max_encoded_size(n), n));
    if (exact(n)) {
      if (n > 0) std::memcpy(y.data(), in.data(), 4 * n);
      return {};
    }
    Table table;
    GRADCOMP_TRY(unpack(in, call, n, &table));
    for_pieces(n, [&](std::size_t begin, std::size_t count) {
      estimate(table, call.stream, begin, count, y.data() + begin);
    });
    return {};
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override {
    const std::size_t n = acc.size();
    GRADCOMP_TRY(check_payload_size(in, max_encoded_size(n), n));
    if (exact(n)) {
      kernels().f32_add(in.data(), weight, acc.data(), n);
      return {};
    }
    Table table;
    GRADCOMP_TRY(unpack(in, call, n, &table));
    for_pieces(n, [&](std::size_t begin, std::size_t count) {
      alignas(64) float y[kPiece];
      estimate(table, call.stream, begin, count, y);
      kernels().f32_add(reinterpret_cast<const std::uint8_t*>(y), weight, acc.data() + begin,
                        count);
    });
    return {};
  }

 private:
  // At least kRun, so that no two elements of a run share a cell.
  std::size_t cols(std::size_t n) const {
    const double cells = ratio_ * static_cast<double>(n) / static_cast<double>(rows_);
    return std::max(kRun, static_cast<std::size_t>(std::floor(cells + 0.5)));
  }

  // True if the tensor is no larger than its sketch; then it is sent unchanged.
  bool exact(std::size_t n) const { return n <= rows_ * cols(n); }

  static Status out_of_memory(std::size_t n) {
    return capacity_error("out of memory: the sketch of " + std::to_string(n) + " elements");
  }

  template <typename Fn>
  void for_rows(std::size_t n, const Fn& fn) const {
    for_parts(rows_, range_count(n) == 1 ? 1 : rows_,
              [&](std::size_t, std::size_t begin, std::size_t end) {
                for (std::size_t row = begin; row < end; ++row) fn(row);
              });
  }

  static void add_piece(const float* __restrict x, std::size_t count, const Hashes& hashes,
                        float* __restrict cells) {
    const auto signed_element = [&](std::size_t run, std::size_t j) {
      const std::uint32_t sign = sign_mask(hashes.signs[run], j) & 0x80000000u;
      return bits_float(float_bits(x[run * kRun + j]) ^ sign);
    };
    const std::size_t runs = count / kRun;
    for (std::size_t run = 0; run < runs; ++run) {
      float* const cell = cells + hashes.start[run];
      for (std::size_t j = 0; j < kRun; ++j) cell[j] += signed_element(run, j);
    }
    for (std::size_t j = 0; j < count % kRun; ++j) {
      cells[hashes.start[runs] + j] += signed_element(runs, j);
    }
  }

  Status unpack(Span<const std::uint8_t> in, const Call& call, std::size_t n, Table* table) const {
    table->cols = cols(n);
    table->has_nan = false;
    const std::size_t all = rows_ * table->cols;
    const std::size_t padded = table->cols + kRun;
    Span<float> cells = call.scratch->get<float>(0, all);
    table->keys = call.scratch->get<std::int32_t>(1, rows_ * padded);
    if (cells.empty() || table->keys.empty()) return out_of_memory(n);
    std::memcpy(cells.data(), in.data(), 4 * all);
    for (std::size_t row = 0; row < rows_; ++row) {
      std::int32_t* const keys = table->keys.data() + row * padded;
      for (std::size_t i = 0; i < table->cols; ++i) {
        keys[i] = order_key(cells[row * table->cols + i]);
        table->has_nan = table->has_nan || keys[i] == static_cast<std::int32_t>(kNanBits);
      }
      std::memcpy(keys + table->cols, keys, 4 * kRun);
    }
    const auto m = static_cast<double>(all);
    const double squares = kernels().sum_squares(cells.data(), all);
    const double least = std::min<double>(kHeavy * std::sqrt(squares / m), kFloatMax);
    // With one row, elements that share a cell cannot be told apart.
    table->heavy = order_key(rows_ > 1 ? static_cast<float>(least) : bits_float(kInfBits));
    const double shrink = m / (m + kMedianVariance * static_cast<double>(n));
    table->shrink = unbiased_ ? 1.0f : static_cast<float>(shrink);
    return {};
  }

  template <typename Fn>
  static void for_pieces(std::size_t n, const Fn& fn) {
    for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
      for (; begin < end; begin += kPiece) fn(begin, std::min(kPiece, end - begin));
    });
  }

  void estimate(const Table& table, std::uint64_t stream, std::size_t begin, std::size_t count,
                float* y) const {
    alignas(64) std::int32_t keys[kMaxRows][kPiece];
    for (std::size_t row = 0; row < rows_; ++row) {
      const std::int32_t* const cells = table.keys.data() + row * (table.cols + kRun);
      Hashes hashes;
      hash(stream, row, begin, cells, table.cols, &hashes);
      for (std::size_t run = 0; run < kPieceRuns; ++run) {
        const std::int32_t* const cell = cells + hashes.start[run];
        for (std::size_t j = 0; j < kRun; ++j) {
          const auto mask = static_cast<std::int32_t>(sign_mask(hashes.signs[run], j));
          keys[row][run * kRun + j] = cell[j] ^ mask;
        }
      }
      if (!table.has_nan) continue;
      for (std::int32_t& key : keys[row]) {
        if (key == static_cast<std::int32_t>(~kNanBits)) key = static_cast<std::int32_t>(kNanBits);
      }
    }
    // Odd-even transposition sort of the rows.
    for (std::size_t pass = 0; pass < rows_; ++pass) {
      for (std::size_t row = pass % 2; row + 1 < rows_; row += 2) {
        sort_pairs(keys[row], keys[row + 1]);
      }
    }
    const std::int32_t* const lowest = keys[0];
    const std::int32_t* const median = keys[rows_ / 2];
    const std::int32_t* const highest = keys[rows_ - 1];
    for (std::size_t i = 0; i < count; ++i) {
      const float number = number_of(median[i]);
      const bool heavy = (lowest[i] >= table.heavy) | (highest[i] <= ~table.heavy);
      y[i] = heavy ? number : table.shrink * number;
    }
  }

  double ratio_;
  std::size_t rows_;
  bool unbiased_;
};

const char* refuse_sketch(const Params& params, const StageInfo* memory) {
  if (params.integer("rows") % 2 == 0) {
    return "the median of an even number of rows is not one of them; take an odd number of rows";
  }
  if (params.boolean("unbiased") && memory != nullptr) {
    return "error feedback diverges with unbiased estimates, whose error exceeds the gradient; "
           "leave out the memory, or unbiased=true";
  }
  return nullptr;
}

}  // namespace

StageInfo sketch_stage() {
  StageInfo stage;
  stage.name = "sketch";
  stage.id = 24;
  stage.summary =
      "count sketch: ranks add small tables, from which elements of the sum are estimated, large "
      "ones accurately; use with residual; unbiased with unbiased=true";
  stage.paper =
      "Charikar, Chen, Farach-Colton: Finding Frequent Items in Data Streams, ICALP 2002; Ivkin et "
      "al.: Communication-efficient Distributed SGD with Sketching, NeurIPS 2019; Rothchild et "
      "al.: FetchSGD, ICML 2020; runs of 32 elements share a hash";
  stage.nonfinite =
      "an element that is not finite stays so; elements that share its cells in most rows become "
      "not finite too";
  stage.example = "sketch(ratio=0.1)";
  stage.params = {
      real_param("ratio", nullptr, 0, 1,
                 "cells of the table, as a fraction of the elements; at least 32 in each row",
                 true),
      integer_param("rows", "3", 1, kMaxRows, "rows of the table, an odd number"),
      boolean_param("unbiased", "false",
                    "unscaled estimates; false: small estimates are multiplied by m / (m + 1.5 "
                    "numel), with m cells")};
  stage.exactly_one_of = {"ratio"};
  stage.refuse = refuse_sketch;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Sketch>(recipe.params);
  };
  return stage;
}

}  // namespace gradcomp
