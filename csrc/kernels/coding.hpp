// Inner loops that code small numbers. All instruction sets give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/contexts.hpp"

namespace gradcomp {

inline constexpr unsigned kRansBits = 14;  // a decoder's table fits the L1 cache
inline constexpr std::uint32_t kRansTotal = 1u << kRansBits;

inline constexpr std::size_t kRansLanes = 32;  // states of a long run; symbol i goes to i % 32
inline constexpr std::size_t kRansWord = 2;    // bytes
inline constexpr std::uint32_t kRansLowest = 1u << 15;  // states are in [2^15, 2^31)

// Interval of a symbol: its frequency f, and its start, the sum of the frequencies before it. state
// / f is a multiplication by the inverse 2^(31 + s) / f, rounded up, and a shift by 31 + s, with
// the least s for which 2^s >= f (Alverson: "Integer division using reciprocals", 1991). Vectors
// load both members at once.
struct RansSymbol {
  std::uint32_t inverse;
  std::uint32_t packed;  // start | (kRansTotal - f) << 14 | s << 28
};

struct RansEncodeTable {
  RansSymbol of[256];
};

struct RansDecodeTable {
  std::uint8_t symbol_at[kRansTotal];  // by the lower bits of a state
  std::uint32_t packed[256];           // start | f << 16
};

struct CodingKernels {
  // Codes steps of `lanes` <= 32 symbols, the last one first, which may be shorter, while the most
  // words of a step fit between *to and end. Returns the number of symbols left.
  std::size_t (*rans_encode)(const std::uint8_t* symbols, std::size_t n, std::size_t lanes,
                             const RansEncodeTable& table, std::uint32_t* states, std::uint8_t** to,
                             const std::uint8_t* end);
  // Decodes whole steps, first step first, while at least the most words of a step lie between
  // begin and *from. Reads up to 32 bytes beyond *from. Returns the number of symbols decoded.
  std::size_t (*rans_decode)(const std::uint8_t* begin, const std::uint8_t** from,
                             const RansDecodeTable& table, std::uint32_t* states,
                             std::uint8_t* symbols, std::size_t n);

  // Packs numbers of `width` bits, 2 or 4, into bytes, the first one lowest; missing ones in the
  // last byte are 0. Adds the occurrences of z to counts[z], except for z = 0.
  void (*pack_digits)(const std::uint8_t* numbers, unsigned width, std::uint8_t* packed,
                      std::size_t n, std::uint32_t* counts);
  // Inverse of pack.
  void (*unpack_digits)(const std::uint8_t* packed, unsigned width, std::uint8_t* numbers,
                        std::size_t n);

  // Quantizes the n elements of a row and finds their classes: symbols[j] = class * kClassSymbols +
  // symbol. All x * zone.inverse are below 2^30.
  void (*classify)(const float* x, std::size_t n, const DeadZone& zone, Contexts& contexts,
                   std::uint8_t* symbols);
  // Adds the occurrences of symbols of classify(), most of which are 0 of a class below
  // kLowClasses.
  void (*count_classified)(const std::uint8_t* symbols, std::size_t n, std::uint32_t* counts);
  // Decodes the n elements of a row, signed and up to kTopMagnitude, from words that end at *from.
  // Element j has the state j % lanes, lanes <= 32. False if it would need words before `begin`.
  // Reads up to 64 bytes before `begin` and up to 32 beyond *from. `flags`: nullptr, or a byte for
  // each group of the row; those with 0 have no symbols, and all their elements are 0.
  bool (*decode_row)(const std::uint8_t* begin, const std::uint8_t** from,
                     const ClassTables& tables, std::uint32_t* states, std::size_t lanes,
                     const std::uint8_t* flags, Contexts& contexts, std::int8_t* levels,
                     std::size_t n);
};

extern const CodingKernels kScalarCodingKernels;
#if defined(__x86_64__)
extern const CodingKernels kAvx2CodingKernels;
extern const CodingKernels kAvx512CodingKernels;
#endif

}  // namespace gradcomp
