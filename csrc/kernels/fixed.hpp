// Fixed-point helpers shared by all instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {

// Rounds a value >= 0, or NaN, to nearest even, at most `limit` < 2^23. NaN gives the limit.
inline std::uint32_t round_fixed(float scaled, float limit) noexcept {
  return float_bits((scaled < limit ? scaled : limit) + 0x1p23f) & 0x7FFFFFu;
}

// Inlined, so that instruction sets with a bit-count instruction use it.
__attribute__((always_inline)) inline FixedCounts count_tags(const std::uint8_t* low,
                                                             const std::uint8_t* high,
                                                             std::size_t n) noexcept {
  int bytes = 0;
  int halves = 0;
  int words = 0;
  const auto add = [&](std::uint64_t l, std::uint64_t h) {
    bytes += __builtin_popcountll(l & ~h);
    halves += __builtin_popcountll(h & ~l);
    words += __builtin_popcountll(l & h);
  };
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) add(load<std::uint64_t>(low + i), load<std::uint64_t>(high + i));
  for (; i < n; ++i) add(low[i], high[i]);
  return {static_cast<std::size_t>(bytes), static_cast<std::size_t>(halves),
          static_cast<std::size_t>(words)};
}

}  // namespace gradcomp
