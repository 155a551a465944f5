// Error feedback around a codec: corrected = beta * residual + gamma * grad; its payload; residual
// = corrected - decode(payload). Codecs that are as fast as memory do all three while the elements
// are in the cache.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"

namespace gradcomp {

// Momentum correction (Lin et al.: Deep Gradient Compression, ICLR 2018, section 3.2): what a step
// adds to the residual, there called velocity, is not the gradient but its momentum.
struct Correction {
  Span<float> momentum;
  float factor = 0;  // of the momentum
  float scale = 1;   // of the gradient, as clipping demands
  bool nesterov = false;
  bool masking = true;  // what is sent leaves the momentum, too
};

// One tensor's residual in the making. The elements are touched by encode alone, each by one
// thread.
class Feedback {
 public:
  Feedback(Span<float> residual, const float* grad, float beta, float gamma)
      : residual_(residual), grad_(grad), beta_(beta), gamma_(gamma) {}
  Feedback(Span<float> residual, const float* grad, const Correction& correction)
      : residual_(residual), grad_(grad), corrects_(true), correction_(correction) {}

  // Makes the elements [begin, end) of the residual those of the corrected gradient. Once each.
  void correct(std::size_t begin, std::size_t end) const;
  // The same for all elements, where it was not done yet.
  void correct_all() const;

  Span<float> residual() const noexcept { return residual_; }
  // nullptr without momentum correction.
  const Correction* correction() const noexcept { return corrects_ ? &correction_ : nullptr; }
  // Whether all elements corrected so far were finite.
  bool finite() const noexcept { return finite_.load(std::memory_order_relaxed); }

 private:
  Span<float> residual_;
  const float* grad_;
  float beta_ = 1;
  float gamma_ = 1;
  bool corrects_ = false;
  Correction correction_;
  mutable std::atomic<bool> finite_{true};
  mutable bool corrected_ = false;
};

// For codecs that fuse: before elements are first read, and where what was sent is subtracted from.
inline void correct(const Call& call, std::size_t begin, std::size_t end) {
  if (call.feedback != nullptr) call.feedback->correct(begin, end);
}
inline float* residual_of(const Call& call) {
  return call.feedback == nullptr ? nullptr : call.feedback->residual().data();
}

// codec.encode(x); or, where the call has a feedback (x is then its residual), the whole of error
// feedback, with the same bits whether the codec fuses it or not. Residuals that are not finite
// become 0: a NaN or Inf is sent at most once and never stays behind.
Status encode_payload(const Codec& codec, Span<const float> x, const Call& call,
                      Span<std::uint8_t> out, std::size_t* written);

}  // namespace gradcomp
