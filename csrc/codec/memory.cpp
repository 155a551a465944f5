#include "codec/memory.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/chunks.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Elements that stay in the first cache between two passes.
constexpr std::size_t kBlock = 2048;

}  // namespace

void subtract_sent(Span<float> residual, Span<const float> sent) {
  for_ranges(residual.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const float unsent = residual[i] - sent[i];
      residual[i] = std::isfinite(unsent) ? unsent : 0.0f;
    }
  });
}

void subtract_sent(Span<float> velocity, Span<const float> sent, const Correction& correction) {
  const Span<float> momentum = correction.momentum;
  const bool masking = correction.masking;
  subtract_sent(velocity, sent);
  for_ranges(momentum.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const bool drops = (masking && sent[i] != 0.0f) || !std::isfinite(momentum[i]);
      momentum[i] = drops ? 0.0f : momentum[i];
    }
  });
}

bool update_average(Span<float> average, Span<const float> grad, double momentum, bool first) {
  const double kept = first ? 0.0 : momentum;
  // The weight of the gradient is a difference of doubles, rounded once.
  const Feedback feedback(average, grad.data(), static_cast<float>(kept),
                          static_cast<float>(1.0 - kept));
  feedback.correct_all();
  return feedback.finite();
}

double clip_limit(std::string_view clip, double clip_norm, std::size_t world_size) {
  if (clip == "none") return std::numeric_limits<double>::infinity();
  return clip == "scaled_norm" ? clip_norm * std::sqrt(static_cast<double>(world_size)) : clip_norm;
}

double l2_norm(Span<const float> grad) {
  // One thread: the order of the sum must not depend on their number.
  return std::sqrt(kernels().sum_squares(grad.data(), grad.size()));
}

float clip_scale(Span<const float> grad, double limit) {
  if (std::isinf(limit)) return 1.0f;
  const double norm = l2_norm(grad);
  return limit < norm && std::isfinite(norm) ? static_cast<float>(limit / norm) : 1.0f;
}

void momentum_step(Span<float> step, Span<const float> grad, const Correction& correction) {
  float* const momentum = correction.momentum.data();
  for_ranges(step.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    const std::size_t n = end - begin;
    // -0 is the neutral element of addition: the sum is the step, with the signs of its zeros.
    std::fill_n(step.data() + begin, n, -0.0f);
    kernels().correct_momentum(step.data() + begin, momentum + begin, grad.data() + begin,
                               correction.factor, correction.scale, correction.nesterov, n);
    kernels().zero_nonfinite(momentum + begin, n);
  });
}

void keep_waiting(Span<float> residual, Span<const float> before, float weight) {
  const Feedback feedback(residual, before.data(), 1.0f, weight);
  feedback.correct_all();
  if (!feedback.finite()) kernels().zero_nonfinite(residual.data(), residual.size());
}

bool subtract_estimate(Span<float> difference, Span<const float> grad, Span<const float> estimate) {
  const Feedback feedback(difference, grad.data(), -1.0f, 1.0f);
  for_blocks(difference.size(), kBlock, [&](std::size_t, std::size_t begin, std::size_t n) {
    std::copy_n(estimate.data() + begin, n, difference.data() + begin);
    feedback.correct(begin, begin + n);
  });
  if (feedback.finite()) return true;
  std::fill_n(difference.data(), difference.size(), std::numeric_limits<float>::quiet_NaN());
  return false;
}

void add_average(Span<float> mean, Span<const float> average, Span<float> out) {
  for_blocks(mean.size(), kBlock, [&](std::size_t, std::size_t begin, std::size_t n) {
    float* const next = mean.data() + begin;
    const bool finite = kernels().compensate(next, average.data() + begin, 1.0f, 1.0f, n);
    std::copy_n(next, n, out.data() + begin);
    if (!finite) kernels().zero_nonfinite(next, n);
  });
}

