// Logarithms and powers of 2 by sums, products and quotients alone: those of the C library are not
// the same bits everywhere, and must not decide what an encoder writes.
#pragma once

#include <cmath>

namespace gradcomp {

// Of a finite x above 0, with an error of about 1e-14.
inline double portable_log2(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // exact, in [1/2, 1)
  if (mantissa < 0.7071067811865476) {
    mantissa *= 2;
    --exponent;
  }
  // ln m = 2 artanh((m - 1) / (m + 1))
  const double t = (mantissa - 1) / (mantissa + 1);
  double sum = 0;
  for (int k = 17; k >= 1; k -= 2) sum = sum * t * t + 1.0 / k;
  return exponent + 2 * t * sum / 0.6931471805599453;
}

// Of an x whose power of 2 is in the range of float64, with a relative error of about 1e-15.
inline double portable_exp2(double x) {
  const double whole = std::floor(x + 0.5);
  const double t = (x - whole) * 0.6931471805599453;
  double sum = 1;
  for (int k = 14; k >= 1; --k) sum = sum * t / k + 1;
  return std::ldexp(sum, static_cast<int>(whole));
}

}  // namespace gradcomp
