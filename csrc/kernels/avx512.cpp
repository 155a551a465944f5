#if defined(__x86_64__)

#include "base/rng.hpp"
#include "kernels/dynamic8.hpp"
#include "kernels/fixed.hpp"
#include "kernels/half.hpp"
#include "kernels/kernels.hpp"
#include "kernels/planes_x86.hpp"
#include "kernels/sums.hpp"
#include "kernels/table.hpp"
#include "kernels/vectors_avx512.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {
namespace {

#include "kernels/convert_loops.hpp"
#include "kernels/feedback_loops.hpp"
#include "kernels/level_loops.hpp"
#include "kernels/random_loops.hpp"
#include "kernels/sign_loops.hpp"

// This level has its own dynamic8_decode and dynamic8_add, which end with these.
namespace loops {
#include "kernels/quantize_loops.hpp"
}  // namespace loops
using loops::choose_places;
using loops::f32_to_natural_zigzag;
using loops::fp8_add;
using loops::fp8_decode;
using loops::fp8_encode;
using loops::fp8_encode_randomly;
using loops::join_planes;
using loops::quantize;
using loops::quantize_randomly;
using loops::scale_levels;
using loops::scale_levels_add;
using loops::ternarize;
using planes::compress_bytes;
using planes::expand_bytes;
using planes::split_planes;

GRADCOMP_AVX512 std::size_t collect(const float* x, std::size_t n, std::uint32_t base,
                                    std::uint32_t threshold, float* values, std::uint32_t* indices,
                                    std::size_t capacity, std::size_t* taken) {
  const Words below = broadcast(threshold - 1);
  const Words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i + 64 <= n && capacity - count >= kCollectSlack; i += 64) {
    Floats v[4];
    Words m[4];
    for (int j = 0; j < 4; ++j) {
      prefetch_ahead(x + i + 16 * j);
      v[j] = load(x + i + 16 * j);
      m[j] = magnitude(v[j]);
    }
    if (!any(greater(max(max(m[0], m[1]), max(m[2], m[3])), below))) continue;
    for (int j = 0; j < 4; ++j) {
      const Mask hit = greater(m[j], below);
      const std::uint32_t first =
          base + static_cast<std::uint32_t>(i) + 16u * static_cast<unsigned>(j);
      // Compress in a register and store it whole: compressing into memory is slow on some CPUs.
      // The slack holds the lanes written beyond the hits.
      store(values + count, _mm512_maskz_compress_ps(hit, v[j]));
      store(indices + count, Words(_mm512_maskz_compress_epi32(hit, __m512i(lane + first))));
      count += static_cast<std::size_t>(__builtin_popcount(hit));
    }
  }
  std::size_t tail_taken = 0;
  count += kScalarKernels.collect(x + i, n - i, base + static_cast<std::uint32_t>(i), threshold,
                                  values + count, indices + count, capacity - count, &tail_taken);
  *taken = i + tail_taken;
  return count;
}

// Lowest bytes of the numbers of four vectors, none above 255, in order.
GRADCOMP_AVX512 inline __m512i to_bytes(const Words (&x)[4]) {
  // Packing works within 128-bit quarters: it leaves groups of four out of order.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(
      order, _mm512_packus_epi16(_mm512_packus_epi32(__m512i(x[0]), __m512i(x[1])),
                                 _mm512_packus_epi32(__m512i(x[2]), __m512i(x[3]))));
}

// Dynamic8Lines in registers, as far as these suffice.
struct WideLines {
  Floats slopes[Dynamic8Lines::kLines];
  Floats intercepts[Dynamic8Lines::kLines];

  GRADCOMP_AVX512 void start(const Dynamic8Lines& lines) {
    for (int k = 0; k < Dynamic8Lines::kLines; ++k) {
      slopes[k] = broadcast(lines.slopes[k]);
      intercepts[k] = broadcast(lines.intercepts[k]);
    }
  }
};

GRADCOMP_AVX512 void dynamic8_encode(const float* x, float largest, std::uint8_t* out,
                                     std::size_t n) {
  if (largest < Dynamic8Lines::kSmallest) {
    return kScalarKernels.dynamic8_encode(x, largest, out, n);
  }
  const Dynamic8& map = dynamic8();
  Dynamic8Levels<WideLines> levels;
  levels.lines.start(map.lines(largest));
  const __m512i zero_code = _mm512_set1_epi8(127);
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    prefetch(x, n + i, 64);
    Words level[4];
    __mmask64 negative = 0;
    __mmask64 unsure = 0;
    for (int j = 0; j < 4; ++j) {
      const Floats v = load(x + i + 16 * j);
      const Words fixed = levels.fixed(absolute(v));
      negative |= std::uint64_t{sign_bit(v)} << 16 * j;
      const Mask close = lacks(fixed + Dynamic8Lines::kNear, broadcast(Dynamic8Lines::kFar));
      unsure |= std::uint64_t{close} << 16 * j;
      level[j] = fixed >> 16;
    }
    const __m512i bytes = to_bytes(level);
    const __m512i code = _mm512_mask_sub_epi8(_mm512_add_epi8(zero_code, bytes), negative,
                                              zero_code, _mm512_min_epu8(bytes, zero_code));
    _mm512_storeu_si512(out + i, code);
    for (; unsure != 0; unsure &= unsure - 1) {
      const std::size_t at = i + static_cast<std::size_t>(__builtin_ctzll(unsure));
      out[at] = dynamic8_code(map, x[at] / largest);
    }
  }
  kScalarKernels.dynamic8_encode(x + i, largest, out + i, n - i);
}

