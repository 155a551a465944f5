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

// The most directions that are kept of each side: turning a matrix takes so many products of each
// element, four times.
constexpr std::size_t kMostDirections = 32;
// Of fewer there is little to gain.
constexpr std::size_t kFewestDirections = 4;
// Rows or columns longer than this are mostly those of vectors and of few, and would take much
// memory.
constexpr std::size_t kLongest = std::size_t{1} << 16;

// What the last average counts, against all before it.
constexpr float kLastPart = 0.2f;
// Products with the first average, from directions that know nothing.
constexpr int kFirstPasses = 3;

// Largest magnitudes of averages that are learned from: beyond, products could leave the range of
// float32.
constexpr float kLeast = 0x1p-40f;
constexpr float kMost = 0x1p40f;

// No number of a basis is larger, but by error: those of Y are at most 2, and those of T hardly
// more.
constexpr float kLargestNumber = 64;

std::size_t directions(std::size_t rows, std::size_t cols) {
  if (std::max(rows, cols) > kLongest) return 0;
  // So that a basis takes no more memory than the matrix, about.
  const std::size_t most = std::min({kMostDirections, rows / 2, cols / 2});
  return most < kFewestDirections ? 0 : most;
}

// Numbers of one side.
std::size_t side_size(std::size_t rank, std::size_t size) { return rank * (size + rank + 1); }

// Where the numbers of one side are that is learned.
struct Learned {
  float* y;
  float* t;
  float* sizes;
  std::size_t rank;
  std::size_t size;

  static Learned at(float* kept, std::size_t rank, std::size_t size) {
    return {kept, kept + rank * size, kept + rank * (size + rank), rank, size};
  }
};

float norm(const float* x, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return static_cast<float>(std::sqrt(sum));
}

// The columns of `inverse` that solve a x = unit vector, by the factors that stand in `a` (the unit
// diagonal of the lower one does not).
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

// Makes Y and T of the directions in `side.y`, with the signs for which elimination without any
// exchange of rows has pivots of at least 1.
void complete(const Learned& side) {
  const std::size_t n = side.rank;
  std::vector<double> a(n * n);  // Y_1, whose columns are vectors; then its factors
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

// A product of what averages are worth with the directions of one side, from this average and from
// the sizes before; the result is the next directions.
Status learn_side(const Matrix& average, float scale, bool of_rows, bool first, Scratch& scratch,
                  const Learned& side) {
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
      multiply_transposed(average, nullptr, side.y, rank, other.data());
    } else {
      multiply(average, nullptr, side.y, rank, other.data());
    }
    for (float& one : other) one *= scale;
    if (of_rows) {
      multiply(average, nullptr, other.data(), rank, next.data());
    } else {
      multiply_transposed(average, nullptr, other.data(), rank, next.data());
    }
    std::vector<std::pair<float, std::size_t>> order;
    for (std::size_t k = 0; k < rank; ++k) {
      float* const of = next.data() + k * n;
      const float kept_part = first ? 0 : (1 - last_part) * side.sizes[k];
      for (std::size_t j = 0; j < n; ++j) of[j] = kept_part * side.y[k * n + j] + last_part * of[j];
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

// The products of T, or of its transpose, with as many rows of n elements.
std::vector<float> times(const float* t, bool transposed, const std::vector<float>& x,
                         std::size_t rank, std::size_t n) {
  std::vector<float> turned(rank * rank);  // the one that outer() does not expect
  if (!transposed) {
    for (std::size_t i = 0; i < rank; ++i) {
      for (std::size_t k = 0; k < rank; ++k) turned[k * rank + i] = t[i * rank + k];
    }
    t = turned.data();
  }
  std::vector<float> result(rank * n);
  outer(t, x.data(), rank, rank, n, {result.data(), nullptr, nullptr});
  return result;
}

// x -= x Y T Y^T, or with the transpose of T
void reflect_cols(const SharedBasis& basis, bool transposed, const Matrix& x) {
  const SharedBasis::Side& side = basis.of_cols;
  std::vector<float> p(basis.rank * x.rows);
  multiply(x, nullptr, side.y, basis.rank, p.data());
  // (x Y) T, with the vectors of x Y as rows, is T^T times these.
  p = times(side.t, !transposed, p, basis.rank, x.rows);
  outer(p.data(), side.y, basis.rank, x.rows, x.cols, {nullptr, nullptr, x.data});
}

// x -= Y T Y^T x, or with the transpose of T
void reflect_rows(const SharedBasis& basis, bool transposed, const Matrix& x) {
  const SharedBasis::Side& side = basis.of_rows;
  std::vector<float> q(basis.rank * x.cols);
  multiply_transposed(x, nullptr, side.y, basis.rank, q.data());
  q = times(side.t, transposed, q, basis.rank, x.cols);
  outer(side.y, q.data(), basis.rank, x.rows, x.cols, {nullptr, nullptr, x.data});
}

// Whether something was learned; not by damaged numbers, either.
bool is_learned(Span<const float> kept, std::size_t rank) {
  const float largest = bits_float(kernels().max_magnitude(kept.data(), kept.size()));
  return largest <= kLargestNumber && kept[kept.size() - rank] > 0;  // the rows' first size
}

}  // namespace

SharedBasis SharedBasis::of(Span<const float> kept, std::size_t rows, std::size_t cols) {
  if (kept.empty() || kept.size() != shared_basis_size(rows, cols)) return {};
  const std::size_t rank = directions(rows, cols);
  if (!is_learned(kept, rank)) return {};
  const float* const of_rows = kept.data() + side_size(rank, cols);
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(kept.data());
  return {rank,
          {kept.data(), kept.data() + rank * cols, cols},
          {of_rows, of_rows + rank * rows, rows},
          crc32c(bytes, sizeof(float) * kept.size())};
}

std::size_t shared_basis_size(std::size_t rows, std::size_t cols) {
  const std::size_t rank = directions(rows, cols);
  return side_size(rank, cols) + side_size(rank, rows);
}

Status learn_basis(const float* average, std::size_t rows, std::size_t cols, Scratch& scratch,
                   Span<float> kept) {
  const std::size_t n = rows * cols;
  const float largest = bits_float(kernels().max_magnitude(average, n));
  if (!(largest >= kLeast && largest <= kMost)) return {};
  const std::size_t rank = directions(rows, cols);
  const bool first = !is_learned({kept.data(), kept.size()}, rank);
  // Every average counts by its directions, not by its size.
  const auto scale = static_cast<float>(1 / kernels().sum_squares(average, n));
  const Matrix m{const_cast<float*>(average), rows, cols};  // which the products only read
  const Learned of_cols = Learned::at(kept.data(), rank, cols);
  const Learned of_rows = Learned::at(kept.data() + side_size(rank, cols), rank, rows);
  GRADCOMP_TRY(learn_side(m, scale, false, first, scratch, of_cols));
  return learn_side(m, scale, true, first, scratch, of_rows);
}

void turn(const SharedBasis& basis, float* x) {
  const Matrix m{x, basis.of_rows.size, basis.of_cols.size};
  reflect_cols(basis, false, m);
  reflect_rows(basis, true, m);
}

void turn_back(const SharedBasis& basis, float* x) {
  const Matrix m{x, basis.of_rows.size, basis.of_cols.size};
  reflect_rows(basis, false, m);
  reflect_cols(basis, true, m);
}

}  // namespace gradcomp
