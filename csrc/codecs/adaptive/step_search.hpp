// Searches the quantization step at which a bucket takes a given number of bytes.
#pragma once

#include <functional>

namespace gradcomp {

// Result of a search.
struct StepSearch {
  float step;
  double value;       // of the function at `step`
  float too_low = 0;  // the largest step that was tried and found too small; 0: none
};

// Solves fn(step) = target for a positive function that falls with the step, from a first guess.
// `slope`: of the function's logarithm by that of the step, without its sign; a first estimate,
// which becomes the last one. Ends when the value is within `tolerance` of the target (as a
// fraction), at the step `least`, or after `passes` calls of fn; the result is the step that came
// nearest. Portable: it takes no function of the C library whose rounding differs.
StepSearch find_step(double guess, double least, double target, double tolerance, int passes,
                     double* slope, const std::function<double(float)>& fn);

}  // namespace gradcomp
