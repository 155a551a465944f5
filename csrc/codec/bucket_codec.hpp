// Interface of codecs that look at all tensors of a bucket before they encode any of them. They may
// keep state of each tensor from step to step. Codec::bucket() returns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/span.hpp"
#include "base/status.hpp"
#include "codec/codec.hpp"
#include "codec/feedback.hpp"

namespace gradcomp {

// Results of plan() for the whole bucket, cached for encode(). Only its codec knows their type.
class BucketWork {
 public:
  BucketWork() = default;
  BucketWork(const BucketWork&) = delete;
  BucketWork& operator=(const BucketWork&) = delete;
  virtual ~BucketWork() = default;
};

// BucketCall::plan of a tensor that is encoded by itself.
inline constexpr std::uint64_t kNoPlan = ~std::uint64_t{0};

// The part of a Call that bucket codecs alone read.
struct BucketCall {
  // encode only: plan()'s result for this tensor, in a unit that its codec alone knows: a number
  // of elements or an index, for example.
  std::uint64_t plan = kNoPlan;
  BucketWork* work = nullptr;  // encode only: plan()'s cached work, or nullptr
  // State from learn(); encoder and decoder need the same. Empty: none. A payload that was encoded
  // without a basis decodes with any.
  Span<const float> basis = {};
};

// A tensor of a bucket, as plan() sees it.
struct BucketTensor {
  Span<const float> x;
  std::size_t cols = 0;  // Call::cols
  // Encoder state of this tensor: BucketCodec::carried() numbers, zeros before the first step.
  // plan() reads those of the last step and overwrites them. Empty: no state is kept.
  Span<float> carried = {};
  Span<const float> basis = {};  // BucketCall::basis
  // Of x, already corrected; nullptr: x is the gradient itself.
  const Feedback* feedback = nullptr;
};

// An interface next to Codec, so that codecs may derive from any other base class, too.
class BucketCodec {
 public:
  // Looks at all tensors of a bucket at once. Sets plans[i], the BucketCall::plan of tensor i,
  // and may set `work`.
  virtual Status plan(Span<const BucketTensor> tensors, const Call& call, Span<std::uint64_t> plans,
                      std::unique_ptr<BucketWork>* work) const = 0;

  // Size of BucketTensor::carried. Only the encoder uses these numbers.
  virtual std::size_t carried() const noexcept { return 0; }

  // Size of BucketCall::basis for a tensor of n elements, for codecs with caps().learns; `cols` as
  // in Call. 0: this tensor has none.
  virtual std::size_t basis_size(std::size_t n, std::size_t cols) const noexcept {
    (void)n, (void)cols;
    return 0;
  }

  // Updates a basis (basis_size() numbers, zeros before the first step) with the average that the
  // ranks decoded in a step. The result depends on the averages alone, so all ranks have the same
  // basis.
  virtual Status learn(Span<const float> average, const Call& call, Span<float> basis) const {
    (void)average, (void)call, (void)basis;
    return {Code::kSpec, "this codec learns nothing from averages"};
  }

 protected:
  ~BucketCodec() = default;
};

// The sizes of a codec's state; 0 for codecs without any.
inline std::size_t carried_size(const Codec& codec) noexcept {
  const BucketCodec* const bucket = codec.bucket();
  return bucket == nullptr ? 0 : bucket->carried();
}
inline std::size_t basis_size(const Codec& codec, std::size_t n, std::size_t cols) noexcept {
  const BucketCodec* const bucket = codec.bucket();
  return bucket == nullptr ? 0 : bucket->basis_size(n, cols);
}

// BucketCodec::learn(), or an error for codecs that learn nothing.
inline Status learn(const Codec& codec, Span<const float> average, const Call& call,
                    Span<float> basis) {
  const BucketCodec* const bucket = codec.bucket();
  if (bucket == nullptr) return {Code::kSpec, "this codec learns nothing from averages"};
  return bucket->learn(average, call, basis);
}

inline std::uint64_t plan_of(const Call& call) noexcept {
  return call.bucket == nullptr ? kNoPlan : call.bucket->plan;
}
inline BucketWork* work_of(const Call& call) noexcept {
  return call.bucket == nullptr ? nullptr : call.bucket->work;
}
inline Span<const float> basis_of(const Call& call) noexcept {
  return call.bucket == nullptr ? Span<const float>() : call.bucket->basis;
}

}  // namespace gradcomp
