#include "codecs/adaptive/learned_basis.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/rng.hpp"
#include "kernels/crc32c.hpp"
#include "kernels/kernels.hpp"
#include "linalg/orthonormalize.hpp"
#include "linalg/products.hpp"

namespace gradcomp {
namespace {

// Most directions of each side. Turning a matrix takes 4 multiplications for each element and
// direction.
constexpr std::size_t kMostDirections = 32;
// Fewer directions gain too little.
constexpr std::size_t kFewestDirections = 4;
// Longest rows and columns. Longer ones are mostly of matrices with few of them, and a basis would
// take much memory.
constexpr std::size_t kLongest = std::size_t{1} << 16;

// Weight of the last average, against that of all before it.
constexpr float kLastPart = 0.2f;
// Passes of the power method over the first average, which has no directions to begin from.
constexpr int kFirstPasses = 3;

// Range of the largest magnitude of averages that are learned from: products outside could leave
// the range of float32.
constexpr float kLeast = 0x1p-40f;
constexpr float kMost = 0x1p40f;

// Larger numbers are errors: those of Y are at most 2, and those of T hardly more.
constexpr float kLargestNumber = 64;

std::size_t directions(std::size_t rows, std::size_t cols) {
  if (std::max(rows, cols) > kLongest) return 0;
  // Half of the shorter side: the basis then takes about as much memory as the matrix at most.
  const std::size_t most = std::min({kMostDirections, rows / 2, cols / 2});
  return most < kFewestDirections ? 0 : most;
}

// Numbers of one side: y, t and sizes.
std::size_t side_size(std::size_t rank, std::size_t size) { return rank * (size + rank + 1); }

// The numbers of one side, to be updated.
struct LearnedSide {
  float* y;
  float* t;
  float* sizes;
  std::size_t rank;
  std::size_t size;

  static LearnedSide at(float* numbers, std::size_t rank, std::size_t size) {
    return {numbers, numbers + rank * size, numbers + rank * (size + rank), rank, size};
  }
};

float norm(const float* x, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return static_cast<float>(std::sqrt(sum));
}

// The inverse of a matrix whose LU factors are in `a`, without the unit diagonal of L.
std::vector<double> invert(const std::vector<double>& a, std::size_t n) {
  std::vector<double> inverse(n * n);
  std::vector<double> x(n);
  for (std::size_t c = 0; c < n; ++c) {
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = i == c ? 1 : 0;
      for (std::size_t j = 0; j < i; ++j) x[i] -= a[i * n + j] * x[j];
    }
    for (std::size_t i = n; i-- > 0;) {
      for (std::size_t j = i + 1; j < n; ++j) x[i] -= a[i * n + j] * x[j];
      x[i] /= a[i * n + i];
      inverse[i * n + c] = x[i];
    }
  }
  return inverse;
}

// Makes Y and T from the directions in `side.y`. Their signs are chosen so that elimination without
// pivoting has pivots of at least 1.
void complete(const LearnedSide& side) {
  const std::size_t n = side.rank;
  std::vector<double> a(n * n);  // Y_1, with vectors as columns; then its LU factors
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) {
      a[i * n + k] = static_cast<double>(side.y[k * side.size + i]);
    }
  }
  for (std::size_t k = 0; k < n; ++k) {
    if (a[k * n + k] < 0) {
      for (std::size_t i = 0; i < n; ++i) a[i * n + k] = -a[i * n + k];
      float* const y = side.y + k * side.size;
      for (std::size_t j = 0; j < side.size; ++j) y[j] = -y[j];
    }
    a[k * n + k] += 1;
    for (std::size_t i = k + 1; i < n; ++i) {
      a[i * n + k] /= a[k * n + k];
      for (std::size_t j = k + 1; j < n; ++j) a[i * n + j] -= a[i * n + k] * a[k * n + j];
    }
    side.y[k * side.size + k] += 1;
  }
  const std::vector<double> inverse = invert(a, n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < n; ++k) side.t[i * n + k] = static_cast<float>(inverse[k * n + i]);
  }
}

