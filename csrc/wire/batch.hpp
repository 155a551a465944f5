// Many tensors in one call: the frames of a bucket, one after the other. All threads work together
// on one large tensor after the other; small tensors are processed in parallel, each by one thread.
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

// Writes the items' frames to `out` without gaps; sizes[i] is the size of frame i. Items of one
// spec are planned together if its codec has BucketCodec. After an error some residuals may be
// corrected gradients, and others the result of encoding.
Status encode_batch(Span<const EncodeItem> items, Span<std::uint8_t> out, Span<std::size_t> sizes);

struct DecodeItem {
  const CompiledCodec* codec = nullptr;
  Span<const Span<const std::uint8_t>> frames;
  Span<float> acc;
  Span<const float> basis = {};  // BucketCall::basis
  // acc, which holds zeros, becomes each element's sum over the number of frames that carry it; for
  // codecs with Caps::sparse.
  bool over_senders = false;
  // Frames whose L2 norm is above the median of the norms are scaled down to it; then averaged over
  // all frames, unless over_senders.
  bool clips = false;
  // acc need not hold zeros: its previous elements are ignored.
  bool replaces = false;
  // Feedback::decoded() of frame number `own`, which then need not be decoded; empty: none is
  // known.
  Span<const float> decoded = {};
  std::size_t own = 0;
};

// Position of a refused frame.
struct BatchFault {
  std::size_t item = 0;
  std::size_t frame = 0;
};

// acc += weight * decode(frame), frame after frame, for each item; piece after piece if the codec
// can open its payloads. After an error every acc must be discarded, and `fault` is the first frame
// that was refused.
Status decode_batch_add(Span<const DecodeItem> items, float weight, BatchFault* fault);

}  // namespace gradcomp
