// Rate control of `adaptive`: plans the tensors of a bucket so that together they take a given
// number of bits per element, or leave a given error.
#pragma once

#include <vector>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"
#include "codec/bucket_codec.hpp"
#include "codecs/adaptive/candidate.hpp"
#include "codecs/adaptive/tensor_plan.hpp"

namespace gradcomp {

struct RateTarget {
  double rate = 0;   // bits per element on the wire, frames included; with an error at most so many
  double error = 0;  // squared error in parts of the gradients' mean energy; 0: none
  double min_rate = 0;  // with an error: at least so many bits
};

class RateControl {
 public:
  RateControl(const RateTarget& target, const SearchOptions& options)
      : target_(target), options_(options) {}

  // Makes one plan for each tensor; their buffers are in the scratch. Frame headers count towards
  // the rate, but never take more than half of it from the payloads.
  Status plan(Span<const BucketTensor> tensors, Scratch& scratch,
              std::vector<TensorPlan>* plans) const;

 private:
  RateTarget target_;
  SearchOptions options_;
};

}  // namespace gradcomp
