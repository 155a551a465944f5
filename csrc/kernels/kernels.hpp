// Inner loops, once per instruction set (a "level": scalar, avx2 or avx512; on ARM scalar or neon),
// behind one table. All levels give the same bits. Most loops are written once, in *_loops.hpp:
// either plainly, for the compiler to vectorise, or over the vectors of a level, vectors_*.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/centroids.hpp"
#include "kernels/coding.hpp"
#include "kernels/fp8.hpp"
#include "kernels/linalg.hpp"
#include "kernels/polar.hpp"

namespace gradcomp {

struct SignedSums {
  double negative;
  double others;
};

struct Moments {
  double sum;
  double squares;
};

// Bits that are 1 in any element: with the bytes of split_planes, the exponent uppermost.
struct PlaneBits {
  std::uint32_t any;
  std::uint32_t of_zeros;  // in any element whose exponent is 0
};

// Elements in fixed point of 0, 1 or 2 bytes, or as float32, as in docs/wire-format.md#inceptionn:
// two planes of tag bits, in the layout of pack_negative, and the elements of each width in order.
template <typename Byte>
struct FixedPoint {
  Byte* low;
  Byte* high;
  Byte* bytes;
  Byte* halves;
  Byte* words;
};
using FixedOutput = FixedPoint<std::uint8_t>;
using FixedInput = FixedPoint<const std::uint8_t>;

// Number of elements of each width.
struct FixedCounts {
  std::size_t bytes;
  std::size_t halves;
  std::size_t words;
};

// Bytes beyond the elements of each width that fixed_encode may write and fixed_decode may read.
inline constexpr std::size_t kFixedSlack = 64;

// Above this number of floats, bypass the cache.
inline constexpr std::size_t kUncachedFrom = std::size_t{1} << 16;

// Buffers of uint8_t hold little-endian elements at any alignment. Buffers of one call must not
// overlap, unless a comment allows them to be equal.
struct Kernels {
  const char* name;

  // float32 -> binary16, round to nearest even; NaN stays NaN (quiet, upper payload bits kept).
  // Beyond the finite range: Inf, or with `saturate` +-65504 for finite inputs.
  void (*f32_to_f16)(const float* x, std::uint8_t* out, std::size_t n, bool saturate);
  void (*f16_to_f32)(const std::uint8_t* in, float* y, std::size_t n);
  void (*f16_add)(const std::uint8_t* in, float weight, float* acc, std::size_t n);

  // float32 -> bfloat16, round to nearest even; NaN stays NaN (quiet, upper payload bits kept).
  void (*f32_to_bf16)(const float* x, std::uint8_t* out, std::size_t n);
  void (*bf16_to_f32)(const std::uint8_t* in, float* y, std::size_t n);
  void (*bf16_add)(const std::uint8_t* in, float weight, float* acc, std::size_t n);

  // Splits float32 numbers into four planes of n bytes each: exponent; sign and the upper 7 bits of
  // the significand; its middle 8 bits; its lower 8 bits.
  PlaneBits (*split_planes)(const float* x, std::uint8_t* exponent, std::uint8_t* upper,
                            std::uint8_t* middle, std::uint8_t* lower, std::size_t n);
  void (*join_planes)(const std::uint8_t* exponent, const std::uint8_t* upper,
                      const std::uint8_t* middle, const std::uint8_t* lower, float* y,
                      std::size_t n);

  // Moves the bytes whose key is not 0 to the front, in order. Returns their number.
  std::size_t (*compress_bytes)(const std::uint8_t* keys, std::uint8_t* bytes, std::size_t n);
  // Inverse: where keys[i] is not 0, out[i] is the next byte from `from` on, else 0. There are as
  // many as such keys before `end`. Returns the end of the bytes taken.
  const std::uint8_t* (*expand_bytes)(const std::uint8_t* keys, const std::uint8_t* from,
                                      const std::uint8_t* end, std::uint8_t* out, std::size_t n);

  // acc += weight * in
  void (*f32_add)(const std::uint8_t* in, float weight, float* acc, std::size_t n);

  // residual = beta * residual + gamma * grad; returns whether all results are finite.
  bool (*compensate)(float* residual, const float* grad, float beta, float gamma, std::size_t n);
  // Momentum correction: momentum = factor * momentum + scale * grad; velocity += momentum. With
  // nesterov, momentum = factor * (momentum + scale * grad); velocity += momentum + scale * grad.
  // Returns whether all velocities are finite.
  bool (*correct_momentum)(float* velocity, float* momentum, const float* grad, float factor,
                           float scale, bool nesterov, std::size_t n);
  // y[i] = 0. Large arrays are written past the caches, which would otherwise read them first.
  void (*zero)(float* y, std::size_t n);
  // y = x, written past the caches.
  void (*copy_uncached)(const float* x, float* y, std::size_t n);
  // x[i] = 0 where x[i] is NaN or Inf.
  void (*zero_nonfinite)(float* x, std::size_t n);

