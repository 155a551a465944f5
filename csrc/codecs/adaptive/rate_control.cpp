#include "codecs/adaptive/rate_control.hpp"

#include <algorithm>
#include <limits>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/frame_layout.hpp"
#include "codecs/adaptive/bucket_search.hpp"
#include "codecs/adaptive/carried_state.hpp"
#include "codecs/adaptive/payload.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Tensors with smaller magnitudes alone become zeros.
constexpr float kSmallest = 0x1p-100f;

// The payloads of a bucket may take so many bytes, however few elements it has.
constexpr double kLeastBytes = 32;

}  // namespace

Status RateControl::plan(Span<const BucketTensor> tensors, Scratch& scratch,
                         std::vector<TensorPlan>* plans) const {
  plans->assign(tensors.size(), {});
  std::vector<std::uint32_t> largest(tensors.size(), 0);  // magnitude, as bits
  std::vector<double> squares(tensors.size(), 0);
  std::vector<double> energies(tensors.size(), 0);  // of the gradients, before error feedback
  for_tensors(
      tensors.size(), [&](std::size_t i) { return tensors[i].x.size(); },
      [&](std::size_t i) {
        const Span<const float> x = tensors[i].x;
        if (x.size() < kMinAdaptive) return;
        largest[i] = kernels().max_magnitude(x.data(), x.size());
        if (target_.error == 0 && !options_.energy) return;
        const Feedback* const feedback = tensors[i].feedback;
        if (target_.error > 0 || feedback == nullptr) {
          squares[i] = kernels().sum_squares(x.data(), x.size());
        }
        energies[i] = feedback == nullptr ? squares[i] : feedback->gradient_energy();
      });
  BucketSearch search(options_);
  double fixed = 0;        // bytes that do not depend on the step
  double energy = 0;       // with an error: of the elements to search for
  double mean_energy = 0;  // of their gradients
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Span<const float> x = tensors[i].x;
    TensorPlan& plan = (*plans)[i];
    plan.quantized = Quantized(x.data(), MatrixShape::of(x.size(), tensors[i].cols));
    search.add_elements(x.size());
    fixed += static_cast<double>(kFrameBytes);
    if (x.size() < kMinAdaptive) {
      fixed += 4 * static_cast<double>(x.size());
      continue;
    }
    const std::uint32_t bits = largest[i];
    if (bits >= kInfBits) plan.step = std::numeric_limits<float>::quiet_NaN();
    if (bits >= kInfBits || bits_float(bits) < kSmallest) {
      fixed += 1;
      continue;
    }
    search.add(&plan, &tensors[i], bits_float(bits), options_.energy ? energies[i] : 0);
    if (target_.error == 0) continue;
    energy += squares[i];
    mean_energy += EnergyMean::next(energies[i], x.size(), tensors[i].carried);
  }
  if (search.empty()) return {};
  const double asked = target_.rate * search.elements() / 8;
  SearchGoal goal;
  goal.most = std::max({asked - fixed, asked / 2, kLeastBytes});
  if (target_.error > 0) {
    goal.error = target_.error * mean_energy;
    const double least = target_.min_rate * search.elements() / 8 - fixed;
    goal.least = std::min(std::max(least, 0.0), goal.most);
    // All of it may wait.
    if (energy <= goal.error && goal.least == 0) return {};
  }
  return search.run(goal, scratch);
}

}  // namespace gradcomp
