#include "linalg/eigen.hpp"

#include <cmath>

namespace gradcomp {
namespace {

// A pair is skipped whose squared off-diagonal element is below this part of the product of both
// diagonal elements: callers keep the vectors as float32.
constexpr double kNoRotation = 0x1p-48;
constexpr int kMostSweeps = 12;

// x, y = c x - s y, s x + c y
void rotate(double c, double s, double* x, double* y, std::size_t n) {
  for (std::size_t k = 0; k < n; ++k) {
    const double at_x = x[k];
    const double at_y = y[k];
    x[k] = c * at_x - s * at_y;
    y[k] = s * at_x + c * at_y;
  }
}

}  // namespace

void eigen(std::vector<double>& a, std::size_t n, std::vector<double>* vectors) {
  std::vector<double>& v = *vectors;
  v.assign(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) v[i * n + i] = 1;
  bool rotated = true;
  for (int sweep = 0; sweep < kMostSweeps && rotated; ++sweep) {
    rotated = false;
    for (std::size_t p = 0; p + 1 < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        double* const row_p = a.data() + p * n;
        double* const row_q = a.data() + q * n;
        const double at_p = row_p[p];
        const double at_q = row_q[q];
        const double off = row_p[q];
        if (!(off * off > kNoRotation * std::fabs(at_p * at_q))) continue;
        rotated = true;
        const double theta = (at_q - at_p) / (2 * off);
        if (!std::isfinite(theta)) continue;
        const double t = (theta < 0 ? -1 : 1) / (std::fabs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1);
        const double s = t * c;
        // Both rows; the columns are the same numbers.
        rotate(c, s, row_p, row_q, n);
        for (std::size_t k = 0; k < n; ++k) {
          a[k * n + p] = row_p[k];
          a[k * n + q] = row_q[k];
        }
        row_p[p] = at_p - t * off;
        row_q[q] = at_q + t * off;
        row_p[q] = row_q[p] = 0;
        rotate(c, s, v.data() + p * n, v.data() + q * n, n);
      }
    }
  }
}

}  // namespace gradcomp
