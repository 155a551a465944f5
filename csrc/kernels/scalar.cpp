// Reference level: every other level must give the same bits.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/rng.hpp"
#include "kernels/crc32c_tables.hpp"
#include "kernels/dynamic8.hpp"
#include "kernels/fixed.hpp"
#include "kernels/half.hpp"
#include "kernels/kernels.hpp"
#include "kernels/sums.hpp"
#include "kernels/table.hpp"

namespace gradcomp {
namespace {

void f32_to_f16(const float* x, std::uint8_t* out, std::size_t n, bool saturate) {
  for (std::size_t i = 0; i < n; ++i) store(out + 2 * i, half_from_float(x[i], saturate));
}

void f16_to_f32(const std::uint8_t* in, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] = float_from_half(load<std::uint16_t>(in + 2 * i));
}

void f16_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    acc[i] += weight * float_from_half(load<std::uint16_t>(in + 2 * i));
  }
}

void f32_to_bf16(const float* x, std::uint8_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) store(out + 2 * i, bfloat_from_float(x[i]));
}

void bf16_to_f32(const std::uint8_t* in, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] = float_from_bfloat(load<std::uint16_t>(in + 2 * i));
}

void bf16_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    acc[i] += weight * float_from_bfloat(load<std::uint16_t>(in + 2 * i));
  }
}

void f32_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) acc[i] += weight * load<float>(in + 4 * i);
}

bool compensate(float* residual, const float* grad, float beta, float gamma, std::size_t n) {
  bool finite = true;
  for (std::size_t i = 0; i < n; ++i) {
    const float corrected = beta * residual[i] + gamma * grad[i];
    residual[i] = corrected;
    finite &= (float_bits(corrected) & kInfBits) != kInfBits;
  }
  return finite;
}

bool correct_momentum(float* velocity, float* momentum, const float* grad, float factor,
                      float scale, bool nesterov, std::size_t n) {
  bool finite = true;
  for (std::size_t i = 0; i < n; ++i) {
    const float scaled = scale * grad[i];
    float step = 0;
    if (nesterov) {
      momentum[i] = factor * (momentum[i] + scaled);
      step = momentum[i] + scaled;
    } else {
      momentum[i] = factor * momentum[i] + scaled;
      step = momentum[i];
    }
    velocity[i] += step;
    finite &= (float_bits(velocity[i]) & kInfBits) != kInfBits;
  }
  return finite;
}

void zero(float* y, std::size_t n) { std::fill_n(y, n, 0.0f); }

void copy_uncached(const float* x, float* y, std::size_t n) { std::copy_n(x, n, y); }

void zero_nonfinite(float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if ((float_bits(x[i]) & kInfBits) == kInfBits) x[i] = 0.0f;
  }
}

std::size_t collect(const float* x, std::size_t n, std::uint32_t base, std::uint32_t threshold,
                    float* values, std::uint32_t* indices, std::size_t capacity,
                    std::size_t* taken) {
  std::size_t count = 0;
  std::size_t i = 0;
  for (; i < n && capacity - count >= kCollectSlack; ++i) {
    values[count] = x[i];
    indices[count] = base + static_cast<std::uint32_t>(i);
    count += (float_bits(x[i]) & kMagnitudeMask) >= threshold ? 1 : 0;
  }
  *taken = i;
  return count;
}

std::uint32_t max_magnitude(const float* x, std::size_t n) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t magnitude = float_bits(x[i]) & kMagnitudeMask;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

double sum_magnitudes(const float* x, std::size_t n) {
  PartialSums sums;
  for (std::size_t i = 0; i < n; ++i) sums.add(i, std::fabs(static_cast<double>(x[i])));
  return sums.total();
}

double level_error(const float* x, const std::uint8_t* symbols, std::size_t n, float inverse,
                   float bias) {
  PartialSums sums;
  for (std::size_t i = 0; i < n; ++i) {
    sums.add(i, static_cast<double>(squared_level_error(x[i], symbols[i], inverse, bias)));
  }
  return sums.total();
}

double sum_squares(const float* x, std::size_t n) {
  PartialSums sums;
  for (std::size_t i = 0; i < n; ++i) {
    sums.add(i, static_cast<double>(x[i]) * static_cast<double>(x[i]));
  }
  return sums.total();
}

