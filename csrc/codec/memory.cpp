#include "codec/memory.hpp"

#include <cmath>
#include <string>
#include <string_view>

#include "codec/feedback.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {

Memory::Memory(const Stage* stage) {
  if (stage == nullptr) return;
  const std::string_view name = stage->info->name;
  kind_ = name == "momentum_correction" ? Kind::kMomentumCorrection
          : name == "signum"            ? Kind::kSignum
                                        : Kind::kResidual;
  params_ = &stage->params;
}

float Memory::clip_scale(Span<const float> grad, std::size_t world_size) const {
  const std::string& clip = params_->choice("clip");
  if (clip == "none") return 1.0f;
  const double factor = clip == "scaled_norm" ? std::sqrt(static_cast<double>(world_size)) : 1.0;
  const double limit = params_->real("clip_norm") * factor;
  const double own = std::sqrt(kernels().sum_squares(grad.data(), grad.size()));
  return limit < own && std::isfinite(own) ? static_cast<float>(limit / own) : 1.0f;
}

Status Memory::encode(const CompiledCodec& codec, Span<const float> grad,
                      const MemoryArrays& arrays, std::size_t world_size, bool first, Call call,
                      Span<std::uint8_t> out, std::size_t* written) const {
  const auto encode = [&](Span<float> x, const Feedback& feedback) {
    call.feedback = &feedback;
    return encode_payload(*codec.codec, {x.data(), x.size()}, call, out, written);
  };
  switch (kind_) {
    case Kind::kNone:
      return codec.codec->encode(grad, call, out, written);
    case Kind::kResidual: {
      const auto beta = static_cast<float>(params_->real("beta"));
      const auto gamma = static_cast<float>(params_->real("gamma"));
      return encode(arrays.residual, Feedback(arrays.residual, grad.data(), beta, gamma));
    }
    case Kind::kMomentumCorrection: {
      Correction correction;
      correction.momentum = arrays.momentum;
      correction.factor = static_cast<float>(params_->real("momentum"));
      correction.scale = clip_scale(grad, world_size);
      correction.nesterov = params_->boolean("nesterov");
      // Without indices everything is sent, and momentum that left with it would be none.
      correction.masking = params_->boolean("masking") && codec.info->symbols == Symbols::kIndices;
      return encode(arrays.residual, Feedback(arrays.residual, grad.data(), correction));
    }
    case Kind::kSignum:
      break;
  }
  // As in memory.py, the weights are differences of doubles, rounded once.
  const double momentum = first ? 0.0 : params_->real("momentum");
  const Span<float> average = arrays.momentum;
  const bool finite =
      kernels().compensate(average.data(), grad.data(), static_cast<float>(momentum),
                           static_cast<float>(1.0 - momentum), average.size());
  GRADCOMP_TRY(codec.codec->encode({average.data(), average.size()}, call, out, written));
  if (!finite) kernels().zero_nonfinite(average.data(), average.size());
  return {};
}

}  // namespace gradcomp