  // Appends the values and indices (base + i) of all elements with magnitude bits (bits of |x|) >=
  // threshold, in order, until fewer than kCollectSlack of the `capacity` slots are left. Returns
  // the number appended; *taken is the number of elements read.
  std::size_t (*collect)(const float* x, std::size_t n, std::uint32_t base, std::uint32_t threshold,
                         float* values, std::uint32_t* indices, std::size_t capacity,
                         std::size_t* taken);

  // Magnitude bits of the largest |x[i]|: exact, and above kInfBits exactly if there is a NaN.
  std::uint32_t (*max_magnitude)(const float* x, std::size_t n);
  // Sums in double, in the same order on every level: element i goes to partial sum i % 16, and the
  // 16 are added pairwise (j and j + 8, then j and j + 4, ...).
  double (*sum_magnitudes)(const float* x, std::size_t n);
  double (*sum_squares)(const float* x, std::size_t n);
  // The sum of squares of |x| * inverse - magnitude, in that order of summation, for symbols of
  // CodingKernels::classify(). The top magnitude stands for |x| * inverse + bias, rounded down. All
  // |x| * inverse are below 2^30.
  double (*level_error)(const float* x, const std::uint8_t* symbols, std::size_t n, float inverse,
                        float bias);

  // out[i] = random word first + i of a stream (see base/rng.hpp); `first` is a multiple of 4.
  void (*random_words)(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                       std::size_t n);

  // out[i] = rounding word of element first + i (see base/rng.hpp). `first` is a multiple of
  // kRoundingStep, first + n is at most 2^32, and `out` holds n words, rounded up to a multiple of
  // kRoundingStep. Also prefetches the n elements at `ahead`, which the caller will read next; they
  // need not exist.
  void (*rounding_words)(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                         std::size_t n, const float* ahead);

  // Bit i % 8 of out[i / 8] is 1 if x[i] < 0; bits beyond n are 0.
  void (*pack_negative)(const float* x, std::uint8_t* out, std::size_t n);
  // y[i] = set where bit i % 8 of bits[i / 8] is 1, else clear; or acc[i] += that.
  void (*select_bits)(const std::uint8_t* bits, float clear, float set, float* y, std::size_t n);
  void (*select_bits_add)(const std::uint8_t* bits, float clear, float set, float* acc,
                          std::size_t n);
  // Sums of the elements below 0 and of all others, in the order of sum_magnitudes. A NaN makes
  // both NaN.
  SignedSums (*sum_by_sign)(const float* x, std::size_t n);
  // Sum, and sum of squares, in the order of sum_magnitudes.
  Moments (*moments)(const float* x, std::size_t n);

  // Linear quantization of finite numbers: out[i] = x[i] * inverse, clamped to [-limit, limit] and
  // rounded, as int8. Rounds to nearest even; or up with a probability equal to the fractional
  // part, by words[i].
  void (*quantize)(const float* x, float inverse, float limit, std::uint8_t* out, std::size_t n);
  void (*quantize_randomly)(const float* x, const std::uint32_t* words, float inverse, float limit,
                            std::uint8_t* out, std::size_t n);
  // Levels are int8: y[i] = scale * levels[i]; or acc[i] += weight * that.
  void (*scale_levels)(const std::uint8_t* levels, float scale, float* y, std::size_t n);
  void (*scale_levels_add)(const std::uint8_t* levels, float scale, float weight, float* acc,
                           std::size_t n);
  // Codes of an 8-bit floating-point format: x[i] * inverse, clamped to the format's limit and
  // rounded. Rounds to nearest even; or away from 0 with a probability equal to the fractional
  // part, by words[i]. x[i] is finite.
  void (*fp8_encode)(const float* x, float inverse, const Fp8Format& format, std::uint8_t* out,
                     std::size_t n);
  void (*fp8_encode_randomly)(const float* x, const std::uint32_t* words, float inverse,
                              const Fp8Format& format, std::uint8_t* out, std::size_t n);
  // y[i] = scale * the value of code in[i]; or acc[i] += weight * that. All codes are finite.
  void (*fp8_decode)(const std::uint8_t* in, const Fp8Format& format, float scale, float* y,
                     std::size_t n);
  void (*fp8_add)(const std::uint8_t* in, const Fp8Format& format, float scale, float weight,
                  float* acc, std::size_t n);
  // out[i] = 1 or 2 (x[i] below 0) with probability |x[i]| / scale, else 0.
  void (*ternarize)(const float* x, const std::uint32_t* words, float scale, std::uint8_t* out,
                    std::size_t n);

  // One byte per element as in docs/wire-format.md#natural.
  void (*natural_encode)(const float* x, const std::uint32_t* words, std::uint8_t* out,
                         std::size_t n);
  void (*natural_decode)(const std::uint8_t* in, float* y, std::size_t n);
  void (*natural_add)(const std::uint8_t* in, float weight, float* acc, std::size_t n);