void philox_words(std::uint64_t stream, std::uint32_t use, std::uint64_t block, std::uint32_t* out,
                  std::size_t n) {
  for (std::size_t i = 0; i < n; i += 4, ++block) {
    const PhiloxBlock words = stream_block(stream, use, block);
    for (std::size_t j = 0; j < 4 && i + j < n; ++j) out[i + j] = words[j];
  }
}

#define GRADCOMP_LEVEL
#include "kernels/quantize_loops.hpp"
#undef GRADCOMP_LEVEL

PlaneBits split_planes(const float* x, std::uint8_t* exponent, std::uint8_t* upper,
                       std::uint8_t* middle, std::uint8_t* lower, std::size_t n) {
  PlaneBits found{};
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = float_bits(x[i]);
    const std::uint32_t e = bits >> 23 & 0xFFu;
    const std::uint32_t rest = (bits & 0x7FFFFFu) | (bits >> 8 & 0x800000u);
    found.any |= e << 24 | rest;
    found.of_zeros |= e == 0 ? rest : 0;
    exponent[i] = static_cast<std::uint8_t>(e);
    upper[i] = static_cast<std::uint8_t>(rest >> 16);
    middle[i] = static_cast<std::uint8_t>(rest >> 8);
    lower[i] = static_cast<std::uint8_t>(rest);
  }
  return found;
}

std::size_t compress_bytes(const std::uint8_t* keys, std::uint8_t* bytes, std::size_t n) {
  std::uint8_t* to = bytes;
  for (std::size_t i = 0; i < n; ++i) {
    *to = bytes[i];
    to += keys[i] != 0;
  }
  return static_cast<std::size_t>(to - bytes);
}

const std::uint8_t* expand_bytes(const std::uint8_t* keys, const std::uint8_t* from,
                                 const std::uint8_t*, std::uint8_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) out[i] = keys[i] != 0 ? *from++ : 0;
  return from;
}

void pack_negative(const float* x, std::uint8_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 8) {
    unsigned bits = 0;
    for (std::size_t j = 0; j < 8 && i + j < n; ++j) bits |= (x[i + j] < 0 ? 1u : 0u) << j;
    out[i / 8] = static_cast<std::uint8_t>(bits);
  }
}

void select_bits(const std::uint8_t* bits, float clear, float set, float* y, std::size_t n) {
  const float values[2] = {clear, set};
  for (std::size_t i = 0; i < n; ++i) y[i] = values[bits[i / 8] >> i % 8 & 1];
}

void select_bits_add(const std::uint8_t* bits, float clear, float set, float* acc, std::size_t n) {
  const float values[2] = {clear, set};
  for (std::size_t i = 0; i < n; ++i) acc[i] += values[bits[i / 8] >> i % 8 & 1];
}

Moments moments(const float* x, std::size_t n) {
  PartialSums sum, squares;
  for (std::size_t i = 0; i < n; ++i) {
    const auto wide = static_cast<double>(x[i]);
    sum.add(i, wide);
    squares.add(i, wide * wide);
  }
  return {sum.total(), squares.total()};
}

SignedSums sum_by_sign(const float* x, std::size_t n) {
  PartialSums negative, others;
  for (std::size_t i = 0; i < n; ++i) {
    const SignedSums terms = split_by_sign(x[i]);
    negative.add(i, terms.negative);
    others.add(i, terms.others);
  }
  return {negative.total(), others.total()};
}

void natural_encode(const float* x, const std::uint32_t* words, std::uint8_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = float_bits(x[i]);
    const std::uint32_t magnitude = bits & kMagnitudeMask;
    // The sum carries into the exponent exactly where the significand exceeds the word.
    std::uint32_t code = (magnitude + (~words[i] >> 9)) >> 23;
    code = (code > kNaturalOffset ? code : kNaturalOffset) - kNaturalOffset;
    code = code < 127 ? code : 127;
    code |= code != 0 ? bits >> 24 & 0x80u : 0;
    out[i] = static_cast<std::uint8_t>(magnitude >= kInfBits ? 0x80u : code);
  }
}

inline float natural_value(std::uint8_t code) {
  const std::uint32_t exponent = code & 0x7Fu;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t power = sign | (exponent + kNaturalOffset) << 23;
  const std::uint32_t special = sign != 0 ? kNanBits : 0;
  return bits_float(exponent != 0 ? power : special);
}

void natural_decode(const std::uint8_t* in, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] = natural_value(in[i]);
}

void natural_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) acc[i] += weight * natural_value(in[i]);
}

