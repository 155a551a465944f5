#if defined(__x86_64__)

#include <algorithm>
#include <cstring>

#include "kernels/polar.hpp"
#include "kernels/registers_avx2.hpp"
#include "polar/lattice.hpp"
#include "polar/quantize.hpp"

namespace gradcomp {
namespace {

using namespace avx2;

GRADCOMP_AVX2 inline Vector repeat(const std::int8_t* sixteen) {
  return _mm256_broadcastsi128_si256(load_half(sixteen));
}

// Blends take their masks from the uppermost bits, into which bits 4 and 5 of an index move.
GRADCOMP_AVX2 inline Vector look_up(const Vector (&table)[4], Vector index) {
  const Vector odd = _mm256_slli_epi16(index, 3);
  const Vector first =
      blend_epi8(odd, shuffle_epi8(table[0], index), shuffle_epi8(table[1], index));
  const Vector second =
      blend_epi8(odd, shuffle_epi8(table[2], index), shuffle_epi8(table[3], index));
  return blend_epi8(_mm256_slli_epi16(index, 2), first, second);
}

GRADCOMP_AVX2 inline Vector flip(unsigned bits, Vector floats) {
  const Vector to_sign = _mm256_setr_epi32(31, 30, 29, 28, 27, 26, 25, 24);
  const Vector set = _mm256_sllv_epi32(set1_epi32(static_cast<int>(bits)), to_sign);
  return floats ^ (set & set1_epi32(static_cast<int>(0x80000000u)));
}

#include "polar/loops.hpp"

}  // namespace

const PolarKernels kAvx2PolarKernels = {
    quantize,       check,           add,           add_frozen, decide,   decide_repetition,
    decide_parity,  xor_words,       agreement,     penalties,  move_llr, move_bits,
    lattice_places, lattice_indices, lattice_points};

}  // namespace gradcomp

#endif
