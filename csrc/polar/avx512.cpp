#if defined(__x86_64__)

#include <algorithm>
#include <cstring>

#include "kernels/polar.hpp"
#include "kernels/registers_avx512.hpp"
#include "polar/lattice.hpp"
#include "polar/quantize.hpp"

namespace gradcomp {
namespace {

using namespace avx512;

GRADCOMP_AVX512 inline Vector repeat(const std::int8_t* sixteen) {
  return _mm512_broadcast_i32x4(load_quarter(sixteen));
}

GRADCOMP_AVX512 inline Vector look_up(const Vector (&table)[4], Vector index) {
  const Mask8 odd = _mm512_test_epi8_mask(index, set1_epi8(16));
  const Vector first =
      _mm512_mask_shuffle_epi8(shuffle_epi8(table[0], index), odd, table[1], index);
  const Vector second =
      _mm512_mask_shuffle_epi8(shuffle_epi8(table[2], index), odd, table[3], index);
  return blend_epi8(_mm512_test_epi8_mask(index, set1_epi8(32)), first, second);
}

GRADCOMP_AVX512 inline Vector flip(unsigned bits, Vector floats) {
  const Vector sign = set1_epi32(static_cast<int>(0x80000000u));
  return _mm512_mask_xor_epi32(floats, static_cast<Mask32>(bits), floats, sign);
}

#include "polar/loops.hpp"

}  // namespace

const PolarKernels kAvx512PolarKernels = {
    quantize,       check,           add,           add_frozen, decide,   decide_repetition,
    decide_parity,  xor_words,       agreement,     penalties,  move_llr, move_bits,
    lattice_places, lattice_indices, lattice_points};

}  // namespace gradcomp

#endif
