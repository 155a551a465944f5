// The inner loops of polar coding over 64 codes at once. A row is what the 64 codes have at one
// position: 64 log-likelihood ratios as int8 in [-127, 127], or 64 bits in one word. Every level of
// SIMD computes the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradcomp {

inline constexpr std::size_t kLanes = 64;

// Of a code, where several are tried: then 8 codes make up a row, each with 8 lanes side by side.
inline constexpr std::size_t kPaths = 8;

// How polar_ec's encoder quantizes. Magnitudes are in sixteenths of a step.
struct LatticeRule {
  std::int8_t llr[64];  // of a magnitude below 64, for the half of the points that has +1/2
  // Added to a magnitude before a division by 32: the number of pairs of steps to the point, where
  // the point is of the half that has 1/2 with the element's sign, or of the other half.
  std::int16_t same;   // at most 8
  std::int16_t other;  // at most 24
};
inline constexpr float kLatticeTop = 4079.0f;  // the largest magnitude: indices fit 8 bits

// Of (2 magnitude + 1) * twice the point, with the element's sign, and of its square.
struct LatticeSums {
  std::int64_t product;
  std::int64_t energy;
};

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

  // sums[lane] += the |llr| of the lane where the bit is not that of `decide`, for any count.
  void (*penalties)(const std::int8_t* llr, const std::uint64_t* bits, std::int32_t* sums,
                    std::size_t count);
  // Lane i of every row becomes what lane from[i] was, of the same 8.
  void (*move_llr)(const std::uint8_t* from, std::int8_t* llr, std::size_t count);
  void (*move_bits)(const std::uint8_t* from, std::uint64_t* bits, std::size_t count);

  // As csrc/polar/lattice.hpp does for single elements; n counts those, of whole rows but the last.
  // place = magnitude |x| * scale rounded down, at most kLatticeTop (also for NaN), or ~magnitude
  // where x has a sign bit; the LLR is negated where the bit of the mask is set. Returns the
  // magnitude bits of the largest |x|, as max_magnitude does.
  std::uint32_t (*lattice_places)(const float* x, const std::uint64_t* mask, float scale,
                                  const LatticeRule& rule, std::int16_t* places, std::int8_t* llr,
                                  std::size_t n);
  // The points nearest to the places among those that the bits allow, as their indices.
  LatticeSums (*lattice_indices)(const std::int16_t* places, const std::uint64_t* bits,
                                 const LatticeRule& rule, std::uint8_t* indices, std::size_t n);
  // y = scale * point
  void (*lattice_points)(const std::uint8_t* indices, const std::uint64_t* bits, float scale,
                         float* y, std::size_t n);
};

extern const PolarKernels kScalarPolarKernels;
#if defined(__x86_64__)
extern const PolarKernels kAvx2PolarKernels;
extern const PolarKernels kAvx512PolarKernels;
#endif

}  // namespace gradcomp
