#if defined(__x86_64__)

#include "base/bytes.hpp"
#include "kernels/cpu_x86.hpp"
#include "kernels/crc32c_tables.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {

namespace {

// As wide as the instruction's result: a narrower one costs an instruction in each link of a chain.
using CrcWord = std::uint64_t;

GRADCOMP_SSE42 inline CrcWord crc_word(CrcWord crc, std::uint64_t word) {
  return _mm_crc32_u64(crc, word);
}
GRADCOMP_SSE42 inline std::uint32_t crc_byte(std::uint32_t crc, std::uint8_t byte) {
  return _mm_crc32_u8(crc, byte);
}

#define GRADCOMP_LEVEL GRADCOMP_SSE42
#include "kernels/crc32c_loop.hpp"
#undef GRADCOMP_LEVEL

// x^exponent modulo the polynomial, in the reflected form that a carry-less multiply of reflected
// operands needs (one bit to the left). Gopal et al.: "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction", Intel, 2009.
std::uint64_t fold_constant(unsigned exponent) {
  std::uint32_t crc = 0x80000000u;  // x^0
  for (unsigned i = 0; i < exponent; ++i) crc = crc >> 1 ^ (crc & 1u ? kCrc32cPolynomial : 0u);
  return std::uint64_t{crc} << 1;
}

// Two multipliers that move a 128-bit lane `bits` bits ahead.
struct Fold {
  explicit Fold(unsigned bits) : low(fold_constant(bits + 32)), high(fold_constant(bits - 32)) {}
  std::uint64_t low, high;
};

GRADCOMP_VPCLMUL inline __m512i fold_into(__m512i lanes, __m512i constants, __m512i next) {
  const __m512i low = _mm512_clmulepi64_epi128(lanes, constants, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(lanes, constants, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);  // xor of the three
}

GRADCOMP_VPCLMUL inline __m512i broadcast(const Fold& fold) {
  return _mm512_broadcast_i32x4(
      _mm_set_epi64x(static_cast<long long>(fold.high), static_cast<long long>(fold.low)));
}

// Folds all whole blocks of 256 bytes into 16 bytes of the same remainder.
GRADCOMP_VPCLMUL std::uint32_t crc32c_fold(std::uint32_t crc, const std::uint8_t* data,
                                           std::size_t blocks) {
  static const Fold by_block(2048);
  static const Fold by_register(512);
  static const Fold by_lane(128);
  const __m512i block_constants = broadcast(by_block);
  const __m512i register_constants = broadcast(by_register);
  __m512i lanes[4];
  for (int j = 0; j < 4; ++j) lanes[j] = _mm512_loadu_si512(data + 64 * j);
  const __m512i start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc)));
  lanes[0] = _mm512_xor_si512(lanes[0], start);
  for (std::size_t i = 1; i < blocks; ++i) {
    data += 256;
    for (int j = 0; j < 4; ++j) {
      lanes[j] = fold_into(lanes[j], block_constants, _mm512_loadu_si512(data + 64 * j));
    }
  }
  for (int j = 1; j < 4; ++j) lanes[j] = fold_into(lanes[j - 1], register_constants, lanes[j]);
  alignas(64) std::uint8_t last[64];
  _mm512_store_si512(last, lanes[3]);
  const __m128i lane_constants =
      _mm_set_epi64x(static_cast<long long>(by_lane.high), static_cast<long long>(by_lane.low));
  __m128i folded = _mm_load_si128(reinterpret_cast<const __m128i*>(last));
  for (int j = 1; j < 4; ++j) {
    const __m128i low = _mm_clmulepi64_si128(folded, lane_constants, 0x00);
    const __m128i high = _mm_clmulepi64_si128(folded, lane_constants, 0x11);
    const __m128i next = _mm_load_si128(reinterpret_cast<const __m128i*>(last + 16 * j));
    folded = _mm_xor_si128(_mm_xor_si128(low, high), next);
  }
  _mm_store_si128(reinterpret_cast<__m128i*>(last), folded);
  return crc32c_lanes(0, last, 16);
}

}  // namespace

std::uint32_t crc32c_sse42(std::uint32_t crc, const std::uint8_t* data, std::size_t size) {
  return crc32c_lanes(crc, data, size);
}

std::uint32_t crc32c_avx512(std::uint32_t crc, const std::uint8_t* data, std::size_t size) {
  if (cpu_x86().folds && size >= 512) {
    const std::size_t blocks = size / 256;
    crc = crc32c_fold(crc, data, blocks);
    data += 256 * blocks;
    size -= 256 * blocks;
  }
  return crc32c_lanes(crc, data, size);
}

}  // namespace gradcomp

#endif