void dynamic8_encode(const float* x, float largest, std::uint8_t* out, std::size_t n) {
  const Dynamic8& map = dynamic8();
  for (std::size_t i = 0; i < n; ++i) out[i] = dynamic8_code(map, x[i] / largest);
}

void f32_to_zigzag(const float* x, const std::uint32_t* words, float scale, unsigned levels,
                   std::uint8_t* symbols, std::size_t n) {
  const auto most = static_cast<std::int32_t>(levels);
  for (std::size_t i = 0; i < n; ++i) {
    const auto fixed = static_cast<std::int32_t>(std::fabs(x[i]) * scale);
    const auto level =
        static_cast<std::int32_t>((static_cast<std::uint32_t>(fixed) + (words[i] >> 8)) >> 24);
    const std::int32_t bounded = level < most ? level : most;
    const std::int32_t symbol = 2 * bounded - static_cast<std::int32_t>(float_bits(x[i]) >> 31);
    symbols[i] = static_cast<std::uint8_t>(symbol < 0 ? 0 : symbol);
  }
}

inline float zigzag_level(std::uint8_t symbol) {
  const std::int32_t wide = symbol;
  return static_cast<float>((wide >> 1) ^ -(wide & 1));
}

void zigzag_to_f32(const std::uint8_t* symbols, float unit, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] = unit * zigzag_level(symbols[i]);
}

void zigzag_add(const std::uint8_t* symbols, float unit, float weight, float* acc, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) acc[i] += weight * (unit * zigzag_level(symbols[i]));
}

void flip_signs(const float* x, const std::uint32_t* words, float factor, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t sign = (words[i / 32] >> i % 32) << 31;
    y[i] = bits_float(float_bits(factor * x[i]) ^ sign);
  }
}

void hadamard(float* x, unsigned log2) {
  const std::size_t n = std::size_t{1} << log2;
  for (std::size_t stride = 1; stride < n; stride *= 2) {
    for (std::size_t i = 0; i < n; i += 2 * stride) {
      for (std::size_t j = i; j < i + stride; ++j) {
        const float a = x[j];
        const float b = x[j + stride];
        x[j] = a + b;
        x[j + stride] = a - b;
      }
    }
  }
}

void quantize_uniform(const float* x, float scale, float top, const std::uint32_t* noise,
                      std::uint8_t* symbols, std::size_t n) {
  // Adding 1.5 * 2^23 leaves the nearest whole number in the lower bits.
  constexpr float kRound = 12582912.0f;
  const float middle = 0.5f * top;
  for (std::size_t i = 0; i < n; ++i) {
    float at = scale * x[i] + middle;
    at = at > 0.0f ? at : 0.0f;
    at = at < top ? at : top;
    if (noise == nullptr) {
      symbols[i] = static_cast<std::uint8_t>(float_bits(at + kRound));
    } else {
      at += static_cast<float>(static_cast<std::int32_t>(noise[i] >> 8)) * 0x1p-24f;
      at = at < top ? at : top;
      symbols[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(at));
    }
  }
}

CentroidSums quantize_centroids(const float* x, float scale, const Centroids& centroids,
                                bool with_energy, std::uint8_t* symbols, std::size_t n) {
  PartialSums dot;
  PartialSums energy;
  const std::uint32_t half = centroids.half;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = float_bits(x[i]);
    const float magnitude = bits_float(bits & kMagnitudeMask);
    const std::uint32_t level = centroids.level(magnitude * scale);
    const float centroid = centroids.positive[level];
    // half is a power of two, and level is below it.
    symbols[i] = static_cast<std::uint8_t>(level ^ (bits >> 31 != 0 ? half - 1 : half));
    dot.add(i, static_cast<double>(magnitude * centroid));
    if (with_energy) energy.add(i, static_cast<double>(centroid * centroid));
  }
  return {dot.total(), energy.total()};
}

void look_up(const std::uint8_t* symbols, const float* table, unsigned, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] = table[symbols[i]];
}

void random_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out, std::size_t n) {
  philox_words(stream, kWordBlocks, first / 4, out, n);
}

void rounding_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out, std::size_t n,
                    const float*) {
  for (std::size_t i = 0; i < n; i += 32) {
    philox_words(stream, kRoundingBlocks, (first + i) / 8, out + i, 16);
    for (std::size_t j = i; j < i + 16; ++j) out[j + 16] = out[j] << 16 | out[j] >> 16;
  }
}

