// State of a tensor that is kept from one step to the next: where the search starts, so that it
// need not start over, and the mean energy of the tensor's gradients.
#pragma once

#include <cstddef>

#include "base/span.hpp"

namespace gradcomp {

struct CarriedState {
  // Quantization step, in root mean squares of the elements of the bucket, or of the errors wanted
  // of them; 0: no state yet.
  float step = 0;
  float factor_step = 0;  // step of the factors, in quantization steps
  float rank = 0;         // of a turned matrix -1 - rank
  float due = 0;          // training steps until ranks are tried again
  float gain = 0;         // bytes of the bucket divided by the bytes that its samples had promised

  static constexpr std::size_t kNumbers = 5;  // the first ones of BucketTensor::carried
  // Most training steps between two trials of a tensor's ranks.
  static constexpr std::size_t kRankPeriod = 16;

  // BucketTensor::carried, which may be empty.
  static CarriedState from(Span<const float> numbers);
  void store(Span<float> numbers) const;

  // The rank of the low-rank part.
  std::size_t pairs() const;
  bool turned() const { return rank < 0; }
  // Whether a search can start from it: false if there is no state, or if numbers are out of range,
  // e.g. from a damaged checkpoint.
  bool usable() const;
};

// With a quality target: the running mean of a tensor's energy, |gradient|^2 over all elements. It
// starts from zeros, so it is divided by the weight of the steps it has seen, as Adam does.
struct EnergyMean {
  float square = 0;  // running mean of the mean square
  float weight = 0;  // of the steps seen, below 1

  static constexpr std::size_t kNumbers = 2;  // after those of CarriedState
  static constexpr float kWeight = 0.05f;     // of a step
  // A step counts with at most so many times the mean: after a spike, nothing would be sent until
  // it has faded.
  static constexpr float kMostSquare = 16;

  // Adds the energy of this step's gradient to the mean in `carried`. Returns the mean energy, with
  // nothing carried that of this step alone; steps that are not finite do not count.
  static double next(double energy, std::size_t elements, Span<float> carried);
};

}  // namespace gradcomp
