// The sample on which `sampled_topk` estimates its threshold.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace gradcomp {

struct Sample {
  std::size_t stride;  // 1: the whole tensor
  std::size_t rank;    // rank of the threshold among the sampled magnitudes, from the largest
};

// For k of n elements, with the sizes of the reference implementation, where the ratio is k / n.
inline Sample sample_of(double sample_ratio, std::size_t k, std::size_t n) noexcept {
  if (k == 0 || sample_ratio >= 1.0) return {1, k};
  const std::size_t two_kept = (2 * n + k - 1) / k;  // a sample of this size holds about 2 of the k
  if (n <= two_kept) return {1, k};
  const auto wanted = static_cast<std::size_t>(std::ceil(static_cast<double>(n) * sample_ratio));
  const std::size_t least = std::max(wanted, two_kept);
  // Odd, so that it is not a multiple of a matrix's even row length, and at worst slightly too
  // small.
  std::size_t stride = (n + 32 * least - 1) / (32 * least) * 32 + 1;
  while (n / stride < least) stride -= 8;
  return {stride, (n / stride * k + n - 1) / n};
}

}  // namespace gradcomp
