#if defined(__aarch64__)

// Advanced SIMD ("NEON"), which every 64-bit ARM processor has: the loops that compilers do not
// vectorize from the scalar level, or for which there is an instruction. The others are scalar.

#include "kernels/neon.hpp"

#include <arm_neon.h>
#include <sys/auxv.h>

#include "base/bytes.hpp"
#include "base/rng.hpp"
#include "kernels/crc32c_tables.hpp"
#include "kernels/half.hpp"
#include "kernels/sums.hpp"
#include "kernels/vectors_neon.hpp"

namespace gradcomp {
namespace {

// ---------------------------------------------------------------- binary16

// Finite numbers that round beyond the finite range become +-65504.
inline float32x4_t limit_half(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t size = vandq_u32(bits, vdupq_n_u32(kMagnitudeMask));
  const uint32x4_t beyond = vandq_u32(vcgeq_u32(size, vdupq_n_u32(kHalfOverflow)),
                                      vcltq_u32(size, vdupq_n_u32(kInfBits)));
  const uint32x4_t limit =
      vbslq_u32(vdupq_n_u32(kMagnitudeMask), vreinterpretq_u32_f32(vdupq_n_f32(65504.0f)), bits);
  return vreinterpretq_f32_u32(vbslq_u32(beyond, limit, bits));
}

void f32_to_f16(const float* x, std::uint8_t* out, std::size_t n, bool saturate) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    float32x4_t a = vld1q_f32(x + i);
    float32x4_t b = vld1q_f32(x + i + 4);
    if (saturate) {
      a = limit_half(a);
      b = limit_half(b);
    }
    const float16x8_t halves = vcombine_f16(vcvt_f16_f32(a), vcvt_f16_f32(b));
    vst1q_u8(out + 2 * i, vreinterpretq_u8_f16(halves));
  }
  kScalarKernels.f32_to_f16(x + i, out + 2 * i, n - i, saturate);
}

inline float32x4_t floats_of_halves(const std::uint8_t* in) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(in)));
}

void f16_to_f32(const std::uint8_t* in, float* y, std::size_t n) {
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) vst1q_f32(y + i, floats_of_halves(in + 2 * i));
  kScalarKernels.f16_to_f32(in + 2 * i, y + i, n - i);
}

void f16_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float32x4_t term = vmulq_n_f32(floats_of_halves(in + 2 * i), weight);
    vst1q_f32(acc + i, vaddq_f32(vld1q_f32(acc + i), term));
  }
  kScalarKernels.f16_add(in + 2 * i, weight, acc + i, n - i);
}

// ---------------------------------------------------------------- selection

// By the mask of the marked ones of 4 lanes: the bytes that move them to the front.
struct Gathers {
  std::uint8_t bytes[16][16];

  Gathers() noexcept {
    for (unsigned mask = 0; mask < 16; ++mask) {
      unsigned at = 0;
      for (unsigned lane = 0; lane < 4; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        for (unsigned b = 0; b < 4; ++b)
          bytes[mask][at++] = static_cast<std::uint8_t>(4 * lane + b);
      }
      while (at < 16) bytes[mask][at++] = 0;
    }
  }
};

