#include "linalg/orthonormalize.hpp"

#include <cmath>
#include <utility>

namespace gradcomp {
namespace {

// `rank` vectors of n float64, one after the other.
struct Basis {
  double* data;
  std::size_t n;
  std::size_t rank;

  double* operator[](std::size_t c) const noexcept { return data + c * n; }
};

// Eight partial sums: element i goes to i % 8, and the 8 are added pairwise.
double dot(const double* x, const double* y, std::size_t n) {
  double sums[8] = {};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += x[i + j] * y[i + j];
  }
  for (std::size_t j = 0; i + j < n; ++j) sums[j] += x[i + j] * y[i + j];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

double norm(const double* x, std::size_t n) { return std::sqrt(dot(x, x, n)); }

void scale(double factor, double* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
}

void add_scaled(double factor, const double* x, double* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// Subtracts from vector c its projections on the vectors before it.
void project_out(const Basis& v, std::size_t c) {
  for (std::size_t k = 0; k < c; ++k) add_scaled(-dot(v[k], v[c], v.n), v[k], v[c], v.n);
}

// Replaces vector c by a unit vector minus its projections on the vectors before it. Chooses the
// unit vector with the smallest projection; at least (n - c) / n of its square is left.
void replace(const Basis& v, std::size_t c) {
  std::size_t best = 0;
  double least = 0;
  for (std::size_t i = 0; i < v.n; ++i) {
    double taken = 0;
    for (std::size_t k = 0; k < c; ++k) taken += v[k][i] * v[k][i];
    if (i == 0 || taken < least) {
      best = i;
      least = taken;
    }
  }
  for (std::size_t i = 0; i < v.n; ++i) v[c][i] = i == best ? 1 : 0;
  project_out(v, c);
  project_out(v, c);
}

void gram_schmidt(const Basis& v) {
  for (std::size_t c = 0; c < v.rank; ++c) {
    const double before = norm(v[c], v.n);
    project_out(v, c);
    double left = norm(v[c], v.n);
    if (left <= kDependent * before) {
      replace(v, c);
      left = norm(v[c], v.n);
    } else if (left < 0.5 * before) {
      project_out(v, c);
      left = norm(v[c], v.n);
    }
    scale(1 / left, v[c], v.n);
  }
}

// Finds H = I - tau w w^T that maps x to a multiple of the first unit vector. Stores w, with w[0] =
// 1, in x.
double make_reflector(double* x, std::size_t n) {
  const double below = dot(x + 1, x + 1, n - 1);
  if (below == 0) {
    x[0] = 1;
    return 0;
  }
  const double alpha = x[0];
  const double beta = -std::copysign(std::sqrt(alpha * alpha + below), alpha);
  scale(1 / (alpha - beta), x + 1, n - 1);
  x[0] = 1;
  return (beta - alpha) / beta;
}

void reflect(const double* w, double tau, double* x, std::size_t n) {
  add_scaled(-tau * dot(w, x, n), w, x, n);
}

// Reflectors overwrite the vectors, and the basis overwrites the reflectors: the last vector first,
// because reflector c does not change the first c elements of a vector.
void householder(const Basis& v, Span<double> taus) {
  for (std::size_t c = 0; c < v.rank; ++c) {
    taus[c] = make_reflector(v[c] + c, v.n - c);
    for (std::size_t k = c + 1; k < v.rank; ++k) reflect(v[c] + c, taus[c], v[k] + c, v.n - c);
  }
  for (std::size_t c = v.rank; c-- > 0;) {
    for (std::size_t k = c + 1; k < v.rank; ++k) reflect(v[c] + c, taus[c], v[k] + c, v.n - c);
    for (std::size_t i = 0; i < c; ++i) v[c][i] = 0;
    scale(-taus[c], v[c] + c + 1, v.n - c - 1);
    v[c][c] = 1 - taus[c];
  }
}

// Replaces the lower triangle of the vectors' products by its Cholesky factor, row by row. False if
// the vectors are too close to dependent: the square of kDependent would be lost in rounding.
bool cholesky(const Basis& v, Span<double> lower) {
  constexpr double kTooSmall = 1e-10;
  for (std::size_t c = 0; c < v.rank; ++c) {
    double* const row = lower.data() + c * v.rank;
    for (std::size_t k = 0; k <= c; ++k) {
      double sum = dot(v[k], v[c], v.n);
      const double whole = sum;
      const double* const other = lower.data() + k * v.rank;
      for (std::size_t i = 0; i < k; ++i) sum -= row[i] * other[i];
      if (k < c) {
        row[k] = sum / other[k];
      } else if (sum > kTooSmall * whole) {
        row[c] = std::sqrt(sum);
      } else {
        return false;
      }
    }
  }
  return true;
}

bool cholesky_qr(const Basis& v, Span<double> lower) {
  if (!cholesky(v, lower)) return false;
  for (std::size_t c = 0; c < v.rank; ++c) {
    const double* const row = lower.data() + c * v.rank;
    for (std::size_t k = 0; k < c; ++k) add_scaled(-row[k], v[k], v[c], v.n);
    scale(1 / row[c], v[c], v.n);
  }
  return true;
}

}  // namespace

Status orthonormalize(Span<float> vectors, std::size_t rank, Orthonormalization how,
                      Scratch& scratch) {
  if (rank == 0 || vectors.size() % rank != 0 || vectors.size() / rank < rank) {
    return argument_error(std::to_string(vectors.size()) + " elements are not " +
                          std::to_string(rank) + " vectors of at least as many elements each");
  }
  const Span<double> copy = scratch.get<double>(0, vectors.size());
  const Span<double> small = scratch.get<double>(1, rank * rank);
  if (copy.empty() || small.empty()) return capacity_error("out of memory");
  const Basis v{copy.data(), vectors.size() / rank, rank};
  const auto load = [&] {
    for (std::size_t i = 0; i < vectors.size(); ++i) {
      copy[i] = std::isfinite(vectors[i]) ? static_cast<double>(vectors[i]) : 0;
    }
  };
  load();
  switch (how) {
    case Orthonormalization::kHouseholder:
      householder(v, small);
      break;
    case Orthonormalization::kCholesky:
      if (cholesky_qr(v, small) && cholesky_qr(v, small)) break;
      load();
      gram_schmidt(v);
      break;
    case Orthonormalization::kGramSchmidt:
      gram_schmidt(v);
      break;
  }
  for (std::size_t i = 0; i < vectors.size(); ++i) vectors[i] = static_cast<float>(copy[i]);
  return {};
}

Status normalize(Span<float> vectors, std::size_t rank, Scratch& scratch) {
  const std::size_t n = rank == 0 ? 0 : vectors.size() / rank;
  for (std::size_t i = 0; i < rank; ++i) {
    GRADCOMP_TRY(
        orthonormalize({vectors.data() + i * n, n}, 1, Orthonormalization::kGramSchmidt, scratch));
  }
  return {};
}

}  // namespace gradcomp
