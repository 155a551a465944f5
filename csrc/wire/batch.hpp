// Many tensors in one call: the frames of a bucket, one after the other. Large tensors are worked
// on by all threads in turn, small ones by one thread each.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/compiled.hpp"
#include "codec/feedback.hpp"

namespace gradcomp {

struct EncodeItem {
  const CompiledCodec* codec = nullptr;
  Span<const float> x;  // with a feedback: its residual
  std::uint64_t stream = 0;
  const Feedback* feedback = nullptr;
  std::size_t cols = 0;          // Call::cols
  Span<float> carried = {};      // BucketTensor::carried
  Span<const float> basis = {};  // BucketCall::basis
};

// Upper bound of the bytes of all frames.
std::size_t max_batch_size(Span<const EncodeItem> items) noexcept;

// Writes the items' frames to `out` without gaps; sizes[i] is that of frame i. Items of one spec
// whose codec has BucketCodec share(). After an error the residuals of some items may hold the
// corrected gradients, and others what encoding left.
Status encode_batch(Span<const EncodeItem> items, Span<std::uint8_t> out, Span<std::size_t> sizes);

struct DecodeItem {
  const CompiledCodec* codec = nullptr;
  Span<const Span<const std::uint8_t>> frames;
  Span<float> acc;
  Span<const float> basis = {};  // BucketCall::basis
};

// Where a batch failed.
struct BatchFault {
  std::size_t item = 0;
  std::size_t frame = 0;
};

// acc += weight * decode(frame), frame after frame, for each item. On an error the accs must be
// discarded, and `fault` is the first frame that was refused.
Status decode_batch_add(Span<const DecodeItem> items, float weight, BatchFault* fault);

}  // namespace gradcomp