std::size_t collect(const float* x, std::size_t n, std::uint32_t base, std::uint32_t threshold,
                    float* values, std::uint32_t* indices, std::size_t capacity,
                    std::size_t* taken) {
  static const Gathers gathers;
  const uint32x4_t least = vdupq_n_u32(threshold);
  const uint32x4_t place = {1, 2, 4, 8};
  const uint32x4_t lanes = {0, 1, 2, 3};
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i + 16 <= n && capacity - count >= kCollectSlack; i += 16) {
    uint32x4_t hits[4];
    for (int j = 0; j < 4; ++j) hits[j] = vcgeq_u32(magnitude(load(x + i + 4 * j)), least);
    const uint32x4_t any = vorrq_u32(vorrq_u32(hits[0], hits[1]), vorrq_u32(hits[2], hits[3]));
    if (vmaxvq_u32(any) == 0) continue;
    for (std::size_t j = 0; j < 4; ++j) {
      const std::uint32_t mask = vaddvq_u32(vandq_u32(hits[j], place));
      const uint8x16_t moves = vld1q_u8(gathers.bytes[mask]);
      const std::size_t at = i + 4 * j;
      const uint8x16_t found = vqtbl1q_u8(vreinterpretq_u8_f32(vld1q_f32(x + at)), moves);
      const uint32x4_t index = vaddq_u32(vdupq_n_u32(base + static_cast<std::uint32_t>(at)), lanes);
      vst1q_f32(values + count, vreinterpretq_f32_u8(found));
      vst1q_u32(indices + count,
                vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(index), moves)));
      count += static_cast<std::size_t>(__builtin_popcount(mask));
    }
  }
  std::size_t tail_taken = 0;
  count += kScalarKernels.collect(x + i, n - i, base + static_cast<std::uint32_t>(i), threshold,
                                  values + count, indices + count, capacity - count, &tail_taken);
  *taken = i + tail_taken;
  return count;
}

// ---------------------------------------------------------------- sums

#include "kernels/sum_loops.hpp"

// ---------------------------------------------------------------- sign bits

void pack_negative(const float* x, std::uint8_t* out, std::size_t n) {
  const uint32x4_t low = {1, 2, 4, 8};
  const uint32x4_t high = {16, 32, 64, 128};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint32x4_t a = vandq_u32(vcltzq_f32(vld1q_f32(x + i)), low);
    const uint32x4_t b = vandq_u32(vcltzq_f32(vld1q_f32(x + i + 4)), high);
    out[i / 8] = static_cast<std::uint8_t>(vaddvq_u32(vorrq_u32(a, b)));
  }
  kScalarKernels.pack_negative(x + i, out + i / 8, n - i);
}

// Calls write(i, four chosen values) for all whole bytes, and returns the number of elements.
template <typename Write>
inline std::size_t each_choice(const std::uint8_t* bits, float clear, float set, std::size_t n,
                               const Write& write) {
  const uint32x4_t low = {1, 2, 4, 8};
  const uint32x4_t high = {16, 32, 64, 128};
  const float32x4_t clears = vdupq_n_f32(clear);
  const float32x4_t sets = vdupq_n_f32(set);
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint32x4_t byte = vdupq_n_u32(bits[i / 8]);
    write(i, vbslq_f32(vtstq_u32(byte, low), sets, clears));
    write(i + 4, vbslq_f32(vtstq_u32(byte, high), sets, clears));
  }
  return i;
}

void select_bits(const std::uint8_t* bits, float clear, float set, float* y, std::size_t n) {
  const std::size_t i = each_choice(
      bits, clear, set, n, [&](std::size_t at, float32x4_t value) { vst1q_f32(y + at, value); });
  kScalarKernels.select_bits(bits + i / 8, clear, set, y + i, n - i);
}

void select_bits_add(const std::uint8_t* bits, float clear, float set, float* acc, std::size_t n) {
  const std::size_t i = each_choice(bits, clear, set, n, [&](std::size_t at, float32x4_t value) {
    vst1q_f32(acc + at, vaddq_f32(vld1q_f32(acc + at), value));
  });
  kScalarKernels.select_bits_add(bits + i / 8, clear, set, acc + i, n - i);
}

// ---------------------------------------------------------------- random words

// Upper and lower halves of the products with a constant.
struct Products {
  uint32x4_t upper, lower;

  Products(uint32x4_t x, std::uint32_t factor) {
    const uint64x2_t first = vmull_n_u32(vget_low_u32(x), factor);
    const uint64x2_t second = vmull_high_n_u32(x, factor);
    lower = vuzp1q_u32(vreinterpretq_u32_u64(first), vreinterpretq_u32_u64(second));
    upper = vuzp2q_u32(vreinterpretq_u32_u64(first), vreinterpretq_u32_u64(second));
  }
};

// The counters of four blocks, word by word.
struct Philox {
  uint32x4x4_t words;