  // Codes of the values of dynamic8() nearest to x[i] / largest; no |x[i]| exceeds `largest`, which
  // is finite and above 0. Prefetches the n elements that follow x.
  void (*dynamic8_encode)(const float* x, float largest, std::uint8_t* out, std::size_t n);
  void (*dynamic8_decode)(const std::uint8_t* in, float scale, float* y, std::size_t n);
  void (*dynamic8_add)(const std::uint8_t* in, float scale, float weight, float* acc,
                       std::size_t n);
  // Signed levels as zigzag symbols (0, -1, 1, -2, ... as 0, 1, 2, 3, ...). Level of x: the integer
  // part of (floor(|x| * scale) + words / 2^8) / 2^24, at most `levels`, with the sign of x; all
  // |x| * scale are below 127.5 * 2^24.
  void (*f32_to_zigzag)(const float* x, const std::uint32_t* words, float scale, unsigned levels,
                        std::uint8_t* symbols, std::size_t n);
  // The same with the levels 0 and 2^(level - levels) of 1 / inverse, rounded at random; all |x| *
  // inverse are below 2.
  void (*f32_to_natural_zigzag)(const float* x, const std::uint32_t* words, float inverse,
                                unsigned levels, std::uint8_t* symbols, std::size_t n);
  // y = unit * level, and acc += weight * (unit * level).
  void (*zigzag_to_f32)(const std::uint8_t* symbols, float unit, float* y, std::size_t n);
  void (*zigzag_add)(const std::uint8_t* symbols, float unit, float weight, float* acc,
                     std::size_t n);
  // y = factor * x, negated where the element's bit (bit i % 32 of words[i / 32]) is set. x and y
  // may be equal.
  void (*flip_signs)(const float* x, const std::uint32_t* words, float factor, float* y,
                     std::size_t n);
  // The Walsh-Hadamard transform of 2^log2 elements in place, without scaling: the butterflies
  // (a + b, a - b) of stride 1, then those of stride 2, 4, and so on.
  void (*hadamard)(float* x, unsigned log2);
  // symbols[i] = scale * x[i] + top / 2, limited to [0, top], then rounded to nearest even; with
  // noise, rounded down after adding its upper 24 bits as a fraction. x and scale are finite, and
  // top is a whole number below 256.
  void (*quantize_uniform)(const float* x, float scale, float top, const std::uint32_t* noise,
                           std::uint8_t* symbols, std::size_t n);
  // symbols[i] = index, ascending, of the centroid nearest to scale * x[i]; ties go towards 0. An
  // element with a sign bit takes a negative centroid. Sums in the order of sum_squares; the energy
  // costs time and is 0 unless requested. x and scale * x are finite.
  CentroidSums (*quantize_centroids)(const float* x, float scale, const Centroids& centroids,
                                     bool with_energy, std::uint8_t* symbols, std::size_t n);
  // y[i] = table[symbols[i]]; the table has 2^bits elements, 1 <= bits <= 8.
  void (*look_up)(const std::uint8_t* symbols, const float* table, unsigned bits, float* y,
                  std::size_t n);
  // out[2 i] and out[2 i + 1] = lower and upper half of sequential draw first + i of a stream (see
  // Stream in base/rng.hpp); `first` is even, and n counts words.
  void (*draw_words)(std::uint64_t stream, std::uint64_t first, std::uint32_t* out, std::size_t n);
  // out[i] = offset + the place that words[i] chooses from part i. Parts begin at floor((begin + i
  // step) / 2^32), each at the end of the one before, and have fewer than 2^32 places.
  void (*choose_places)(const std::uint32_t* words, std::uint64_t begin, std::uint64_t step,
                        std::uint32_t offset, std::uint32_t* out, std::size_t n);

  // Encodes elements as fixed point; a byte counts units, and per_unit = 1 / unit is a power of
  // two.
  FixedCounts (*fixed_encode)(const float* x, float per_unit, const FixedOutput& out,
                              std::size_t n);
  void (*fixed_decode)(const FixedInput& in, float unit, float* y, std::size_t n);
  // Counts the widths in the two planes of tag bits, of n bytes each.
  FixedCounts (*fixed_count)(const std::uint8_t* low, const std::uint8_t* high, std::size_t n);

  // CRC-32C update without the initial and final inversion.
  std::uint32_t (*crc32c)(std::uint32_t crc, const std::uint8_t* data, std::size_t size);

  const CodingKernels* coding;
  const PolarKernels* polar;
  const LinalgKernels* linalg;
};

inline constexpr std::size_t kCollectSlack = 128;
inline constexpr std::size_t kRoundingStep = 64;
inline constexpr std::uint32_t kMagnitudeMask = 0x7FFFFFFFu;
inline constexpr std::uint32_t kInfBits = 0x7F800000u;
inline constexpr std::uint32_t kNanBits = 0x7FC00000u;
// Exponent field of float32 that natural compression subtracts: code c > 0 is 2^(c + 18 - 127),
// code 0 is 0.
inline constexpr std::uint32_t kNaturalOffset = 18;

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// Best level of this machine, or the level that GRADCOMP_SIMD=scalar|avx2|avx512|neon names if
// the machine has it. Decided at first use.
const Kernels& kernels() noexcept;

// Names of the levels that this machine can run, worst first.
std::size_t available_levels(const char* const** names) noexcept;
// For tests and benchmarks. False if the machine has no such level.
bool select_level(const char* name) noexcept;

}  // namespace gradcomp
