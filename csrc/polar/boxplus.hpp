// Operations of successive cancellation on log-likelihood ratios L = ln P(0) / P(1).
#pragma once

#include <algorithm>
#include <cmath>

namespace gradcomp::polar_code {

// LLR of a certain bit: sums of 2^20 of them stay finite, and adding a real LLR changes nothing.
inline constexpr double kCertain = 1e30;

// ln(1 + e^-x) for x >= 0. Beyond 40 it is below the rounding error of the sum it is added to.
inline double log1p_exp(double x) noexcept { return x > 40 ? 0.0 : std::log1p(std::exp(-x)); }

inline double min_sum(double a, double b) noexcept {
  const double least = std::min(std::fabs(a), std::fabs(b));
  return (a < 0) != (b < 0) ? -least : least;
}

// The check-node rule f(a, b) = ln (1 + e^(a+b)) / (e^a + e^b), exact ...
struct ExactRule {
  static double combine(double a, double b) noexcept {
    const double approximate = min_sum(a, b);
    if (std::fabs(approximate) > 1) {
      return approximate + (log1p_exp(std::fabs(a + b)) - log1p_exp(std::fabs(a - b)));
    }
    // The sum above would lose the digits of small results, and with them their sign:
    // e^f - 1 = (1 - e^-a)(1 - e^-b) / (e^-a + e^-b).
    const double p = std::expm1(-std::fabs(a)), q = std::expm1(-std::fabs(b));
    return std::copysign(std::log1p(p * q / (2 + p + q)), approximate);
  }
  // Penalty of deciding 0 at this LLR in a path metric: -ln P(0).
  static double cost(double llr) noexcept {
    return std::max(0.0, -llr) + log1p_exp(std::fabs(llr));
  }
};

// ... and its hardware-friendly approximation.
struct MinSumRule {
  static double combine(double a, double b) noexcept { return min_sum(a, b); }
  static double cost(double llr) noexcept { return std::max(0.0, -llr); }
};

}  // namespace gradcomp::polar_code