  Philox(std::uint64_t block, std::uint32_t use) {
    std::uint32_t low[4], high[4];
    for (std::uint64_t j = 0; j < 4; ++j) {
      low[j] = static_cast<std::uint32_t>(block + j);
      high[j] = static_cast<std::uint32_t>((block + j) >> 32);
    }
    words = {{vld1q_u32(low), vld1q_u32(high), vdupq_n_u32(use), vdupq_n_u32(0)}};
  }

  void step(std::uint32_t key0, std::uint32_t key1) {
    const Products a(words.val[0], 0xD2511F53u);
    const Products b(words.val[2], 0xCD9E8D57u);
    words.val[0] = veorq_u32(veorq_u32(b.upper, words.val[1]), vdupq_n_u32(key0));
    words.val[1] = b.lower;
    words.val[2] = veorq_u32(veorq_u32(a.upper, words.val[3]), vdupq_n_u32(key1));
    words.val[3] = a.lower;
  }
};

// The 16 words of four Philox blocks.
inline void philox16(std::uint64_t stream, std::uint32_t use, std::uint64_t block,
                     std::uint32_t* out) {
  Philox lanes(block, use);
  auto key0 = static_cast<std::uint32_t>(stream);
  auto key1 = static_cast<std::uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    lanes.step(key0, key1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  vst4q_u32(out, lanes.words);
}

// Writes a multiple of 16 words, and returns their number.
inline std::size_t philox_words(std::uint64_t stream, std::uint32_t use, std::uint64_t first_block,
                                std::uint32_t* out, std::size_t n) {
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) philox16(stream, use, first_block + i / 4, out + i);
  return i;
}

void random_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out, std::size_t n) {
  const std::size_t done = philox_words(stream, kWordBlocks, first / 4, out, n);
  kScalarKernels.random_words(stream, first + done, out + done, n - done);
}

void rounding_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out, std::size_t n,
                    const float*) {
  for (std::size_t i = 0; i < n; i += 32) {
    philox16(stream, kRoundingBlocks, (first + i) / 8, out + i);
    for (std::size_t j = i; j < i + 16; j += 4) {
      const uint16x8_t halves = vreinterpretq_u16_u32(vld1q_u32(out + j));
      vst1q_u32(out + j + 16, vreinterpretq_u32_u16(vrev32q_u16(halves)));
    }
  }
}

void draw_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out, std::size_t n) {
  const std::size_t done = philox_words(stream, kDrawBlocks, first / 2, out, n);
  kScalarKernels.draw_words(stream, first + done / 2, out + done, n - done);
}

// ---------------------------------------------------------------- CRC-32C

using CrcWord = std::uint32_t;

// Assembly, as compilers name the builtins and their target attribute differently.
inline CrcWord crc_word(CrcWord crc, std::uint64_t word) {
  __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  return crc;
}
inline std::uint32_t crc_byte(std::uint32_t crc, std::uint8_t byte) {
  __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
  return crc;
}

#include "kernels/crc32c_loop.hpp"

// An option of processors until Armv8.1.
bool has_crc32() noexcept {
  constexpr unsigned long kHwcapCrc32 = 1ul << 7;
  return (getauxval(AT_HWCAP) & kHwcapCrc32) != 0;
}

}  // namespace

const Kernels& neon_kernels() noexcept {
  static const Kernels all = [] {
    Kernels table = kScalarKernels;
    table.name = "neon";
    table.f32_to_f16 = f32_to_f16;
    table.f16_to_f32 = f16_to_f32;
    table.f16_add = f16_add;
    table.collect = collect;
    table.max_magnitude = max_magnitude;
    table.sum_magnitudes = sum_magnitudes;
    table.sum_squares = sum_squares;
    table.moments = moments;
    table.sum_by_sign = sum_by_sign;
    table.pack_negative = pack_negative;
    table.select_bits = select_bits;
    table.select_bits_add = select_bits_add;
    table.random_words = random_words;
    table.rounding_words = rounding_words;
    table.draw_words = draw_words;
    if (has_crc32()) table.crc32c = crc32c_lanes;
    return table;
  }();
  return all;
}

}  // namespace gradcomp

#endif
