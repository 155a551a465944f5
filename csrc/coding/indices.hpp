// Lossless coding of ascending indices. docs/wire-format.md#index-coding is the norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

// These numbers are part of the wire format.
enum class IndexCoding : std::uint8_t {
  kRaw32 = 0,      // u32 each
  kBitmask = 1,    // one bit per element
  kEliasFano = 2,  // lower bits plain, upper bits as unary gaps
  kRice = 3,       // gaps, Golomb-Rice, parameter chosen per block
};
inline constexpr std::size_t kIndexCodings = 4;

// Coding that a spec requests: a fixed one, or the smallest for each payload.
struct IndexCoder {
  bool smallest = true;
  IndexCoding coding = IndexCoding::kRaw32;  // unless smallest

  // "auto", "raw32", "bitmask", "elias_fano" or "rice".
  static IndexCoder named(std::string_view name);

  bool allows(IndexCoding used) const { return smallest || used == coding; }
  // Upper bound of the size in bytes, for at most `count` indices below `n`.
  std::size_t max_bytes(std::size_t n, std::size_t count) const;
  // Codes strictly ascending indices below n; `out` has max_bytes(n, count).
  std::size_t encode(Span<const std::uint32_t> indices, std::size_t n, std::uint8_t* out,
                     IndexCoding* used) const;
};

// Reads `count` indices. Fails unless they fill `in` exactly, are strictly ascending and below n.
Status decode_indices(IndexCoding coding, Span<const std::uint8_t> in, std::size_t n,
                      Span<std::uint32_t> indices);

}  // namespace gradcomp
