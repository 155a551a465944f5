#include "codecs/adaptive/rate_control.hpp"

#include <algorithm>
#include <limits>

#include "base/bytes.hpp"
#include "codec/frame_layout.hpp"
#include "codecs/adaptive/bucket_search.hpp"
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
  BucketSearch search(options_);
  double fixed = 0;  // bytes that do not depend on the step
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
    const std::uint32_t bits = kernels().max_magnitude(x.data(), x.size());
    if (bits >= kInfBits) plan.step = std::numeric_limits<float>::quiet_NaN();
    if (bits >= kInfBits || bits_float(bits) < kSmallest) {
      fixed += 1;
      continue;
    }
    search.add(&plan, &tensors[i], bits_float(bits));
  }
  if (search.empty()) return {};
  const double asked = rate_ * search.elements() / 8;
  return search.run(std::max({asked - fixed, asked / 2, kLeastBytes}), scratch);
}

}  // namespace gradcomp
