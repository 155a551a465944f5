// Logarithms and powers of 2, computed only from sums, products and quotients. Results of the C
// library differ between platforms, and must not decide the bytes that an encoder writes.
#pragma once

#include <cmath>

namespace gradcomp {

// log2(x) of a finite x above 0, with an error of about 1e-14.
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

// 2^x, which must be in the range of float64; relative error about 1e-15.
inline double portable_exp2(double x) {
  const double whole = std::floor(x + 0.5);
  const double t = (x - whole) * 0.6931471805599453;
  double sum = 1;
  for (int k = 14; k >= 1; --k) sum = sum * t / k + 1;
  return std::ldexp(sum, static_cast<int>(whole));
}

}  // namespace gradcomp
