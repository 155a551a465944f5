#include "core/feedback.hpp"

#include "core/thread_pool.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {

void Feedback::correct(std::size_t begin, std::size_t end) const {
  if (!kernels().compensate(residual_.data() + begin, grad_ + begin, beta_, gamma_, end - begin)) {
    finite_.store(false, std::memory_order_relaxed);
  }
}

void Feedback::correct_all() const {
  if (corrected_) return;
  for_ranges(residual_.size(),
             [&](std::size_t, std::size_t begin, std::size_t end) { correct(begin, end); });
  corrected_ = true;
}

Status encode_payload(const Codec& codec, Span<const float> x, const Call& call,
                      Span<std::uint8_t> out, std::size_t* written) {
  const Feedback* const feedback = call.feedback;
  if (feedback == nullptr) return codec.encode(x, call, out, written);
  const Span<float> residual = feedback->residual();
  if (codec.fuses_feedback()) {
    GRADCOMP_TRY(codec.encode(x, call, out, written));
  } else {
    feedback->correct_all();
    Call plain = call;
    plain.feedback = nullptr;
    GRADCOMP_TRY(codec.encode(x, plain, out, written));
    GRADCOMP_TRY(codec.decode_add({out.data(), *written}, plain, -1.0f, residual));
  }
  if (!feedback->finite() || !codec.caps().finite) {
    for_ranges(residual.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      kernels().zero_nonfinite(residual.data() + begin, end - begin);
    });
  }
  return {};
}

}  // namespace gradcomp