void draw_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out, std::size_t n) {
  philox_words(stream, kDrawBlocks, first / 2, out, n);
}

FixedCounts fixed_encode(const float* x, float per_unit, const FixedOutput& out, std::size_t n) {
  std::uint8_t* bytes = out.bytes;
  std::uint8_t* halves = out.halves;
  std::uint8_t* words = out.words;
  for (std::size_t i = 0; i < n; i += 8) {
    unsigned low = 0;
    unsigned high = 0;
    for (std::size_t j = 0; j < 8 && i + j < n; ++j) {
      const std::uint32_t bits = float_bits(x[i + j]);
      const float magnitude = bits_float(bits & kMagnitudeMask);
      const std::uint32_t small = round_fixed(magnitude * per_unit, 128.0f);
      const std::uint32_t large = round_fixed(magnitude * 32768.0f, 32768.0f);
      // No branch: tags are as good as random.
      const bool one = (small != 0) & (small < 128) & (large < 32768);
      const bool two = (small == 128) & (large < 32768);
      const bool four = large == 32768;
      *bytes = static_cast<std::uint8_t>(bits >> 31 << 7 | small);
      bytes += one;
      store(halves, static_cast<std::uint16_t>(bits >> 31 << 15 | large));
      halves += 2 * two;
      store(words, bits);
      words += 4 * four;
      low |= static_cast<unsigned>(one | four) << j;
      high |= static_cast<unsigned>(two | four) << j;
    }
    out.low[i / 8] = static_cast<std::uint8_t>(low);
    out.high[i / 8] = static_cast<std::uint8_t>(high);
  }
  return {static_cast<std::size_t>(bytes - out.bytes),
          static_cast<std::size_t>(halves - out.halves) / 2,
          static_cast<std::size_t>(words - out.words) / 4};
}

void fixed_decode(const FixedInput& in, float unit, float* y, std::size_t n) {
  const std::uint8_t* bytes = in.bytes;
  const std::uint8_t* halves = in.halves;
  const std::uint8_t* words = in.words;
  for (std::size_t i = 0; i < n; ++i) {
    const bool low = in.low[i / 8] >> i % 8 & 1;
    const bool high = in.high[i / 8] >> i % 8 & 1;
    const bool both = low & high;
    const std::uint32_t byte = *bytes;
    const std::uint32_t half = load<std::uint16_t>(halves);
    const float small = unit * static_cast<float>(byte & 0x7F);
    const float large = 0x1p-15f * static_cast<float>(half & 0x7FFF);
    const std::uint32_t of_byte = float_bits(small) | byte >> 7 << 31;
    const std::uint32_t of_half = float_bits(large) | half >> 15 << 31;
    const std::uint32_t fixed = high ? of_half : low ? of_byte : 0;
    y[i] = bits_float(both ? load<std::uint32_t>(words) : fixed);
    bytes += low & !high;
    halves += 2 * (high & !low);
    words += 4 * both;
  }
}

FixedCounts fixed_count(const std::uint8_t* low, const std::uint8_t* high, std::size_t n) {
  return count_tags(low, high, n);
}

std::uint32_t crc32c(std::uint32_t crc, const std::uint8_t* data, std::size_t size) {
  const Crc32cTables& t = crc32c_tables();
  for (; size >= 8; size -= 8, data += 8) {
    const std::uint64_t word = load<std::uint64_t>(data) ^ crc;
    crc = t.slice[7][word & 0xFF] ^ t.slice[6][word >> 8 & 0xFF] ^ t.slice[5][word >> 16 & 0xFF] ^
          t.slice[4][word >> 24 & 0xFF] ^ t.slice[3][word >> 32 & 0xFF] ^
          t.slice[2][word >> 40 & 0xFF] ^ t.slice[1][word >> 48 & 0xFF] ^ t.slice[0][word >> 56];
  }
  for (; size > 0; --size, ++data) crc = crc >> 8 ^ t.slice[0][(crc ^ *data) & 0xFF];
  return crc;
}

constexpr const CodingKernels* coding = &kScalarCodingKernels;
constexpr const PolarKernels* polar = &kScalarPolarKernels;
constexpr const LinalgKernels* linalg = &kScalarLinalgKernels;

}  // namespace

const Kernels kScalarKernels = GRADCOMP_KERNEL_TABLE("scalar");

}  // namespace gradcomp