// A table of kSize floats in registers, for kSize a power of two from 16 to 128. (Gathers take
// longer, on some processors far longer.)
template <unsigned kSize>
struct RegisterTable {
  Floats part[kSize / 16];

  GRADCOMP_AVX512 void load_from(const float* table) {
    for (unsigned i = 0; i < kSize / 16; ++i) part[i] = load(table + 16 * i);
  }

  // Bits of `at` above an index are ignored.
  GRADCOMP_AVX512 Floats operator[](Words at) const {
    if constexpr (kSize == 16) {
      return pick(part[0], at);
    } else {
      Floats found[kSize / 32];
      for (unsigned i = 0; i < kSize / 32; ++i) {
        found[i] = _mm512_permutex2var_ps(part[2 * i], __m512i(at), part[2 * i + 1]);
      }
#pragma GCC unroll 4
      for (unsigned bit = 32; bit < kSize; bit *= 2) {
        const Mask lower = lacks(at, broadcast(std::uint32_t{bit}));
        for (unsigned i = 0; i < kSize / 32; i += bit / 16) {
          found[i] = select(lower, found[i], found[i + bit / 32]);
        }
      }
      return found[0];
    }
  }
};

// Dynamic values: negative ones mirror the positive ones.
struct Dynamic8Values {
  static constexpr std::size_t kBytes = 1;

  RegisterTable<128> table;
  float scale;

  GRADCOMP_AVX512 void start(float of_scale) {
    table.load_from(dynamic8().values + 127);
    scale = of_scale;
  }

  GRADCOMP_AVX512 Floats values(const std::uint8_t* in) const {
    const Words code = load_bytes(in);
    const Words offset = code - 127u;
    const Words level = Words(_mm512_abs_epi32(__m512i(offset)));
    const Mask top = equal(code, broadcast(255u));
    const Floats size = select(top, broadcast(1.0f), table[level]);
    return floats_of(bits_of(size) | (offset & ~kMagnitudeMask)) * scale;
  }
};

GRADCOMP_AVX512 void dynamic8_decode(const std::uint8_t* in, float scale, float* y, std::size_t n) {
  Dynamic8Values format;
  format.start(scale);
  const std::size_t i = decode(format, in, y, n);
  loops::dynamic8_decode(in + i, scale, y + i, n - i);
}

GRADCOMP_AVX512 void dynamic8_add(const std::uint8_t* in, float scale, float weight, float* acc,
                                  std::size_t n) {
  Dynamic8Values format;
  format.start(scale);
  const std::size_t i = add(format, in, weight, acc, n);
  loops::dynamic8_add(in + i, scale, weight, acc + i, n - i);
}

// 2^kDepth levels per sign, 8 to 128: binary search.
template <unsigned kDepth>
struct ManyLevels {
  static constexpr unsigned kHalf = 1u << kDepth;

  Floats upper[4];  // rows of at most 8 bounds
  RegisterTable<16> row16;
  RegisterTable<32> row32;
  RegisterTable<64> row64;
  RegisterTable < kHalf<16 ? 16 : kHalf> positive;

  GRADCOMP_AVX512 void start(const Centroids& c) {
    for (unsigned row = 0; row < 4 && row < kDepth; ++row) upper[row] = load(c.tree + (1u << row));
    if constexpr (kDepth > 4) row16.load_from(c.tree + 16);
    if constexpr (kDepth > 5) row32.load_from(c.tree + 32);
    if constexpr (kDepth > 6) row64.load_from(c.tree + 64);
    positive.load_from(c.positive);
  }

  GRADCOMP_AVX512 Words level(Floats magnitude) const {
    Words at{};
    for (unsigned row = 0; row < 4 && row < kDepth; ++row) {
      at = descend(at, magnitude, pick(upper[row], at));
    }
    if constexpr (kDepth > 4) at = descend(at, magnitude, row16[at]);
    if constexpr (kDepth > 5) at = descend(at, magnitude, row32[at]);
    if constexpr (kDepth > 6) at = descend(at, magnitude, row64[at]);
    return at;
  }

  GRADCOMP_AVX512 Floats centroid(Words level) const { return positive[level]; }

 private:
  GRADCOMP_AVX512 static Words descend(Words at, Floats magnitude, Floats bound) {
    return add_one(greater(magnitude, bound), at + at);
  }
};

