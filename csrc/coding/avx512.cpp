#if defined(__x86_64__)

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bytes.hpp"
#include "kernels/coding.hpp"
#include "kernels/registers_avx512.hpp"

namespace gradcomp {
namespace {

using namespace avx512;

#include "coding/contexts_loops.hpp"

struct Words {
  // Writes the lower halves of the marked states.
  GRADCOMP_AVX512 void put(Mask32 full, Vector states, std::uint8_t** to) const {
    store_half(*to, _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, states)));
    *to += kRansWord * static_cast<unsigned>(__builtin_popcount(full));
  }
  // Shifts words into the marked states.
  GRADCOMP_AVX512 Vector fill(Mask32 empty, Vector states, const std::uint8_t** from) const {
    *from -= kRansWord * static_cast<unsigned>(__builtin_popcount(empty));
    const Vector words = cvtepu16_epi32(load_half(*from));
    const Vector filling = _mm512_maskz_expand_epi32(empty, words);
    return _mm512_mask_or_epi32(states, empty, slli_epi32<16>(states), filling);
  }
};

using Table = Vector;
GRADCOMP_AVX512 inline Table load_table(const void* table) { return load_vector(table); }
GRADCOMP_AVX512 inline Vector look_up(Table table, Vector classes) {
  return _mm512_permutexvar_epi32(classes, table);
}

// By the lower five bits of half octaves, as classes take longer.
struct Thresholds {
  GRADCOMP_AVX512 explicit Thresholds(const DeadZone& zone) {
    constexpr std::size_t kHalves = 2 * kClasses;
    float of[kHalves];
    for (std::size_t above = 0; above < kHalves; ++above) {
      of[(kLowestHalf + above) % kHalves] = zone.threshold[std::min(above, kClasses - 1)];
    }
    low = load_floats(of);
    high = load_floats(of + kClasses);
  }
  Floats low;
  Floats high;
};
GRADCOMP_AVX512 inline Floats threshold_of(const Thresholds& thresholds, Vector halves, Vector) {
  return _mm512_permutex2var_ps(thresholds.low, halves, thresholds.high);
}

GRADCOMP_AVX512 inline __m128i sum_of(Vector numbers) {
  return _mm_sad_epu8(_mm512_cvtepi32_epi8(numbers), _mm_setzero_si128());
}

GRADCOMP_AVX512 inline void store_bytes(std::uint8_t* to, const Vector* numbers) {
  for (std::size_t k = 0; k < 2; ++k) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kFloats * k),
                     _mm512_cvtepi32_epi8(numbers[k]));
  }
}

#include "coding/loops.hpp"

// kFewLanes states fill a register of AVX2.
std::size_t rans_encode_any(const std::uint8_t* symbols, std::size_t n, std::size_t lanes,
                            const RansEncodeTable& table, std::uint32_t* states, std::uint8_t** to,
                            const std::uint8_t* end) {
  const auto encode = lanes == kFewLanes ? kAvx2CodingKernels.rans_encode : rans_encode;
  return encode(symbols, n, lanes, table, states, to, end);
}

bool decode_any_row(const std::uint8_t* begin, const std::uint8_t** from, const ClassTables& tables,
                    std::uint32_t* states, std::size_t lanes, const std::uint8_t* flags,
                    Contexts& contexts, std::int8_t* levels, std::size_t n) {
  const auto decode = lanes == kFewLanes ? kAvx2CodingKernels.decode_row : decode_row;
  return decode(begin, from, tables, states, lanes, flags, contexts, levels, n);
}

}  // namespace

const CodingKernels kAvx512CodingKernels = {rans_encode_any, rans_decode, pack_digits,
                                            unpack_digits,   classify,    count_classified,
                                            decode_any_row};

}  // namespace gradcomp

#endif
