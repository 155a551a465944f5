// Operations on whole registers, for loops that AVX2 and AVX-512 share. No include guard: the
// header of each level includes this file inside its own namespace, with
//   GRADCOMP_LEVEL   the functions' attribute,
//   GRADCOMP_MM      the intrinsic of an operation,
// and with the types Vector (a register of integers), Half (half of one), Floats, and Mask8, Mask16
// and Mask32 (masks of numbers of so many bits). It adds the operations whose intrinsics differ in
// more than the prefix.
//
// Names are those of the intrinsics; bits of integers, and sums and products of floats, have
// operators. Intrinsics take shifts as constants, so these are template arguments. Other names:
//   set_*         elements at(0), at(1), ...,
//   order_epi64   restores the order of runs of eight bytes after a pack; order_epi32 that of runs
//                 of four after two packs,
//   wide_sum      the sum in 64 bits of numbers of 32 bits,
//   bits_of       the bits of a mask; to_mask and to_mask16 are the inverse, movm_* gives -1 or 0,
//   signs_epi16   masks of numbers below 0, of two registers as a mask of bytes, and
//   with a mask   blend_*: b where it is set, else a; keep_*: a, else 0; sign_of: -1, else 1;
//                 increment_*, decrement_*, negate_*, sub_*: the result, else a.

inline constexpr std::size_t kBytes = sizeof(Vector);
inline constexpr std::size_t kFloats = kBytes / sizeof(float);

GRADCOMP_LEVEL inline Floats load_floats(const float* from) { return GRADCOMP_MM(loadu_ps)(from); }
GRADCOMP_LEVEL inline void store_floats(float* to, Floats x) { GRADCOMP_MM(storeu_ps)(to, x); }
GRADCOMP_LEVEL inline Vector from_floats(Floats x) { return reinterpret_cast<Vector>(x); }
GRADCOMP_LEVEL inline Floats to_floats(Vector a) { return reinterpret_cast<Floats>(a); }
GRADCOMP_LEVEL inline Vector set1_epi8(int x) {
  return GRADCOMP_MM(set1_epi8)(static_cast<char>(x));
}
GRADCOMP_LEVEL inline Vector set1_epi16(int x) {
  return GRADCOMP_MM(set1_epi16)(static_cast<short>(x));
}
GRADCOMP_LEVEL inline Vector set1_epi32(int x) { return GRADCOMP_MM(set1_epi32)(x); }
GRADCOMP_LEVEL inline Floats set1_ps(float x) { return GRADCOMP_MM(set1_ps)(x); }

#define GRADCOMP_BINARY(op) \
  GRADCOMP_LEVEL inline Vector op(Vector a, Vector b) { return GRADCOMP_MM(op)(a, b); }
GRADCOMP_BINARY(add_epi16)
GRADCOMP_BINARY(add_epi32)
GRADCOMP_BINARY(adds_epi8)
GRADCOMP_BINARY(madd_epi16)
GRADCOMP_BINARY(maddubs_epi16)
GRADCOMP_BINARY(max_epi16)
GRADCOMP_BINARY(max_epi32)
GRADCOMP_BINARY(max_epi8)
GRADCOMP_BINARY(max_epu32)
GRADCOMP_BINARY(min_epi32)
GRADCOMP_BINARY(min_epi8)
GRADCOMP_BINARY(min_epu16)
GRADCOMP_BINARY(mul_epu32)
GRADCOMP_BINARY(mullo_epi32)
GRADCOMP_BINARY(packs_epi16)
GRADCOMP_BINARY(packs_epi32)
GRADCOMP_BINARY(packus_epi16)
GRADCOMP_BINARY(packus_epi32)
GRADCOMP_BINARY(shuffle_epi8)
GRADCOMP_BINARY(srlv_epi64)
GRADCOMP_BINARY(sub_epi32)
GRADCOMP_BINARY(sub_epi8)
#undef GRADCOMP_BINARY

#define GRADCOMP_SHIFT(op)                    \
  template <int kBits>                        \
  GRADCOMP_LEVEL inline Vector op(Vector a) { \
    return GRADCOMP_MM(op)(a, kBits);         \
  }
GRADCOMP_SHIFT(slli_epi16)
GRADCOMP_SHIFT(slli_epi32)
GRADCOMP_SHIFT(slli_epi64)
GRADCOMP_SHIFT(srai_epi16)
GRADCOMP_SHIFT(srai_epi32)
GRADCOMP_SHIFT(srli_epi32)
GRADCOMP_SHIFT(srli_epi64)
#undef GRADCOMP_SHIFT

GRADCOMP_LEVEL inline Vector abs_epi8(Vector a) { return GRADCOMP_MM(abs_epi8)(a); }
GRADCOMP_LEVEL inline Floats min_ps(Floats a, Floats b) { return GRADCOMP_MM(min_ps)(a, b); }
GRADCOMP_LEVEL inline Vector cvtps_epi32(Floats x) { return GRADCOMP_MM(cvtps_epi32)(x); }
GRADCOMP_LEVEL inline Vector cvttps_epi32(Floats x) { return GRADCOMP_MM(cvttps_epi32)(x); }
GRADCOMP_LEVEL inline Floats cvtepi32_ps(Vector a) { return GRADCOMP_MM(cvtepi32_ps)(a); }
GRADCOMP_LEVEL inline Vector cvtepi8_epi16(Half a) { return GRADCOMP_MM(cvtepi8_epi16)(a); }
GRADCOMP_LEVEL inline Vector cvtepi16_epi32(Half a) { return GRADCOMP_MM(cvtepi16_epi32)(a); }
GRADCOMP_LEVEL inline Vector cvtepu8_epi16(Half a) { return GRADCOMP_MM(cvtepu8_epi16)(a); }
GRADCOMP_LEVEL inline Vector cvtepu8_epi32(__m128i a) { return GRADCOMP_MM(cvtepu8_epi32)(a); }
GRADCOMP_LEVEL inline Vector cvtepu16_epi32(Half a) { return GRADCOMP_MM(cvtepu16_epi32)(a); }
GRADCOMP_LEVEL inline Vector broadcastd_epi32(__m128i a) {
  return GRADCOMP_MM(broadcastd_epi32)(a);
}
GRADCOMP_LEVEL inline Vector sra_epi32(Vector a, __m128i n) { return GRADCOMP_MM(sra_epi32)(a, n); }
