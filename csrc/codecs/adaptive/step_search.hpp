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
// `slope`: absolute slope of the function's logarithm over the logarithm of the step; pass a first
// estimate, which is replaced by the last one. Ends when the value is within `tolerance` of the
// target (as a fraction), at the step `least`, or after `passes` calls of fn; the result is the
// step that came nearest. Portable: it does not call functions of the C library that round
// differently between platforms.
StepSearch find_step(double guess, double least, double target, double tolerance, int passes,
                     double* slope, const std::function<double(float)>& fn);

}  // namespace gradcomp