void add_sent(Span<float> estimate, Span<const float> difference, Span<const float> unsent,
              Span<const float> out) {
  for_blocks(estimate.size(), kBlock, [&](std::size_t, std::size_t begin, std::size_t n) {
    float* const kept = estimate.data() + begin;
    float next[kBlock];
    std::copy_n(unsent.data() + begin, n, next);
    const bool sent = kernels().compensate(next, difference.data() + begin, -1.0f, 1.0f, n);
    const bool finite = kernels().compensate(next, kept, 1.0f, 1.0f, n);
    const float* const result = out.data() + begin;
    if (sent && finite && kernels().max_magnitude(result, n) < kInfBits) {
      std::copy_n(next, n, kept);
      return;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const float moved = std::isfinite(next[i]) ? next[i] : kept[i];
      kept[i] = std::isfinite(result[i]) ? moved : 0.0f;
    }
  });
}

Memory::Memory(const Stage* stage) {
  if (stage == nullptr) return;
  const std::string_view name = stage->info->name;
  kind_ = name == "momentum_correction" ? Kind::kMomentumCorrection
          : name == "signum"            ? Kind::kSignum
          : name == "ef21"              ? Kind::kEf21
                                        : Kind::kResidual;
  params_ = &stage->params;
}

Status Memory::encode(const CompiledCodec& codec, Span<const float> grad,
                      const MemoryArrays& arrays, std::size_t world_size, const MemoryStep& step,
                      Call call, Span<std::uint8_t> out, std::size_t* written) const {
  const auto encode = [&](Span<float> x, const Feedback& feedback) {
    call.feedback = &feedback;
    return encode_payload(*codec.codec, {x.data(), x.size()}, call, out, written);
  };
  switch (kind_) {
    case Kind::kNone:
      return codec.codec->encode(grad, call, out, written);
    case Kind::kResidual: {
      if (params_->real("limit") != 0 || params_->integer("reset_every") != 0) {
        return {Code::kSpec,
                "residual(limit=...) and residual(reset_every=...) need a running norm and the "
                "number of the step, which this interface has no "
                "place for: leave them out"};
      }
      double weight = params_->real("beta");
      if (scales()) {
        if (step.lr == 0) return codec.codec->encode(grad, call, out, written);
        if (step.last_lr != 0) weight *= static_cast<double>(step.last_lr) / step.lr;
      }
      const double average = params_->real("average");
      const auto beta = static_cast<float>(weight * (1.0 - average));
      const auto gamma = static_cast<float>(params_->real("gamma"));
      const Feedback feedback(arrays.residual, grad.data(), beta, gamma);
      if (average == 0) return encode(arrays.residual, feedback);
      const std::vector<float> before(arrays.residual.begin(), arrays.residual.end());
      GRADCOMP_TRY(encode(arrays.residual, feedback));
      keep_waiting(arrays.residual, {before.data(), before.size()},
                   static_cast<float>(weight * average));
      return {};
    }
    case Kind::kMomentumCorrection: {
      const std::string_view clip = params_->choice("clip");
      if (clip == "joint_norm") {
        return {Code::kSpec,
                "clip=joint_norm needs the norms of all ranks, which this interface does not know: "
                "use clip=scaled_norm"};
      }
      Correction correction;
      correction.momentum = arrays.momentum;
      correction.factor = static_cast<float>(params_->real("momentum"));
      correction.scale = clip_scale(grad, clip_limit(clip, params_->real("clip_norm"), world_size));
      correction.nesterov = params_->boolean("nesterov");
      // Without indices all elements are sent: masking would drop the whole momentum.
      correction.masking = params_->boolean("masking") && codec.info->symbols == Symbols::kIndices;
      return encode(arrays.residual, Feedback(arrays.residual, grad.data(), correction));
    }
    case Kind::kEf21:
      return {Code::kSpec,
              "ef21 needs the averages of all ranks, which this interface does not know: use "
              "'residual' instead"};
    case Kind::kSignum:
      break;
  }
  const Span<float> average = arrays.momentum;
  const bool finite = update_average(average, grad, params_->real("momentum"), step.first);
  GRADCOMP_TRY(codec.codec->encode({average.data(), average.size()}, call, out, written));
  if (!finite) kernels().zero_nonfinite(average.data(), average.size());
  return {};
}

}  // namespace gradcomp
