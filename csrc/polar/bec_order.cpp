#include "polar/bec_order.hpp"

#include <algorithm>
#include <numeric>

namespace gradcomp {

std::vector<std::uint16_t> bec_ranks(unsigned log2, std::uint32_t erasure, std::size_t length) {
  const std::size_t n = std::size_t{1} << log2;
  std::vector<std::uint64_t> z(n, std::uint64_t{1} << 31);
  std::fill(z.begin(), z.begin() + static_cast<std::ptrdiff_t>(length), erasure);
  for (std::size_t half = n / 2; half != 0; half /= 2) {
    for (std::size_t i = 0; i < n; ++i) {
      if ((i & half) != 0) continue;
      const std::uint64_t both = z[i] * z[i + half] >> 31;
      z[i] += z[i + half] - both;
      z[i + half] = both;
    }
  }
  // Of equally good inputs, the last one first: it is never worse than an input whose index bits it
  // contains.
  std::vector<std::uint16_t> order(n);
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::uint16_t a, std::uint16_t b) { return z[a] != z[b] ? z[a] < z[b] : a > b; });
  std::vector<std::uint16_t> ranks(n);
  for (std::size_t i = 0; i < n; ++i) ranks[order[i]] = static_cast<std::uint16_t>(i);
  return ranks;
}

}  // namespace gradcomp
