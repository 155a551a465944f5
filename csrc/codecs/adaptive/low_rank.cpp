#include "codecs/adaptive/low_rank.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bytes.hpp"
#include "base/rng.hpp"
#include "base/thread_pool.hpp"
#include "codecs/adaptive/stream.hpp"
#include "kernels/kernels.hpp"
#include "linalg/orthonormalize.hpp"
#include "linalg/products.hpp"

namespace gradcomp {
namespace {

constexpr int kIterations = 2;
constexpr std::size_t kMinRows = 128;
constexpr std::size_t kCached = std::size_t{1} << 14;  // elements

// A vector whose mean magnitude is above this many steps sends its lower bits as they are.
constexpr double kLargeMean = 1.5;

// Of two directions whose product is smaller, in parts of their own (squared), none is turned: its
// vectors are kept as float32.
constexpr double kNoTurn = 0x1p-48;

// The products only read it.
Matrix view(const float* x, std::size_t rows, std::size_t cols) {
  return {const_cast<float*>(x), rows, cols};
}

// Eigenvalues (descending) and vectors (rows of `vectors`) of a symmetric matrix, by Jacobi's
// rotations: sums, products, quotients and square roots alone, so that the bits are the same
// everywhere.
void eigen(std::vector<double>& a, std::size_t n, std::vector<double>* vectors) {
  std::vector<double>& v = *vectors;
  v.assign(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) v[i * n + i] = 1;
  bool turned = true;
  for (int sweep = 0; sweep < 12 && turned; ++sweep) {
    turned = false;
    for (std::size_t p = 0; p + 1 < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        const double off = a[p * n + q];
        if (!(off * off > kNoTurn * std::fabs(a[p * n + p] * a[q * n + q]))) continue;
        turned = true;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * off);
        if (!std::isfinite(theta)) continue;
        const double t = (theta < 0 ? -1 : 1) / (std::fabs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1);
        const double s = t * c;
        for (std::size_t k = 0; k < n; ++k) {
          const double kp = a[k * n + p];
          const double kq = a[k * n + q];
          a[k * n + p] = c * kp - s * kq;
          a[k * n + q] = s * kp + c * kq;
        }
        for (std::size_t k = 0; k < n; ++k) {
          const double pk = a[p * n + k];
          const double qk = a[q * n + k];
          a[p * n + k] = c * pk - s * qk;
          a[q * n + k] = s * pk + c * qk;
          const double vp = v[p * n + k];
          const double vq = v[q * n + k];
          v[p * n + k] = c * vp - s * vq;
          v[q * n + k] = s * vp + c * vq;
        }
      }
    }
  }
}

double dot(const float* x, const float* y, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

// Turns the directions so that they are singular vectors of the rows, the largest first.
void sort_directions(Basis* basis) {
  const std::size_t r = basis->rank;
  std::vector<float> products(r * basis->rows);
  multiply(view(basis->x.data(), basis->rows, basis->cols), nullptr, basis->v.data(), r,
           products.data());
  std::vector<double> gram(r * r);
  for (std::size_t i = 0; i < r; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      gram[i * r + j] = gram[j * r + i] =
          dot(products.data() + i * basis->rows, products.data() + j * basis->rows, basis->rows);
    }
  }
  std::vector<double> turns;
  eigen(gram, r, &turns);
  std::vector<std::size_t> order(r);
  for (std::size_t i = 0; i < r; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return gram[a * r + a] > gram[b * r + b]; });
  std::vector<float> turned(basis->v.size());
  basis->squares.clear();
  for (std::size_t i = 0; i < r; ++i) {
    const double* const turn = turns.data() + order[i] * r;
    for (std::size_t j = 0; j < basis->cols; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < r; ++k) {
        sum += turn[k] * static_cast<double>(basis->v[k * basis->cols + j]);
      }
      turned[i * basis->cols + j] = static_cast<float>(sum);
    }
    basis->squares.push_back(std::max(gram[order[i] * r + order[i]], 0.0));
  }
  basis->v = turned;
}

