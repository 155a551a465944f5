// Rate control of `adaptive`: plans the tensors of a bucket so that together they take a given
// number of bits per element.
#pragma once

#include <vector>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"
#include "codec/bucket_codec.hpp"
#include "codecs/adaptive/candidate.hpp"
#include "codecs/adaptive/tensor_plan.hpp"

namespace gradcomp {

class RateControl {
 public:
  // `rate`: bits per element on the wire, frames included.
  RateControl(double rate, const SearchOptions& options) : rate_(rate), options_(options) {}

  // Makes one plan for each tensor; their buffers are in the scratch. Frame headers count towards
  // the rate, but never take more than half of it from the payloads.
  Status plan(Span<const BucketTensor> tensors, Scratch& scratch,
              std::vector<TensorPlan>* plans) const;

 private:
  double rate_;
  SearchOptions options_;
};

}  // namespace gradcomp
