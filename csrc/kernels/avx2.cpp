#if defined(__x86_64__)

#include "base/rng.hpp"
#include "kernels/dynamic8.hpp"
#include "kernels/fixed.hpp"
#include "kernels/half.hpp"
#include "kernels/kernels.hpp"
#include "kernels/planes_x86.hpp"
#include "kernels/sums.hpp"
#include "kernels/table.hpp"
#include "kernels/vectors_avx2.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {
namespace {

#include "kernels/convert_loops.hpp"
#include "kernels/feedback_loops.hpp"
#include "kernels/level_loops.hpp"
#include "kernels/quantize_loops.hpp"
#include "kernels/random_loops.hpp"
#include "kernels/sign_loops.hpp"

using planes::compress_bytes;
using planes::expand_bytes;
using planes::split_planes;

GRADCOMP_AVX2 std::size_t collect(const float* x, std::size_t n, std::uint32_t base,
                                  std::uint32_t threshold, float* values, std::uint32_t* indices,
                                  std::size_t capacity, std::size_t* taken) {
  const Words below = broadcast(threshold - 1);
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i + 32 <= n && capacity - count >= kCollectSlack; i += 32) {
    std::uint32_t hits = 0;
    for (int j = 0; j < 2; ++j) prefetch_ahead(x + i + 16 * j);
    for (int j = 0; j < 4; ++j) {
      hits |= lanes(greater(magnitude(load(x + i + 8 * j)), below)) << 8 * j;
    }
    for (; hits != 0; hits &= hits - 1) {
      const std::size_t at = i + static_cast<std::size_t>(__builtin_ctz(hits));
      values[count] = x[at];
      indices[count] = base + static_cast<std::uint32_t>(at);
      ++count;
    }
  }
  std::size_t tail_taken = 0;
  count += kScalarKernels.collect(x + i, n - i, base + static_cast<std::uint32_t>(i), threshold,
                                  values + count, indices + count, capacity - count, &tail_taken);
  *taken = i + tail_taken;
  return count;
}

GRADCOMP_AVX2 void dynamic8_encode(const float* x, float largest, std::uint8_t* out,
                                   std::size_t n) {
  if (largest < Dynamic8Lines::kSmallest) {
    return kScalarKernels.dynamic8_encode(x, largest, out, n);
  }
  const Dynamic8& map = dynamic8();
  const Dynamic8Levels<Dynamic8Lines> levels{map.lines(largest)};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch(x, n + i, 16);
    unsigned unsure = 0;
    Words codes[2];
    for (int j = 0; j < 2; ++j) {
      const Floats v = load(x + i + 8 * j);
      const Words fixed = levels.fixed(absolute(v));
      unsure |= lanes(lacks(fixed + Dynamic8Lines::kNear, broadcast(Dynamic8Lines::kFar))) << 8 * j;
      const Words negative = spread_sign(bits_of(v));
      codes[j] = ((fixed >> 16 ^ negative) - negative) + 127u;
    }
    // Saturation turns code -1, of the value -1, into 0.
    const __m256i halves =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(__m256i(codes[0]), __m256i(codes[1])), 0xD8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out + i),
        _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
    for (; unsure != 0; unsure &= unsure - 1) {
      const std::size_t at = i + static_cast<std::size_t>(__builtin_ctz(unsure));
      out[at] = dynamic8_code(map, x[at] / largest);
    }
  }
  kScalarKernels.dynamic8_encode(x + i, largest, out + i, n - i);
}

// Any number of levels per sign: two look-ups in the cells of the magnitudes.
struct CellLevels {
  const Centroids* centroids;

  GRADCOMP_AVX2 void start(const Centroids& c) { centroids = &c; }

  GRADCOMP_AVX2 Words level(Floats magnitude) const {
    const Words cell = truncate(min(magnitude * Centroids::kCellsPerUnit,
                                    broadcast(static_cast<float>(Centroids::kCells - 1))));
    const Mask above = greater(magnitude, gather(centroids->cell_bound, cell));
    return add_one(above, gather(centroids->cell_level, cell));
  }

  GRADCOMP_AVX2 Floats centroid(Words level) const { return gather(centroids->positive, level); }
};

GRADCOMP_AVX2 CentroidSums quantize_centroids(const float* x, float scale, const Centroids& c,
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
      return quantize_with<FewLevels<7>>(x, scale, c, with_energy, symbols, n);
    default:
      return quantize_with<CellLevels>(x, scale, c, with_energy, symbols, n);
  }
}

// AVX2 has no instruction to compress the elements of one width.
FixedCounts fixed_encode(const float* x, float per_unit, const FixedOutput& out, std::size_t n) {
  return kScalarKernels.fixed_encode(x, per_unit, out, n);
}

void fixed_decode(const FixedInput& in, float unit, float* y, std::size_t n) {
  kScalarKernels.fixed_decode(in, unit, y, n);
}

GRADCOMP_AVX2 FixedCounts fixed_count(const std::uint8_t* low, const std::uint8_t* high,
                                      std::size_t n) {
  return count_tags(low, high, n);
}

constexpr auto crc32c = crc32c_sse42;

constexpr const CodingKernels* coding = &kAvx2CodingKernels;
constexpr const PolarKernels* polar = &kAvx2PolarKernels;
constexpr const LinalgKernels* linalg = &kAvx2LinalgKernels;

}  // namespace

const Kernels kAvx2Kernels = GRADCOMP_KERNEL_TABLE("avx2");

}  // namespace gradcomp

#endif
