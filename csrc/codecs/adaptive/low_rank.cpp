#include "codecs/adaptive/low_rank.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codecs/adaptive/dot.hpp"
#include "codecs/adaptive/symbol_stream.hpp"
#include "kernels/kernels.hpp"
#include "linalg/products.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kCached = std::size_t{1} << 14;  // elements

// A vector whose mean magnitude is above this many steps has low bits.
constexpr double kLargeMean = 1.5;

// floor(x + 0.5), without a call where the instruction set has no rounding.
std::int64_t rounded(double x) {
  const double shifted = x + 0.5;
  const auto whole = static_cast<std::int64_t>(shifted);
  return whole - (shifted < static_cast<double>(whole) ? 1 : 0);
}

// Rounds x to vector number `at` of a factor.
void round_vector(const float* x, float step, std::size_t at, Factor* factor) {
  const std::size_t n = factor->size;
  const double inverse = 1 / static_cast<double>(step);
  const double mean = kernels().sum_magnitudes(x, n) * inverse / static_cast<double>(n);
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
    const auto number = rounded(wanted) + half;
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

// Solves the normal equations p V V^T = x V^T of least squares, given p = x V^T. A direction of
// which rounding has left nearly nothing gets zeros.
void solve(const std::vector<float>& v, std::size_t rank, std::size_t cols, std::size_t rows,
           std::vector<float>* p) {
  std::vector<double> gram(rank * rank);
  for (std::size_t i = 0; i < rank; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      gram[i * rank + j] = dot(v.data() + i * cols, v.data() + j * cols, cols);
    }
  }
  // Cholesky factor, in place of the lower triangle.
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
  // The inverse, which is symmetric, column by column.
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

std::size_t LowRank::low_bits() const { return p.low_bits() + v.low_bits(); }

float short_float(double x) { return bits_float(float_bits(static_cast<float>(x)) & 0xFFFF0000u); }

void make_low_rank(const SampledRows& sampled, std::size_t rank, const float* x, std::size_t rows,
                   float step, LowRank* result) {
  const std::size_t cols = sampled.cols;
  *result = {};
  result->rank = rank;
  open_factor(rank, cols, &result->v);
  open_factor(rank, rows, &result->p);
  if (rank == 0) return;
  const double share = static_cast<double>(rows) / static_cast<double>(sampled.rows);
  for (std::size_t k = 0; k < rank; ++k) {
    const double size = std::sqrt(sampled.squares[k] * share);
    const float fine = short_float(std::min(static_cast<double>(step) / size, 1.0));
    round_vector(sampled.v.data() + k * cols, fine, k, &result->v);
  }
  std::vector<float> p(rank * rows);
  multiply(read_only(x, rows, cols), {}, result->v.values.data(), rank, p.data());
  solve(result->v.values, rank, cols, rows, &p);
  for (std::size_t k = 0; k < rank; ++k) round_vector(p.data() + k * rows, step, k, &result->p);
}

void subtract_low_rank(const LowRank& low_rank, const float* x, std::size_t rows, float* e) {
  const std::size_t cols = low_rank.v.size;
  // A few rows at a time: copied ones are still in the cache when the product is subtracted.
  const std::size_t each = std::max<std::size_t>(8, kCached / cols / 8 * 8);
  for_tasks((rows + each - 1) / each, [&](std::size_t i) {
    const std::size_t first = i * each;
    const std::size_t count = std::min(each, rows - first);
    OuterOutput out{nullptr, nullptr, e + first * cols};
    out.from = x + first * cols;
    kernels().linalg->outer(low_rank.p.values.data() + first, rows, low_rank.v.values.data(), cols,
                            low_rank.rank, count, cols, out, cols);
  });
}

}  // namespace gradcomp
