// Norms of buckets of elements, which their levels are fractions of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

enum class Norm { kMax, kL2 };

// A bucket is measured in pieces, cut at multiples of kChunk and joined in order. So threads can
// share the work, and the sum does not depend on their number.
struct BucketNorms {
  std::size_t bucket;
  Norm norm;

  std::size_t buckets(std::size_t n) const { return n / bucket + (n % bucket != 0 ? 1 : 0); }
  double measure(const float* x, std::size_t n) const;
  double join(double a, double b) const;
  float norm_of(double measure) const;
  float bucket_norm(Span<const float> x, std::size_t at) const;
  // Checks the norms at the head of a payload of n elements.
  Status check(Span<const std::uint8_t> in, std::size_t n) const;
};

}  // namespace gradcomp
