// State of a tensor that the search keeps from one step to the next, so that it need not start
// over.
#pragma once

#include <cstddef>

#include "base/span.hpp"

namespace gradcomp {

struct CarriedState {
  // Quantization step, in root mean squares of the bucket's elements; 0: no state yet.
  float step = 0;
  float factor_step = 0;  // step of the factors, in quantization steps
  float rank = 0;         // of a turned matrix -1 - rank
  float due = 0;          // training steps until ranks are tried again
  float gain = 0;         // bytes of the bucket divided by the bytes that its samples had promised

  static constexpr std::size_t kNumbers = 5;  // BucketCodec::carried()
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

}  // namespace gradcomp
