#include "codecs/adaptive/sampled_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/bytes.hpp"
#include "base/rng.hpp"
#include "codecs/adaptive/dot.hpp"
#include "kernels/kernels.hpp"
#include "linalg/eigen.hpp"
#include "linalg/orthonormalize.hpp"
#include "linalg/products.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kMinRows = 128;

constexpr int kIterations = 2;  // of subspace iteration from random vectors

// Sums of rows find so many directions more than are wanted, and at least twice as many.
constexpr std::size_t kMore = 6;
constexpr std::size_t kMostSums = 24;

// `count` numbers for each column, uniform in [-1, 1), which serve as well as normal ones.
std::vector<float> random_vectors(std::size_t count, std::size_t cols) {
  std::vector<float> result(count * cols);
  Stream start(0);
  for (float& x : result) {
    x = static_cast<float>(static_cast<std::int32_t>(start.next() >> 32)) * 0x1p-31f;
  }
  return result;
}

// Sums of every count-th row, with random signs. Directions in which many rows are large are large
// in the sums, too, for one addition an element (Clarkson and Woodruff: "Low rank approximation and
// regression in input sparsity time", 2013). Scaled to magnitudes of at most about 1, so that
// products stay within the range of float32.
std::vector<float> sums_of_rows(const Matrix& rows, std::size_t count) {
  std::vector<float> sums(count * rows.cols);
  Stream signs(0);
  for (std::size_t i = 0; i < rows.rows; ++i) {
    const float sign = signs.next() >> 63 == 0 ? 1.0f : -1.0f;
    const float* const row = rows.data + i * rows.cols;
    float* const sum = sums.data() + i % count * rows.cols;
    for (std::size_t j = 0; j < rows.cols; ++j) sum[j] += sign * row[j];
  }
  const float largest = bits_float(kernels().max_magnitude(sums.data(), sums.size()));
  const float scale = largest > 0 ? 1 / largest : 1;
  for (float& x : sums) x *= scale;
  return sums;
}

// Makes sampled->v the combinations of `count` vectors b by the eigenvectors of `gram`, those of
// the largest eigenvalues, which are sampled->squares. `scaled`: divided by their roots.
void combine(std::vector<double> gram, const std::vector<float>& b, bool scaled,
             SampledRows* sampled) {
  const std::size_t count = b.size() / sampled->cols;
  std::vector<double> vectors;
  eigen(gram, count, &vectors);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
    return gram[i * count + i] > gram[j * count + j];
  });
  // Those of direction k are every rank-th number from k on.
  std::vector<float> factors(count * sampled->rank);
  sampled->squares.clear();
  for (std::size_t k = 0; k < sampled->rank; ++k) {
    const double square = std::max(gram[order[k] * (count + 1)], 0.0);
    sampled->squares.push_back(square);
    if (scaled && square == 0) continue;
    const double scale = scaled ? 1 / std::sqrt(square) : 1;
    for (std::size_t i = 0; i < count; ++i) {
      factors[i * sampled->rank + k] = static_cast<float>(vectors[order[k] * count + i] * scale);
    }
  }
  sampled->v.resize(sampled->rank * sampled->cols);
  outer(factors.data(), b.data(), count, sampled->rank, sampled->cols,
        {sampled->v.data(), nullptr, nullptr});
}

// The products of `count` vectors of n elements with each other.
std::vector<double> gram_of(const std::vector<float>& vectors, std::size_t count) {
  const std::size_t n = vectors.size() / count;
  std::vector<double> gram(count * count);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      gram[i * count + j] = gram[j * count + i] =
          dot(vectors.data() + i * n, vectors.data() + j * n, n);
    }
  }
  return gram;
}

}  // namespace

void take_rows(const float* x, std::size_t rows, std::size_t cols, std::size_t taken,
               std::size_t at, float* to) {
  for (std::size_t i = 0; i < taken; ++i) {
    const std::size_t row = (2 * i + at) * rows / (2 * taken);
    std::memcpy(to + i * cols, x + row * cols, sizeof(float) * cols);
  }
}

std::size_t sampled_rows(std::size_t rows, std::size_t cols, std::size_t elements) {
  const std::size_t wanted = std::max(kMinRows, elements / cols);
  return rows < 2 * wanted ? rows : wanted;
}

Status sample_rows(const float* x, std::size_t rows, std::size_t cols, const Sampling& sampling,
                   Scratch& scratch, SampledRows* sampled) {
  const std::size_t taken = sampled_rows(rows, cols, sampling.elements);
  sampled->rows = taken;
  sampled->cols = cols;
  sampled->x = {x, rows * cols};
  sampled->others = {};
  if (taken < rows) {
    float* const others = sampling.room + taken * cols;
    take_rows(x, rows, cols, taken, 0, sampling.room);
    sampled->x = {sampling.room, taken * cols};
    if (sampling.judged) {
      take_rows(x, rows, cols, taken, 1, others);
      sampled->others = {others, taken * cols};
    }
  }
  sampled->rank = std::min({sampling.rank, taken, cols});
  if (sampled->rank == 0) return {};
  const Matrix m = read_only(sampled->x.data(), taken, cols);
  const auto orthonormal = [&](std::vector<float>* vectors, std::size_t count) {
    return orthonormalize({vectors->data(), vectors->size()}, count, Orthonormalization::kCholesky,
                          scratch);
  };
  if (sampling.start == Start::kRandom) {
    const std::size_t count = sampled->rank;
    std::vector<float> v = random_vectors(count, cols);
    std::vector<float> p(count * taken);
    for (int i = 0; i < kIterations; ++i) {
      multiply(m, {}, v.data(), count, p.data());
      GRADCOMP_TRY(orthonormal(&p, count));
      multiply_transposed(m, {}, p.data(), count, v.data());
      GRADCOMP_TRY(orthonormal(&v, count));
    }
    multiply(m, {}, v.data(), count, p.data());
    combine(gram_of(p, count), v, false, sampled);
  } else {
    const std::size_t count =
        std::min({std::max(2 * sampling.rank, sampling.rank + kMore), kMostSums, taken, cols});
    std::vector<float> b = sums_of_rows(m, count);
    std::vector<float> p(count * taken);
    multiply(m, {}, b.data(), count, p.data());
    GRADCOMP_TRY(orthonormal(&p, count));
    multiply_transposed(m, {}, p.data(), count, b.data());
    combine(gram_of(b, count), b, true, sampled);
  }
  return {};
}

}  // namespace gradcomp
