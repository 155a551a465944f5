// Error feedback around a codec: corrected = beta * residual + gamma * grad; payload =
// encode(corrected); residual = corrected - decode(payload). Fast codecs fuse the three, so that
// the elements are read once from memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"

namespace gradcomp {

// Momentum correction (Lin et al.: Deep Gradient Compression, ICLR 2018, section 3.2): a step adds
// the momentum, not the gradient, to the residual, which the paper calls velocity.
struct Correction {
  Span<float> momentum;
  float factor = 0;  // of the momentum
  float scale = 1;   // of the gradient, from clipping
  bool nesterov = false;
  bool masking = true;  // momentum of sent elements becomes 0
};

// One tensor's residual during a call. Only encode touches the elements, each with one thread.
class Feedback {
 public:
  Feedback(Span<float> residual, const float* grad, float beta, float gamma)
      : residual_(residual), grad_(grad), beta_(beta), gamma_(gamma) {}
  Feedback(Span<float> residual, const float* grad, const Correction& correction)
      : residual_(residual), grad_(grad), corrects_(true), correction_(correction) {}

  // Encoding leaves decode(payload) there, of as many elements; a codec that fuses feedback does so
  // if its caps have decodes_slowly.
  void keep_decoded(Span<float> decoded) { decoded_ = decoded; }
  Span<float> decoded() const noexcept { return decoded_; }

  // Turns the elements [begin, end) of the residual into the corrected gradient. Once for each.
  void correct(std::size_t begin, std::size_t end) const;
  // The same for all elements; later calls do nothing.
  void correct_all() const;

  Span<float> residual() const noexcept { return residual_; }
  // The sum of squares of the gradient, as it is added to the residual or to the momentum.
  double gradient_energy() const;
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
  Span<float> decoded_ = {};
  mutable std::atomic<bool> finite_{true};
  mutable bool corrected_ = false;
};

// For codecs that fuse: correct() before elements are first read; residual_of() to subtract from.
inline void correct(const Call& call, std::size_t begin, std::size_t end) {
  if (call.feedback != nullptr) call.feedback->correct(begin, end);
}
inline float* residual_of(const Call& call) {
  return call.feedback == nullptr ? nullptr : call.feedback->residual().data();
}

// residual -= decode(payload), where codecs that fuse cannot do better.
Status subtract_payload(const Codec& codec, Span<const std::uint8_t> payload, const Call& call,
                        const Feedback& feedback);

// codec.encode(x); for a call with a feedback (x is its residual) all of error feedback, with the
// same bits whether the codec fuses it or not. Residuals that are not finite become 0: a NaN or Inf
// is sent at most once and never kept.
Status encode_payload(const Codec& codec, Span<const float> x, const Call& call,
                      Span<std::uint8_t> out, std::size_t* written);

}  // namespace gradcomp
