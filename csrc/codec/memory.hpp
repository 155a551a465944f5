// Memories: the arithmetic that a spec's memory stage adds around its codec. The Python package
// (gradcomp/exchange/memory.py) and engines without its rounds (the C interface) both use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "codec/compiled.hpp"
#include "codec/feedback.hpp"
#include "codec/stage.hpp"

namespace gradcomp {

// The functions below work on flat arrays of equal size, with all threads.

// Error feedback: residual = beta * residual + gamma * grad, the corrected gradient.
inline void compensate(Span<float> residual, Span<const float> grad, float beta, float gamma) {
  Feedback(residual, grad.data(), beta, gamma).correct_all();
}

// Error feedback, once the decode of all that was sent is known: residual -= sent. Elements that
// are not finite become 0.
void subtract_sent(Span<float> residual, Span<const float> sent);

// After a step that has sent a share of the residual: adds the part that waited, weight * before.
// Elements that are not finite become 0.
void keep_waiting(Span<float> residual, Span<const float> before, float weight);

// Signum's moving average: average = momentum * average + (1 - momentum) * grad; in the first step,
// grad. Returns whether all elements are finite.
bool update_average(Span<float> average, Span<const float> grad, double momentum, bool first);

// Largest L2 norm of a tensor's gradient on one of `world_size` ranks; infinity without clipping.
// `clip` and `clip_norm` are the parameters of momentum_correction.
double clip_limit(std::string_view clip, double clip_norm, std::size_t world_size);
// The L2 norm of a gradient; the same on every SIMD level.
double l2_norm(Span<const float> grad);
// Factor that reduces a gradient to that norm; 1 if its norm is smaller, or not finite.
float clip_scale(Span<const float> grad, double limit);

// Momentum correction: adds this step's momentum to the residual (DGC's velocity).
inline void correct_momentum(Span<float> velocity, Span<const float> grad,
                             const Correction& correction) {
  Feedback(velocity, grad.data(), correction).correct_all();
}
// As above, but the momentum's step goes to `step`: without compression no velocity is kept.
// Elements of the momentum that are not finite become 0.
void momentum_step(Span<float> step, Span<const float> grad, const Correction& correction);
// subtract_sent() for a velocity. With masking, the momentum of elements whose `sent` is not 0
// becomes 0, as do its elements that are not finite.
void subtract_sent(Span<float> velocity, Span<const float> sent, const Correction& correction);

// EF21: difference = grad - estimate. Returns whether all elements are finite; if not, all become
// NaN, so that codecs send NaN whichever elements they choose.
bool subtract_estimate(Span<float> difference, Span<const float> grad, Span<const float> estimate);
// EF21's result: out = mean + average, where `mean` is that of all ranks' estimates and `average`
// that of the differences they have sent. It is the next mean; there, elements that are not finite
// become 0. `out` may be `average`.
void add_average(Span<float> mean, Span<const float> average, Span<float> out);
// After add_average() has written `out`: estimate += difference - unsent, that is, what this rank
// has sent. Elements start again from 0 where `out` is not finite, and stay where nothing was sent
// of a difference that is not finite.
void add_sent(Span<float> estimate, Span<const float> difference, Span<const float> unsent,
              Span<const float> out);

// One tensor's arrays, which the caller owns: all 0 before the first step, empty if not kept.
struct MemoryArrays {
  Span<float> residual;
  Span<float> momentum;
};

// State of a tensor besides its arrays.
struct MemoryStep {
  bool first = true;  // the arrays are still all 0
  // For residuals that follow the learning rate: the rates of the residual's last step, 0 if there
  // was none, and of this one. At a rate of 0 the gradient is encoded without the residual.
  float last_lr = 0;
  float lr = 0;
};

// A memory stage for engines that send one payload per tensor and step.
class Memory {
 public:
  // `stage` must outlive this; nullptr: no memory.
  explicit Memory(const Stage* stage);

  bool keeps_residual() const noexcept { return kind_ == Kind::kResidual || corrects(); }
  // Whether the residual follows the learning rate.
  bool scales() const { return kind_ == Kind::kResidual && params_->choice("lr") == "scale"; }
  bool keeps_momentum() const noexcept { return kind_ == Kind::kSignum || corrects(); }

  // Writes the codec's payload for `grad` and updates the arrays.
  Status encode(const CompiledCodec& codec, Span<const float> grad, const MemoryArrays& arrays,
                std::size_t world_size, const MemoryStep& step, Call call, Span<std::uint8_t> out,
                std::size_t* written) const;

 private:
  enum class Kind { kNone, kResidual, kSignum, kMomentumCorrection, kEf21 };

  bool corrects() const noexcept { return kind_ == Kind::kMomentumCorrection; }

  Kind kind_ = Kind::kNone;
  const Params* params_ = nullptr;  // of the stage
};

}  // namespace gradcomp
