#include "codec/feedback.hpp"

#include "base/chunks.hpp"
#include "codec/sparse_interface.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {

void Feedback::correct(std::size_t begin, std::size_t end) const {
  float* const residual = residual_.data() + begin;
  const float* const grad = grad_ + begin;
  const std::size_t count = end - begin;
  const bool finite =
      corrects_ ? kernels().correct_momentum(residual, correction_.momentum.data() + begin, grad,
                                             correction_.factor, correction_.scale,
                                             correction_.nesterov, count)
                : kernels().compensate(residual, grad, beta_, gamma_, count);
  if (!finite) {
    finite_.store(false, std::memory_order_relaxed);
  }
}

void Feedback::correct_all() const {
  if (corrected_) return;
  for_ranges(residual_.size(),
             [&](std::size_t, std::size_t begin, std::size_t end) { correct(begin, end); });
  corrected_ = true;
}

double Feedback::gradient_energy() const {
  const auto factor = static_cast<double>(corrects_ ? correction_.scale : gamma_);
  return factor * factor * kernels().sum_squares(grad_, residual_.size());
}

namespace {

void zero_nonfinite(Span<float> x) {
  for_ranges(x.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    kernels().zero_nonfinite(x.data() + begin, end - begin);
  });
}

// Momentum at the elements that a payload carries becomes 0.
Status mask_momentum(const Codec& codec, Span<const std::uint8_t> payload, const Call& call,
                     Span<float> momentum) {
  const SparseInterface* const sparse = codec.sparse();
  if (sparse == nullptr) return {Code::kSpec, "this codec's payloads carry all elements"};
  return sparse->zero_sent(payload, call, momentum);
}

}  // namespace

// The bits of both ways are the same, by the rule of Codec::decode_add.
Status subtract_payload(const Codec& codec, Span<const std::uint8_t> payload, const Call& call,
                        const Feedback& feedback) {
  const Span<float> residual = feedback.residual();
  const Span<float> decoded = feedback.decoded();
  if (decoded.empty()) return codec.decode_add(payload, call, -1.0f, residual);
  GRADCOMP_TRY(codec.decode(payload, call, decoded));
  for_ranges(residual.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(decoded.data() + begin);
    kernels().f32_add(bytes, -1.0f, residual.data() + begin, end - begin);
  });
  return {};
}

Status encode_payload(const Codec& codec, Span<const float> x, const Call& call,
                      Span<std::uint8_t> out, std::size_t* written) {
  const Feedback* const feedback = call.feedback;
  if (feedback == nullptr) return codec.encode(x, call, out, written);
  const Span<float> residual = feedback->residual();
  const Caps caps = codec.caps();
  if (caps.fuses_feedback) {
    GRADCOMP_TRY(codec.encode(x, call, out, written));
  } else {
    feedback->correct_all();
    Call plain = call;
    plain.feedback = nullptr;
    GRADCOMP_TRY(codec.encode(x, plain, out, written));
    GRADCOMP_TRY(subtract_payload(codec, {out.data(), *written}, plain, *feedback));
  }
  const Correction* const correction = feedback->correction();
  if (correction != nullptr && correction->masking) {
    Call plain = call;
    plain.feedback = nullptr;
    GRADCOMP_TRY(mask_momentum(codec, {out.data(), *written}, plain, correction->momentum));
  }
  if (!feedback->finite() || !caps.finite) {
    zero_nonfinite(residual);
    if (correction != nullptr) zero_nonfinite(correction->momentum);
  }
  return {};
}

}  // namespace gradcomp
