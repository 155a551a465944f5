// The inner loops of polar coding over 64 codes at once. A row is what the 64 codes have at one
// position: 64 log-likelihood ratios as int8 in [-127, 127], or 64 bits in one word. Every level of
// SIMD computes the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradcomp {

inline constexpr std::size_t kLanes = 64;

// Counts are of rows, at least 1. Buffers of one call do not overlap.
struct PolarKernels {
  // llr = round(x * scale) to nearest even, limited to [-127, 127], for n elements; NaN becomes
  // 127. Returns the sum of the squares of all x * scale, in float32: element i is added to partial
  // sum i % 16, then the 16 to one. It is not finite if an element is not.
  float (*quantize)(const float* x, float scale, std::int8_t* llr, std::size_t n);

  // For the first half of a code: out = sign(a) sign(b) min(|a|, |b|), with a and b the rows at i
  // and count + i of `llr`.
  void (*check)(const std::int8_t* llr, std::int8_t* out, std::size_t count);
  // For the second half, where the first is `bits`: out = b + a, or b - a where the bit is set,
  // limited to [-127, 127].
  void (*add)(const std::int8_t* llr, const std::uint64_t* bits, std::int8_t* out,
              std::size_t count);
  // The same, where all bits are 0.
  void (*add_frozen)(const std::int8_t* llr, std::int8_t* out, std::size_t count);

  // bits = llr < 0
  void (*decide)(const std::int8_t* llr, std::uint64_t* bits, std::size_t count);
  // All words become that of (sum of the rows) < 0; count <= 256.
  void (*decide_repetition)(const std::int8_t* llr, std::uint64_t* bits, std::size_t count);
  // As decide, but where a lane has an odd number of ones, the bit of its smallest |llr| flips (of
  // equal ones the first); count <= 64.
  void (*decide_parity)(const std::int8_t* llr, std::uint64_t* bits, std::size_t count);

  // a ^= b
  void (*xor_words)(std::uint64_t* a, const std::uint64_t* b, std::size_t count);
  // The sum of all llr, negated where the bit is set; count <= 2^16.
  std::int32_t (*agreement)(const std::int8_t* llr, const std::uint64_t* bits, std::size_t count);
};

extern const PolarKernels kScalarPolarKernels;
#if defined(__x86_64__)
extern const PolarKernels kAvx2PolarKernels;
extern const PolarKernels kAvx512PolarKernels;
#endif

}  // namespace gradcomp
