#include "polar/bec_order.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace gradcomp {

std::vector<std::uint16_t> bec_ranks(unsigned log2, std::uint32_t erasure) {
  const std::size_t n = std::size_t{1} << log2;
  // z[i] becomes that of the inputs 2i (worse than z[i]) and 2i + 1 (better).
  std::vector<std::uint64_t> z(n);
  z[0] = erasure;
  for (std::size_t count = 1; count < n; count *= 2) {
    for (std::size_t i = count; i-- > 0;) {
      const std::uint64_t square = z[i] * z[i] >> 31;
      z[2 * i + 1] = square;
      z[2 * i] = 2 * z[i] - square;
    }
  }
  // Of inputs as good, the last one first: it is never worse than one whose bits it contains.
  std::vector<std::uint16_t> order(n);
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  std::sort(order.begin(), order.end(), [&](std::uint16_t a, std::uint16_t b) {
    return z[a] != z[b] ? z[a] < z[b] : a > b;
  });
  std::vector<std::uint16_t> ranks(n);
  for (std::size_t i = 0; i < n; ++i) ranks[order[i]] = static_cast<std::uint16_t>(i);
  return ranks;
}

}  // namespace gradcomp
