#include "codecs/adaptive/sampled_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/rng.hpp"
#include "codecs/adaptive/dot.hpp"
#include "linalg/orthonormalize.hpp"
#include "linalg/products.hpp"

namespace gradcomp {
namespace {

constexpr int kIterations = 2;  // of subspace iteration
constexpr std::size_t kMinRows = 128;

// Jacobi skips a pair whose squared off-diagonal element is below this part of the product of both
// diagonal elements: the vectors are kept as float32.
constexpr double kNoRotation = 0x1p-48;

// Eigenvalues (left on the diagonal of `a`, in no order) and eigenvectors (rows of `vectors`) of a
// symmetric n x n matrix, by Jacobi rotations. It needs only sums, products, quotients and square
// roots, so the bits are the same everywhere.
void eigen(std::vector<double>& a, std::size_t n, std::vector<double>* vectors) {
  std::vector<double>& v = *vectors;
  v.assign(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) v[i * n + i] = 1;
  bool rotated = true;
  for (int sweep = 0; sweep < 12 && rotated; ++sweep) {
    rotated = false;
    for (std::size_t p = 0; p + 1 < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        const double off = a[p * n + q];
        if (!(off * off > kNoRotation * std::fabs(a[p * n + p] * a[q * n + q]))) continue;
        rotated = true;
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

// Rotates the directions so that they are right singular vectors of the rows, by descending
// singular value.
void sort_directions(SampledRows* sampled) {
  const std::size_t r = sampled->rank;
  std::vector<float> products(r * sampled->rows);
  multiply(read_only(sampled->x.data(), sampled->rows, sampled->cols), {}, sampled->v.data(), r,
           products.data());
  std::vector<double> gram(r * r);
  for (std::size_t i = 0; i < r; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      gram[i * r + j] = gram[j * r + i] = dot(products.data() + i * sampled->rows,
                                              products.data() + j * sampled->rows, sampled->rows);
    }
  }
  std::vector<double> vectors;
  eigen(gram, r, &vectors);
  std::vector<std::size_t> order(r);
  for (std::size_t i = 0; i < r; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return gram[a * r + a] > gram[b * r + b]; });
  std::vector<float> rotated(sampled->v.size());
  std::vector<double> sums(sampled->cols);
  sampled->squares.clear();
  for (std::size_t i = 0; i < r; ++i) {
    const double* const vector = vectors.data() + order[i] * r;
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::size_t k = 0; k < r; ++k) {
      const float* const from = sampled->v.data() + k * sampled->cols;
      for (std::size_t j = 0; j < sampled->cols; ++j) {
        sums[j] += vector[k] * static_cast<double>(from[j]);
      }
    }
    for (std::size_t j = 0; j < sampled->cols; ++j) {
      rotated[i * sampled->cols + j] = static_cast<float>(sums[j]);
    }
    sampled->squares.push_back(std::max(gram[order[i] * r + order[i]], 0.0));
  }
  sampled->v = std::move(rotated);
}

}  // namespace

void take_rows(const float* x, std::size_t rows, std::size_t cols, std::size_t taken,
               std::size_t at, std::vector<float>* result) {
  result->resize(taken * cols);
  for (std::size_t i = 0; i < taken; ++i) {
    const std::size_t row = (2 * i + at) * rows / (2 * taken);
    std::memcpy(result->data() + i * cols, x + row * cols, sizeof(float) * cols);
  }
}

Status sample_rows(const float* x, std::size_t rows, std::size_t cols, std::size_t rank,
                   std::size_t sample, Scratch& scratch, SampledRows* sampled) {
  const std::size_t wanted = std::max(kMinRows, sample / cols);
  const std::size_t taken = rows < 2 * wanted ? rows : wanted;
  sampled->rows = taken;
  sampled->cols = cols;
  sampled->x = {x, rows * cols};
  sampled->others.clear();
  if (taken < rows) {
    take_rows(x, rows, cols, taken, 0, &sampled->copied);
    take_rows(x, rows, cols, taken, 1, &sampled->others);
    sampled->x = {sampled->copied.data(), sampled->copied.size()};
  }
  sampled->rank = std::min({rank, taken, cols});
  if (sampled->rank == 0) return {};
  const std::size_t r = sampled->rank;
  sampled->v.resize(r * cols);
  Stream start(0);
  for (std::size_t i = 0; i < sampled->v.size(); ++i) {
    // Uniform in [-1, 1), which serves as well as normal.
    sampled->v[i] = static_cast<float>(static_cast<std::int32_t>(start.next() >> 32)) * 0x1p-31f;
  }
  std::vector<float> p(r * taken);
  const Matrix m = read_only(sampled->x.data(), taken, cols);
  for (int i = 0; i < kIterations; ++i) {
    multiply(m, {}, sampled->v.data(), r, p.data());
    GRADCOMP_TRY(orthonormalize({p.data(), p.size()}, r, Orthonormalization::kCholesky, scratch));
    multiply_transposed(m, {}, p.data(), r, sampled->v.data());
    GRADCOMP_TRY(orthonormalize({sampled->v.data(), sampled->v.size()}, r,
                                Orthonormalization::kCholesky, scratch));
  }
  sort_directions(sampled);
  return {};
}

}  // namespace gradcomp
