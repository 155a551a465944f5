#if defined(__x86_64__)

#include <cmath>
#include <cstring>

#include "base/bytes.hpp"
#include "kernels/coding.hpp"
#include "kernels/moves.hpp"
#include "kernels/registers_avx2.hpp"

namespace gradcomp {
namespace {

using namespace avx2;

#include "coding/contexts_loops.hpp"

class Words {
 public:
  // Writes the lower halves of the marked states.
  GRADCOMP_AVX2 void put(Mask32 full, Vector states, std::uint8_t** to) const {
    const unsigned lanes = bits_of_lanes(full);
    const Vector words =
        _mm256_permutevar8x32_epi32(states & set1_epi32(0xFFFF), order_of(moves_.compress + lanes));
    store_half(*to, low_half(order_epi64(packus_epi32(words, words))));
    *to += kRansWord * static_cast<unsigned>(__builtin_popcount(lanes));
  }
  // Shifts words into the marked states.
  GRADCOMP_AVX2 Vector fill(Mask32 empty, Vector states, const std::uint8_t** from) const {
    const unsigned lanes = bits_of_lanes(empty);
    *from -= kRansWord * static_cast<unsigned>(__builtin_popcount(lanes));
    const Vector words = _mm256_permutevar8x32_epi32(cvtepu16_epi32(load_half(*from)),
                                                     order_of(moves_.expand + lanes));
    return blend_epi32(empty, states, slli_epi32<16>(states) | words);
  }

 private:
  GRADCOMP_AVX2 static Vector order_of(const void* move) {
    return cvtepu8_epi32(load_quarter(move));
  }

  const Moves& moves_ = moves();
};

using Table = const void*;
inline Table load_table(const void* table) { return table; }
GRADCOMP_AVX2 inline Vector look_up(Table table, Vector classes) {
  const auto* const halves = static_cast<const Vector*>(table);
  const Vector low = _mm256_permutevar8x32_epi32(load_vector(halves), classes);
  const Vector high = _mm256_permutevar8x32_epi32(load_vector(halves + 1), classes);
  return blend_epi32(cmpgt_epi32(classes, set1_epi32(7)), low, high);
}

struct Thresholds {
  explicit Thresholds(const DeadZone& zone) : of(zone.threshold) {}
  const float* of;
};
GRADCOMP_AVX2 inline Floats threshold_of(const Thresholds& thresholds, Vector, Vector classes) {
  return to_floats(look_up(thresholds.of, classes));
}

GRADCOMP_AVX2 inline __m128i sum_of(Vector numbers) {
  const Vector sums = _mm256_sad_epu8(numbers, Vector{});
  return _mm_add_epi64(low_half(sums), high_half(sums));
}

GRADCOMP_AVX2 inline void store_bytes(std::uint8_t* to, const Vector* numbers) {
  const Vector low = packs_epi32(numbers[0], numbers[1]) & set1_epi16(0xFF);
  const Vector high = packs_epi32(numbers[2], numbers[3]) & set1_epi16(0xFF);
  store_vector(to, order_epi32(packus_epi16(low, high)));
}

#include "coding/loops.hpp"

}  // namespace

const CodingKernels kAvx2CodingKernels = {rans_encode, rans_decode,      pack_digits, unpack_digits,
                                          classify,    count_classified, decode_row};

}  // namespace gradcomp

#endif
