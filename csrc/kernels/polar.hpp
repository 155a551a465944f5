// Inner loops of polar coding over 64 codes at once. A row holds one position of all 64 codes: 64
// log-likelihood ratios as int8 in [-127, 127], or 64 bits in one word. All levels give the same
// bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradcomp {

inline constexpr std::size_t kLanes = 64;

// Paths per code of a list search: 8 codes make up a row, each with 8 neighbouring lanes.
inline constexpr std::size_t kPaths = 8;

// Quantization rule of polar_ec's encoder. Magnitudes are in sixteenths of a step.
struct LatticeRule {
  std::int8_t llr[64];  // by magnitude below 64, for the half of the points with +1/2
  // (magnitude + same) / 32 is the number of pairs of steps to the nearest point of the half with
  // 1/2 and the element's sign; (magnitude + other) / 32 to the nearest point of the other half.
  std::int16_t same;   // at most 8
  std::int16_t other;  // at most 24
};
inline constexpr float kLatticeTop = 4079.0f;  // largest magnitude: indices fit 8 bits

// Sums of (2 magnitude + 1) * twice the point, with the element's sign, and of the square of twice
// the point.
struct LatticeSums {
  std::int64_t product;
  std::int64_t energy;
};

// Counts are of rows, at least 1. Buffers of one call do not overlap.
struct PolarKernels {
  // llr = round(x * scale) to nearest even, limited to [-127, 127], for n elements, with the other
  // sign where the bit of `mask` is set (the lowest bit of a word is for the first of 64 elements).
  // Returns the sum of the squares of all x * scale, in float32: element i is added to partial
  // sum i % 16, then the 16 to one. It is not finite if an element is not.
  float (*quantize)(const float* x, const std::uint64_t* mask, float scale, std::int8_t* llr,
                    std::size_t n);

  // For the first half of a code: out = sign(a) sign(b) min(|a|, |b|), with a and b the rows at i
  // and count + i of `llr`.
  void (*check)(const std::int8_t* llr, std::int8_t* out, std::size_t count);
  // For the second half, where the first is `bits`: out = b + a, or b - a where the bit is set,
  // limited to [-127, 127].
  void (*add)(const std::int8_t* llr, const std::uint64_t* bits, std::int8_t* out,
              std::size_t count);
  // The same if all bits are 0.
  void (*add_frozen)(const std::int8_t* llr, std::int8_t* out, std::size_t count);

  // bits = llr < 0
  void (*decide)(const std::int8_t* llr, std::uint64_t* bits, std::size_t count);
  // All words become the word of (sum of the rows) < 0; count <= 256.
  void (*decide_repetition)(const std::int8_t* llr, std::uint64_t* bits, std::size_t count);
  // As decide; in lanes with an odd number of ones, the bit of the smallest |llr| flips (of equal
  // ones the first). count <= 64.
  void (*decide_parity)(const std::int8_t* llr, std::uint64_t* bits, std::size_t count);

  // a ^= b
  void (*xor_words)(std::uint64_t* a, const std::uint64_t* b, std::size_t count);
  // Sum of all llr, negated where the bit is set; count <= 2^16.
  std::int32_t (*agreement)(const std::int8_t* llr, const std::uint64_t* bits, std::size_t count);

  // sums[lane] += |llr| of the lane where the bit differs from the decision of `decide`, for any
  // count.
  void (*penalties)(const std::int8_t* llr, const std::uint64_t* bits, std::int32_t* sums,
                    std::size_t count);
  // Lane i of every row gets the value of lane from[i], one of the same 8 lanes.
  void (*move_llr)(const std::uint8_t* from, std::int8_t* llr, std::size_t count);
  void (*move_bits)(const std::uint8_t* from, std::uint64_t* bits, std::size_t count);

  // As csrc/polar/lattice.hpp for single elements. n counts elements, of whole rows except the
  // last. place = magnitude |x| * scale rounded down, at most kLatticeTop (also for NaN), or
  // ~magnitude where x has a sign bit; the LLR is negated where the bit of the mask is set. Returns
  // the magnitude bits of the largest |x|, as max_magnitude does.
  std::uint32_t (*lattice_places)(const float* x, const std::uint64_t* mask, float scale,
                                  const LatticeRule& rule, std::int16_t* places, std::int8_t* llr,
                                  std::size_t n);
  // Indices of the points nearest to the places, among the points that the bits allow.
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