GRADCOMP_AVX512 CentroidSums quantize_centroids(const float* x, float scale, const Centroids& c,
                                                bool with_energy, std::uint8_t* symbols,
                                                std::size_t n) {
  switch (c.bits) {
    case 1:
      return quantize_with<FewLevels<0>>(x, scale, c, with_energy, symbols, n);
    case 2:
      return quantize_with<FewLevels<1>>(x, scale, c, with_energy, symbols, n);
    case 3:
      return quantize_with<FewLevels<3>>(x, scale, c, with_energy, symbols, n);
    case 4:
      return quantize_with<ManyLevels<3>>(x, scale, c, with_energy, symbols, n);
    case 5:
      return quantize_with<ManyLevels<4>>(x, scale, c, with_energy, symbols, n);
    case 6:
      return quantize_with<ManyLevels<5>>(x, scale, c, with_energy, symbols, n);
    case 7:
      return quantize_with<ManyLevels<6>>(x, scale, c, with_energy, symbols, n);
    default:
      return quantize_with<ManyLevels<7>>(x, scale, c, with_energy, symbols, n);
  }
}

GRADCOMP_AVX512 FixedCounts fixed_encode(const float* x, float per_unit, const FixedOutput& out,
                                         std::size_t n) {
  FixedOutput at = out;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Floats v = load(x + i);
    const Floats size = absolute(v);
    const Words sign = bits_of(v) >> 31;
    const Words small = nearest(min(size * per_unit, broadcast(128.0f)));
    const Words large = nearest(min(size * 32768.0f, broadcast(32768.0f)));
    const Mask four = equal(large, broadcast(32768u));
    const Mask two = _kandn_mask16(four, equal(small, broadcast(128u)));
    const Mask one = _kandn_mask16(_kor_mask16(two, four), greater(small, Words{}));
    store_mask(out.low + i / 8, _kor_mask16(one, four));
    store_mask(out.high + i / 8, _kor_mask16(two, four));
    // The slack holds the lanes written beyond the kept elements.
    const __m512i byte = __m512i(small | sign << 7);
    store_bytes(at.bytes, Words(_mm512_maskz_compress_epi32(one, byte)));
    at.bytes += __builtin_popcount(one);
    const __m512i half = __m512i(large | sign << 15);
    store_halves(at.halves, {Words(_mm512_maskz_compress_epi32(two, half))});
    at.halves += 2 * __builtin_popcount(two);
    _mm512_storeu_ps(at.words, _mm512_maskz_compress_ps(four, v));
    at.words += 4 * __builtin_popcount(four);
  }
  at.low += i / 8;
  at.high += i / 8;
  FixedCounts counts = kScalarKernels.fixed_encode(x + i, per_unit, at, n - i);
  counts.bytes += static_cast<std::size_t>(at.bytes - out.bytes);
  counts.halves += static_cast<std::size_t>(at.halves - out.halves) / 2;
  counts.words += static_cast<std::size_t>(at.words - out.words) / 4;
  return counts;
}

GRADCOMP_AVX512 void fixed_decode(const FixedInput& in, float unit, float* y, std::size_t n) {
  FixedInput at = in;
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Mask low = load_mask(in.low + i / 8);
    const Mask high = load_mask(in.high + i / 8);
    const Mask one = _kandn_mask16(high, low);
    const Mask two = _kandn_mask16(low, high);
    const Mask four = _kand_mask16(low, high);
    const Words byte = Words(_mm512_maskz_expand_epi32(one, __m512i(load_bytes(at.bytes))));
    at.bytes += __builtin_popcount(one);
    const Words half = Words(_mm512_maskz_expand_epi32(two, __m512i(load_halves(at.halves))));
    at.halves += 2 * __builtin_popcount(two);
    const Words word = Words(_mm512_maskz_expand_epi32(four, _mm512_loadu_si512(at.words)));
    at.words += 4 * __builtin_popcount(four);
    const Floats small = unit * to_floats(byte & 0x7Fu);
    const Floats large = 0x1p-15f * to_floats(half & 0x7FFFu);
    const Words sign = (byte >> 7 | half >> 15) << 31;
    // Lanes of another width are 0, so all can be combined.
    store(y + i, floats_of(bits_of(small) | bits_of(large) | sign | word));
  }
  at.low += i / 8;
  at.high += i / 8;
  kScalarKernels.fixed_decode(at, unit, y + i, n - i);
}

GRADCOMP_AVX512 FixedCounts fixed_count(const std::uint8_t* low, const std::uint8_t* high,
                                        std::size_t n) {
  return count_tags(low, high, n);
}

constexpr auto crc32c = crc32c_avx512;

constexpr const CodingKernels* coding = &kAvx512CodingKernels;
constexpr const PolarKernels* polar = &kAvx512PolarKernels;
constexpr const LinalgKernels* linalg = &kAvx512LinalgKernels;

}  // namespace

const Kernels kAvx512Kernels = GRADCOMP_KERNEL_TABLE("avx512");

}  // namespace gradcomp

#endif
