#include "codecs/adaptive/step_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/logarithm.hpp"

namespace gradcomp {
namespace {

// Steps and their inverses stay normal float32 numbers.
constexpr double kMost = 0x1p126;

// Slopes are measured between steps that differ by this binary logarithm, or more.
constexpr double kApart = 0.01;
constexpr double kLeastSlope = 0.5;
constexpr double kMostSlope = 8;

}  // namespace

StepSearch find_step(double guess, double least, double target, double tolerance, int passes,
                     double* slope, const std::function<double(float)>& fn) {
  double step = guess;
  double last = 0, last_value = 0;  // the step before; 0: none yet
  double low = 0, low_value = 0;    // the largest step known to be too small, 0: none yet
  double high = 0, high_value = 0;  // the smallest one known to be too large
  double best = 0, best_value = 0, best_miss = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < passes; ++pass) {
    step = std::min(std::max(step, least), kMost);
    const double value = fn(static_cast<float>(step));
    const double miss = std::fabs(value / target - 1);
    // Of an outlier's steps, which all take few bytes, the finest leaves the smallest residual.
    if (miss < best_miss || (miss == best_miss && low == 0 && step < best)) {
      best_miss = miss;
      best = step;
      best_value = value;
    }
    if (last > 0 && value > 0 && last_value > 0) {
      const double apart = portable_log2(step / last);
      if (std::fabs(apart) >= kApart) {
        const double found = portable_log2(last_value / value) / apart;
        *slope = std::min(std::max(found, kLeastSlope), kMostSlope);
      }
    }
    last = step;
    last_value = value;
    if (miss <= tolerance) break;
    if (value > target) {
      low = step;
      low_value = value;
    } else {
      high = step;
      high_value = value;
      if (step <= least) break;
    }
    if (low == 0 || high == 0) {
      // The bounds hold even where the value is far from the target, or 0.
      const double off = std::min(std::max(value / target, 0.125), 8.0);
      step *= std::min(std::max(portable_exp2(portable_log2(off) / *slope), 0.25), 4.0);
      continue;
    }
    // Interpolates between the two logarithms. Every third time it takes the middle, as one of the
    // bounds may stay far away.
    const double part = portable_log2(low_value / target) / portable_log2(low_value / high_value);
    const double within = pass % 3 == 2 ? 0.5 : std::min(std::max(part, 0.05), 0.95);
    step = low * portable_exp2(within * portable_log2(high / low));
  }
  return {static_cast<float>(best), best_value, static_cast<float>(low)};
}

}  // namespace gradcomp