void round_vector(const float* x, float step, std::size_t at, Factor* factor) {
  const std::size_t n = factor->size;
  const double inverse = 1 / static_cast<double>(step);
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += std::fabs(static_cast<double>(x[i])) * inverse;
  const double mean = sum / static_cast<double>(n);
  unsigned shift = 0;
  while (shift < kMaxFactorShift && std::ldexp(kLargeMean, static_cast<int>(shift)) < mean) {
    ++shift;
  }
  factor->shift[at] = static_cast<std::uint8_t>(shift);
  factor->step[at] = step;
  const std::int64_t half = shift == 0 ? 0 : std::int64_t{1} << (shift - 1);
  const double limit = std::ldexp(kMaxLevel - 1, static_cast<int>(shift));
  for (std::size_t i = 0; i < n; ++i) {
    const double wanted = std::min(std::max(static_cast<double>(x[i]) * inverse, -limit), limit);
    const auto number = static_cast<std::int64_t>(std::floor(wanted + 0.5)) + half;
    const auto high = static_cast<std::int32_t>(number >> shift);
    const auto low = static_cast<std::uint32_t>(number - high * (std::int64_t{1} << shift));
    factor->high[at * n + i] = static_cast<float>(high);
    factor->low[at * n + i] = static_cast<std::uint16_t>(low);
    factor->values[at * n + i] = factor_value(high, low, shift, step);
  }
}

void open_factor(std::size_t rank, std::size_t size, Factor* factor) {
  factor->rank = rank;
  factor->size = size;
  factor->high.assign(rank * size, 0);
  factor->low.assign(rank * size, 0);
  factor->values.assign(rank * size, 0);
}

// Of the least squares' equations p V V^T = x V^T, from p = x V^T. A direction that rounding has
// left nearly nothing of has no part.
void solve(const std::vector<float>& v, std::size_t rank, std::size_t cols, std::size_t rows,
           std::vector<float>* p) {
  std::vector<double> gram(rank * rank);
  for (std::size_t i = 0; i < rank; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      gram[i * rank + j] = dot(v.data() + i * cols, v.data() + j * cols, cols);
    }
  }
  // Cholesky's factor takes the place of the lower triangle.
  std::vector<bool> usable(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    double left = gram[i * rank + i];
    const double whole = left;
    for (std::size_t j = 0; j < i; ++j) {
      double sum = gram[i * rank + j];
      for (std::size_t k = 0; k < j; ++k) sum -= gram[i * rank + k] * gram[j * rank + k];
      gram[i * rank + j] = usable[j] ? sum / gram[j * rank + j] : 0;
      left -= gram[i * rank + j] * gram[i * rank + j];
    }
    usable[i] = whole > 0.25 && left > 0.05 * whole;
    gram[i * rank + i] = usable[i] ? std::sqrt(left) : 1;
  }
  // The inverse, column after column; it is symmetric.
  std::vector<float> inverse(rank * rank);
  std::vector<double> y(rank);
  for (std::size_t column = 0; column < rank; ++column) {
    for (std::size_t i = 0; i < rank; ++i) {
      double sum = i == column ? 1 : 0;
      for (std::size_t j = 0; j < i; ++j) sum -= gram[i * rank + j] * y[j];
      y[i] = usable[i] ? sum / gram[i * rank + i] : 0;
    }
    for (std::size_t i = rank; i-- > 0;) {
      double sum = y[i];
      for (std::size_t j = i + 1; j < rank; ++j) sum -= gram[j * rank + i] * y[j];
      y[i] = usable[i] ? sum / gram[i * rank + i] : 0;
      inverse[column * rank + i] = static_cast<float>(y[i]);
    }
  }
  std::vector<float> solved(p->size());
  outer(inverse.data(), p->data(), rank, rank, rows, {solved.data(), nullptr, nullptr});
  *p = std::move(solved);
}

}  // namespace

std::size_t Factor::low_bits() const {
  std::size_t bits = 0;
  for (std::size_t k = 0; k < rank; ++k) bits += shift[k] * size;
  return bits;
}

