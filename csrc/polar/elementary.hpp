// Elementary functions from sums, products and quotients alone, with the same bits on every
// platform, unlike those of the standard library. Error about 10^-11.
#pragma once

#include <cmath>

namespace gradcomp {

inline constexpr double kLn2 = 0.693147180559945309;

// e^x for |x| < 700
inline double portable_exp(double x) {
  const double halvings = std::floor(x / kLn2 + 0.5);
  const double rest = x - halvings * kLn2;  // at most ln(2) / 2
  double sum = 1;
  for (int i = 12; i > 0; --i) sum = 1 + sum * rest / i;
  return std::ldexp(sum, static_cast<int>(halvings));
}

inline double portable_exp2(double x) { return portable_exp(x * kLn2); }

// log2(x) for x > 0
inline double portable_log2(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < 0.70710678) {
    mantissa *= 2;
    --exponent;
  }
  const double t = (mantissa - 1) / (mantissa + 1);  // at most 0.172
  double sum = 0;
  for (int i = 13; i > 0; i -= 2) sum = sum * t * t + 1.0 / i;
  return exponent + 2 * t * sum / kLn2;
}

}  // namespace gradcomp
