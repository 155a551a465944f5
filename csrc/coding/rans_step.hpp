// One step of rANS, symbol by symbol: reference for all levels, which also use it for the ends of
// runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "kernels/coding.hpp"

namespace gradcomp {

// It is unpredictable whether a state writes or reads a word, so it must not become a branch. A
// word is always written, or read, and then counts or not.

// Codes symbols[i] with states[i]. Returns the end of the words written to `to`, at most one per
// symbol.
inline std::uint8_t* rans_encode_step(const std::uint8_t* symbols, std::size_t count,
                                      const RansEncodeTable& table, std::uint32_t* states,
                                      std::uint8_t* to) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t packed = table.of[symbols[i]].packed;
    const std::uint32_t complement = packed >> kRansBits & (kRansTotal - 1);
    std::uint32_t state = states[i];
    const unsigned full = ((state >> 17) + complement) >> kRansBits;  // state >= 2^17 f
    store(to, static_cast<std::uint16_t>(state));
    to += kRansWord * full;
    state >>= 16 * full;
    const std::uint64_t product = std::uint64_t{state} * table.of[symbols[i]].inverse;
    const auto quotient = static_cast<std::uint32_t>(product >> (31 + (packed >> 28)));
    states[i] = state + (packed & (kRansTotal - 1)) + quotient * complement;
  }
  return to;
}

// Decodes symbols[i] with states[i], the last one first. Takes words from before `from`, at most
// one per symbol, and returns the beginning of the words taken.
inline const std::uint8_t* rans_decode_step(const std::uint8_t* from, const RansDecodeTable& table,
                                            std::uint32_t* states, std::uint8_t* symbols,
                                            std::size_t count) {
  for (std::size_t i = count; i-- > 0;) {
    const std::uint32_t slot = states[i] & (kRansTotal - 1);
    symbols[i] = table.symbol_at[slot];
    const std::uint32_t packed = table.packed[symbols[i]];
    const std::uint32_t state =
        (packed >> 16) * (states[i] >> kRansBits) + slot - (packed & 0xFFFFu);
    const unsigned empty = state < kRansLowest ? 1 : 0;
    const std::uint32_t word = load<std::uint16_t>(from - kRansWord);
    from -= kRansWord * empty;
    states[i] = state << 16 * empty | (word & ~(empty - 1));
  }
  return from;
}

}  // namespace gradcomp
