// Elias delta code (Elias: "Universal Codeword Sets and Representations of the Integers", IEEE
// Trans. Inf. Theory 1975) of whole numbers from 1 to 2^15 - 1, least significant bits first: with
// N = floor(log2 value) and L = floor(log2(N + 1)), L ones and a zero, the lower L bits of N + 1,
// the lower N bits of the value.
#pragma once

#include <cstdint>

#include "coding/bits.hpp"

namespace gradcomp {

struct EliasCode {
  std::uint32_t code;
  unsigned bits;  // at most 21
};

inline EliasCode elias_delta(std::uint32_t value) noexcept {
  const unsigned n = 31u - static_cast<unsigned>(__builtin_clz(value));
  const unsigned l = 31u - static_cast<unsigned>(__builtin_clz(n + 1));
  const std::uint32_t unary = (1u << l) - 1;
  const std::uint32_t length = (n + 1) & ((1u << l) - 1);
  const std::uint32_t rest = value & ((1u << n) - 1);
  return {unary | length << (l + 1) | rest << (2 * l + 1), 2 * l + 1 + n};
}

// Reads a value; 0 if it is above 2^15 - 1.
inline std::uint32_t read_elias_delta(BitReader* reader) noexcept {
  constexpr unsigned kMaxL = 3;
  const auto l = static_cast<unsigned>(reader->get_unary(kMaxL));
  if (l > kMaxL) return 0;
  const unsigned n = (1u << l | reader->get(l)) - 1;
  return 1u << n | reader->get(n);
}

}  // namespace gradcomp
