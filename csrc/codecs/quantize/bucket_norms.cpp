#include "codecs/quantize/bucket_norms.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/payload.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Just below the largest float, so that level * (norm / levels) stays finite even if the quotient
// is rounded up.
constexpr float kLargestNorm = 0x1.FFFFFp127f;
// Buckets with smaller norms are sent as zeros: the inverse of the norm would not be finite.
constexpr float kSmallestNorm = 0x1p-96f;

}  // namespace

double BucketNorms::measure(const float* x, std::size_t n) const {
  if (norm == Norm::kL2) return kernels().sum_squares(x, n);
  return static_cast<double>(bits_float(kernels().max_magnitude(x, n)));
}

double BucketNorms::join(double a, double b) const {
  if (norm == Norm::kL2) return a + b;
  return a >= b || std::isnan(a) ? a : b;
}

float BucketNorms::norm_of(double measure) const {
  if (!std::isfinite(measure)) return bits_float(kNanBits);
  const double value = norm == Norm::kL2 ? std::sqrt(measure) : measure;
  if (value > static_cast<double>(kLargestNorm)) return kLargestNorm;
  const auto rounded = static_cast<float>(value);
  return rounded < kSmallestNorm ? 0.0f : rounded;
}

float BucketNorms::bucket_norm(Span<const float> x, std::size_t at) const {
  const std::size_t end = std::min((at + 1) * bucket, x.size());
  double total = 0;
  for (std::size_t begin = at * bucket; begin < end;) {
    const std::size_t stop = std::min(end, (begin / kChunk + 1) * kChunk);
    total = join(total, measure(x.data() + begin, stop - begin));
    begin = stop;
  }
  return norm_of(total);
}

Status BucketNorms::check(Span<const std::uint8_t> in, std::size_t n) const {
  const std::size_t head = 4 * buckets(n);
  if (in.size() < head) {
    return wire_error("the payload has " + std::to_string(in.size()) + " bytes; the norms of " +
                      std::to_string(n) + " elements alone have " + std::to_string(head));
  }
  for (std::size_t i = 0; i < buckets(n); ++i) {
    const auto bits = load<std::uint32_t>(in.data() + 4 * i);
    if (bits > float_bits(kLargestNorm) && bits != kNanBits) {
      return wire_error("the norm of bucket " + std::to_string(i) +
                        " is negative or beyond the largest");
    }
  }
  return {};
}

}  // namespace gradcomp