// A step of the power method for one side. The matrix is the weighted mean of the Gram matrix
// before, V^T diag(sizes) V, and of this average's; its product with the directions V,
// orthonormalized, makes the next directions.
Status learn_side(const Matrix& average, float scale, bool of_rows, bool first, Scratch& scratch,
                  const LearnedSide& side) {
  const std::size_t rank = side.rank;
  const std::size_t n = side.size;
  if (first) {
    Stream start(0);
    for (std::size_t i = 0; i < rank * n; ++i) {
      side.y[i] = static_cast<float>(static_cast<std::int32_t>(start.next() >> 32)) * 0x1p-31f;
    }
    std::fill_n(side.sizes, rank, 0.0f);
  } else {
    for (std::size_t k = 0; k < rank; ++k) side.y[k * n + k] -= 1;
  }
  const float last_part = first ? 1 : kLastPart;
  std::vector<float> other(rank * (of_rows ? average.cols : average.rows));
  std::vector<float> next(rank * n);
  for (int pass = first ? kFirstPasses : 1; pass > 0; --pass) {
    if (of_rows) {
      multiply_transposed(average, {}, side.y, rank, other.data());
    } else {
      multiply(average, {}, side.y, rank, other.data());
    }
    for (float& one : other) one *= scale;
    if (of_rows) {
      multiply(average, {}, other.data(), rank, next.data());
    } else {
      multiply_transposed(average, {}, other.data(), rank, next.data());
    }
    std::vector<std::pair<float, std::size_t>> order;
    for (std::size_t k = 0; k < rank; ++k) {
      float* const of = next.data() + k * n;
      const float old_part = first ? 0 : (1 - last_part) * side.sizes[k];
      for (std::size_t j = 0; j < n; ++j) of[j] = old_part * side.y[k * n + j] + last_part * of[j];
      order.emplace_back(norm(of, n), k);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (std::size_t k = 0; k < rank; ++k) {
      side.sizes[k] = order[k].first;
      std::memcpy(side.y + k * n, next.data() + order[k].second * n, sizeof(float) * n);
    }
    GRADCOMP_TRY(orthonormalize({side.y, rank * n}, rank, Orthonormalization::kCholesky, scratch));
  }
  complete(side);
  return {};
}

// T x, or T^T x, for x of `rank` rows and n columns.
std::vector<float> times(const float* t, bool transposed, const std::vector<float>& x,
                         std::size_t rank, std::size_t n) {
  std::vector<float> columns(rank * rank);  // T column by column, as outer() takes it
  if (!transposed) {
    for (std::size_t i = 0; i < rank; ++i) {
      for (std::size_t k = 0; k < rank; ++k) columns[k * rank + i] = t[i * rank + k];
    }
    t = columns.data();
  }
  std::vector<float> result(rank * n);
  outer(t, x.data(), rank, rank, n, {result.data(), nullptr, nullptr});
  return result;
}

// x -= x Y T Y^T, or with T^T in place of T
void reflect_cols(const LearnedBasis& basis, bool transposed, const Matrix& x) {
  const LearnedBasis::Side& side = basis.of_cols;
  std::vector<float> p(basis.rank * x.rows);
  multiply(x, {}, side.y, basis.rank, p.data());
  // p is the transpose of x Y, so (x Y) T becomes T^T p.
  p = times(side.t, !transposed, p, basis.rank, x.rows);
  outer(p.data(), side.y, basis.rank, x.rows, x.cols, {nullptr, nullptr, x.data});
}

// x -= Y T Y^T x, or with T^T in place of T
void reflect_rows(const LearnedBasis& basis, bool transposed, const Matrix& x) {
  const LearnedBasis::Side& side = basis.of_rows;
  std::vector<float> q(basis.rank * x.cols);
  multiply_transposed(x, {}, side.y, basis.rank, q.data());
  q = times(side.t, transposed, q, basis.rank, x.cols);
  outer(side.y, q.data(), basis.rank, x.rows, x.cols, {nullptr, nullptr, x.data});
}

// Whether something was learned. False for damaged numbers, too.
bool is_learned(Span<const float> numbers, std::size_t rank) {
  const float largest = bits_float(kernels().max_magnitude(numbers.data(), numbers.size()));
  return largest <= kLargestNumber && numbers[numbers.size() - rank] > 0;  // the rows' first size
}

}  // namespace

LearnedBasis LearnedBasis::of(Span<const float> numbers, std::size_t rows, std::size_t cols) {
  if (numbers.empty() || numbers.size() != learned_basis_size(rows, cols)) return {};
  const std::size_t rank = directions(rows, cols);
  if (!is_learned(numbers, rank)) return {};
  const float* const of_rows = numbers.data() + side_size(rank, cols);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(numbers.data());
  return {rank,
          {numbers.data(), numbers.data() + rank * cols, cols},
          {of_rows, of_rows + rank * rows, rows},
          crc32c(bytes, sizeof(float) * numbers.size())};
}

std::size_t learned_basis_size(std::size_t rows, std::size_t cols) {
  const std::size_t rank = directions(rows, cols);
  return side_size(rank, cols) + side_size(rank, rows);
}

Status learn_basis(const float* average, std::size_t rows, std::size_t cols, Scratch& scratch,
                   Span<float> numbers) {
  const std::size_t n = rows * cols;
  const float largest = bits_float(kernels().max_magnitude(average, n));
  if (!(largest >= kLeast && largest <= kMost)) return {};
  const std::size_t rank = directions(rows, cols);
  const bool first = !is_learned({numbers.data(), numbers.size()}, rank);
  // Averages are normalized: their sizes must not weight them.
  const auto scale = static_cast<float>(1 / kernels().sum_squares(average, n));
  const Matrix m{const_cast<float*>(average), rows, cols};  // the products only read it
  const LearnedSide of_cols = LearnedSide::at(numbers.data(), rank, cols);
  const LearnedSide of_rows = LearnedSide::at(numbers.data() + side_size(rank, cols), rank, rows);
  GRADCOMP_TRY(learn_side(m, scale, false, first, scratch, of_cols));
  return learn_side(m, scale, true, first, scratch, of_rows);
}

void turn(const LearnedBasis& basis, float* x) {
  const Matrix m{x, basis.of_rows.size, basis.of_cols.size};
  reflect_cols(basis, false, m);
  reflect_rows(basis, true, m);
}

void turn_back(const LearnedBasis& basis, float* x) {
  const Matrix m{x, basis.of_rows.size, basis.of_cols.size};
  reflect_rows(basis, false, m);
  reflect_cols(basis, true, m);
}

}  // namespace gradcomp