float short_float(double x) { return bits_float(float_bits(static_cast<float>(x)) & 0xFFFF0000u); }

void take_rows(const float* x, std::size_t rows, std::size_t cols, std::size_t taken,
               std::size_t at, std::vector<float>* result) {
  result->resize(taken * cols);
  for (std::size_t i = 0; i < taken; ++i) {
    const std::size_t row = (2 * i + at) * rows / (2 * taken);
    std::memcpy(result->data() + i * cols, x + row * cols, sizeof(float) * cols);
  }
}

Status find_basis(const float* x, std::size_t rows, std::size_t cols, std::size_t rank,
                  std::size_t sample, Scratch& scratch, Basis* basis) {
  const std::size_t wanted = std::max(kMinRows, sample / cols);
  const std::size_t taken = rows < 2 * wanted ? rows : wanted;
  basis->rows = taken;
  basis->cols = cols;
  take_rows(x, rows, cols, taken, 0, &basis->x);
  if (taken < rows) take_rows(x, rows, cols, taken, 1, &basis->others);
  basis->rank = std::min({rank, taken, cols});
  if (basis->rank == 0) return {};
  const std::size_t r = basis->rank;
  basis->v.resize(r * cols);
  Stream start(0);
  for (std::size_t i = 0; i < basis->v.size(); ++i) {
    // Uniform in [-1, 1), which serves as well as normal.
    basis->v[i] = static_cast<float>(static_cast<std::int32_t>(start.next() >> 32)) * 0x1p-31f;
  }
  std::vector<float> p(r * taken);
  const Matrix m = view(basis->x.data(), taken, cols);
  for (int i = 0; i < kIterations; ++i) {
    multiply(m, nullptr, basis->v.data(), r, p.data());
    GRADCOMP_TRY(orthonormalize({p.data(), p.size()}, r, Orthonormalization::kCholesky, scratch));
    multiply_transposed(m, nullptr, p.data(), r, basis->v.data());
    GRADCOMP_TRY(orthonormalize({basis->v.data(), basis->v.size()}, r,
                                Orthonormalization::kCholesky, scratch));
  }
  sort_directions(basis);
  return {};
}

void make_low_rank(const Basis& basis, std::size_t rank, const float* x, std::size_t rows,
                   float step, LowRank* result) {
  const std::size_t cols = basis.cols;
  *result = {};
  result->rank = rank;
  open_factor(rank, cols, &result->v);
  open_factor(rank, rows, &result->p);
  if (rank == 0) return;
  const double share = static_cast<double>(rows) / static_cast<double>(basis.rows);
  for (std::size_t k = 0; k < rank; ++k) {
    const double size = std::sqrt(basis.squares[k] * share);
    const float fine = short_float(std::min(static_cast<double>(step) / size, 1.0));
    round_vector(basis.v.data() + k * cols, fine, k, &result->v);
  }
  std::vector<float> p(rank * rows);
  multiply(view(x, rows, cols), nullptr, result->v.values.data(), rank, p.data());
  solve(result->v.values, rank, cols, rows, &p);
  for (std::size_t k = 0; k < rank; ++k) round_vector(p.data() + k * rows, step, k, &result->p);
}

void subtract_low_rank(const LowRank& low_rank, const float* x, std::size_t rows, float* e) {
  const std::size_t cols = low_rank.v.size;
  // A few rows at a time, so that they are in the cache when they are changed.
  const std::size_t each = std::max<std::size_t>(8, kCached / cols / 8 * 8);
  for_tasks((rows + each - 1) / each, [&](std::size_t i) {
    const std::size_t first = i * each;
    const std::size_t count = std::min(each, rows - first);
    float* const to = e + first * cols;
    std::memcpy(to, x + first * cols, sizeof(float) * count * cols);
    kernels().linalg->outer(low_rank.p.values.data() + first, rows, low_rank.v.values.data(), cols,
                            low_rank.rank, count, cols, {nullptr, nullptr, to}, cols);
  });
}

}  // namespace gradcomp
