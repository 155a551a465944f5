// Loops that every level shares, for the compiler to vectorise. No include guard: each level
// includes this file inside its own namespace, with GRADCOMP_LEVEL as the functions' attribute.

GRADCOMP_LEVEL void quantize(const float* x, float inverse, float limit, std::uint8_t* out,
                             std::size_t n) {
  // Adding 1.5 * 2^23 leaves the nearest integer in the lower bits of the significand.
  constexpr float kRound = 12582912.0f;
  for (std::size_t i = 0; i < n; ++i) {
    float scaled = x[i] * inverse;
    scaled = scaled > limit ? limit : scaled;
    scaled = scaled < -limit ? -limit : scaled;
    out[i] = static_cast<std::uint8_t>(float_bits(scaled + kRound));
  }
}

GRADCOMP_LEVEL void quantize_randomly(const float* x, const std::uint32_t* words, float inverse,
                                      float limit, std::uint8_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    float scaled = x[i] * inverse;
    scaled = scaled > limit ? limit : scaled;
    scaled = scaled < -limit ? -limit : scaled;
    // In units of 2^-24 the sum fits 32 bits, and its upper byte is the level.
    const auto fixed = static_cast<std::uint32_t>(static_cast<std::int32_t>(scaled * 0x1p24f));
    out[i] = static_cast<std::uint8_t>((fixed + (words[i] >> 8)) >> 24);
  }
}

GRADCOMP_LEVEL void scale_levels(const std::uint8_t* levels, float scale, float* y, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    y[i] = scale * static_cast<float>(static_cast<std::int8_t>(levels[i]));
  }
}

GRADCOMP_LEVEL void scale_levels_add(const std::uint8_t* levels, float scale, float weight,
                                     float* acc, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    acc[i] += weight * (scale * static_cast<float>(static_cast<std::int8_t>(levels[i])));
  }
}

// Integers and masks instead of conditions on floats, so that compilers vectorize. In the range of
// normal numbers a code is the upper bits of the float32, less the difference of the biases.
GRADCOMP_LEVEL void fp8_encode(const float* x, float inverse, const Fp8Format& format,
                               std::uint8_t* out, std::size_t n) {
  const Fp8Format f = format;
  const std::uint32_t half = (1u << (f.shift - 1)) - 1 - f.bias;
  const auto limit = static_cast<std::int32_t>(float_bits(f.limit));
  const auto least = static_cast<std::int32_t>(f.least_bits);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = float_bits(x[i] * inverse);
    auto magnitude = static_cast<std::int32_t>(bits & kMagnitudeMask);
    magnitude = magnitude < limit ? magnitude : limit;
    const auto m = static_cast<std::uint32_t>(magnitude);
    const std::uint32_t normal = (m + half + (m >> f.shift & 1)) >> f.shift;
    // Below the least normal number, the significand's lowest bits are the code.
    const std::uint32_t low = float_bits(bits_float(m) + f.to_lowest_bit);
    const auto is_low = static_cast<std::uint32_t>(-static_cast<std::int32_t>(magnitude < least));
    const std::uint32_t code = (low & is_low) | (normal & ~is_low);
    out[i] = static_cast<std::uint8_t>((code & 0x7Fu) | (bits >> 24 & 0x80u));
  }
}

// Between two codes the bits of a float grow linearly, so adding a random word below the lowest bit
// of a code carries with the right probability. Below the normal numbers, fixed point does the
// same.
GRADCOMP_LEVEL void fp8_encode_randomly(const float* x, const std::uint32_t* words, float inverse,
                                        const Fp8Format& format, std::uint8_t* out, std::size_t n) {
  const Fp8Format f = format;
  const auto limit = static_cast<std::int32_t>(float_bits(f.limit));
  const auto least = static_cast<std::int32_t>(f.least_bits);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = float_bits(x[i] * inverse);
    auto magnitude = static_cast<std::int32_t>(bits & kMagnitudeMask);
    magnitude = magnitude < limit ? magnitude : limit;
    const std::uint32_t word = words[i];
    const std::uint32_t normal =
        (static_cast<std::uint32_t>(magnitude) + (word >> (32 - f.shift)) - f.bias) >> f.shift;
    const auto below = static_cast<std::uint32_t>(magnitude < least ? magnitude : least);
    const auto fixed =
        static_cast<std::uint32_t>(static_cast<std::int32_t>(bits_float(below) * f.to_fixed));
    const std::uint32_t low = (fixed + (word >> 8)) >> 24;
    const auto is_low = static_cast<std::uint32_t>(-static_cast<std::int32_t>(magnitude < least));
    const std::uint32_t code = (low & is_low) | (normal & ~is_low);
    out[i] = static_cast<std::uint8_t>(code | (bits >> 24 & 0x80u));
  }
}

GRADCOMP_LEVEL inline float fp8_value(std::uint8_t code, const Fp8Format& f) {
  const std::uint32_t magnitude = code & 0x7Fu;
  const std::uint32_t normal = (magnitude << f.shift) + f.bias;
  // A product of normal numbers or 0: flushing denormals to zero changes nothing.
  const float low = static_cast<float>(static_cast<std::int32_t>(magnitude)) * f.quantum;
  const auto is_low = static_cast<std::uint32_t>(-static_cast<std::int32_t>(
      static_cast<std::int32_t>(magnitude) < static_cast<std::int32_t>(f.least_code)));
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  return bits_float((float_bits(low) & is_low) | (normal & ~is_low) | sign);
}

GRADCOMP_LEVEL void fp8_decode(const std::uint8_t* in, const Fp8Format& format, float scale,
                               float* y, std::size_t n) {
  const Fp8Format f = format;
  for (std::size_t i = 0; i < n; ++i) y[i] = scale * fp8_value(in[i], f);
}

GRADCOMP_LEVEL void fp8_add(const std::uint8_t* in, const Fp8Format& format, float scale,
                            float weight, float* acc, std::size_t n) {
  const Fp8Format f = format;
  for (std::size_t i = 0; i < n; ++i) acc[i] += weight * (scale * fp8_value(in[i], f));
}

GRADCOMP_LEVEL void join_planes(const std::uint8_t* exponent, const std::uint8_t* upper,
                                const std::uint8_t* middle, const std::uint8_t* lower, float* y,
                                std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t high = upper[i];
    y[i] = bits_float((high & 0x80u) << 24 | std::uint32_t{exponent[i]} << 23 |
                      (high & 0x7Fu) << 16 | std::uint32_t{middle[i]} << 8 | lower[i]);
  }
}

GRADCOMP_LEVEL void ternarize(const float* x, const std::uint32_t* words, float scale,
                              std::uint8_t* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const float uniform = static_cast<float>(static_cast<std::int32_t>(words[i] >> 8)) * 0x1p-24f;
    const std::uint32_t bits = float_bits(x[i]);
    const std::uint32_t digit = 1 + (bits >> 31);
    const bool kept = uniform * scale < bits_float(bits & kMagnitudeMask);
    out[i] = static_cast<std::uint8_t>(kept ? digit : 0);
  }
}

// Between two levels the bits of a float grow linearly, so adding a random word below 2^23 carries
// into the exponent with the right probability. Below the least level, fixed point does the same.
GRADCOMP_LEVEL void f32_to_natural_zigzag(const float* x, const std::uint32_t* words, float inverse,
                                          unsigned levels, std::uint8_t* symbols, std::size_t n) {
  const auto s = static_cast<std::int32_t>(levels);
  const std::int32_t least = (128 - s) << 23;  // bits of 2^(1 - s)
  const float to_one = bits_float(static_cast<std::uint32_t>(126 + s) << 23);
  // Integers and masks instead of conditions on floats, so that compilers vectorize.
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = float_bits(x[i]);
    const auto ratio =
        static_cast<std::int32_t>(float_bits(bits_float(bits & kMagnitudeMask) * inverse));
    const float low = bits_float(static_cast<std::uint32_t>(ratio < least ? ratio : least));
    const std::int32_t below = (static_cast<std::int32_t>(low * to_one * 0x1p24f) +
                                static_cast<std::int32_t>(words[i] >> 8)) >>
                               24;
    const std::int32_t above = ((ratio + static_cast<std::int32_t>(words[i] >> 9)) >> 23) - 127 + s;
    const std::int32_t bounded = above < s ? above : s;
    const std::int32_t is_below = -static_cast<std::int32_t>(ratio < least);
    const std::int32_t level = (below & is_below) | (bounded & ~is_below);
    const std::int32_t symbol = 2 * level - static_cast<std::int32_t>(bits >> 31);
    symbols[i] = static_cast<std::uint8_t>(symbol < 0 ? 0 : symbol);
  }
}

GRADCOMP_LEVEL void choose_places(const std::uint32_t* words, std::uint64_t begin,
                                  std::uint64_t step, std::uint32_t offset, std::uint32_t* out,
                                  std::size_t n) {
  for (std::size_t i = 0; i < n; ++i, begin += step) {
    const auto first = static_cast<std::uint32_t>(begin >> 32);
    const std::uint32_t size = static_cast<std::uint32_t>((begin + step) >> 32) - first;
    out[i] = offset + first + static_cast<std::uint32_t>(std::uint64_t{words[i]} * size >> 32);
  }
}

GRADCOMP_LEVEL void dynamic8_decode(const std::uint8_t* in, float scale, float* y, std::size_t n) {
  const Dynamic8& map = dynamic8();
  for (std::size_t i = 0; i < n; ++i) y[i] = map.values[in[i]] * scale;
}

GRADCOMP_LEVEL void dynamic8_add(const std::uint8_t* in, float scale, float weight, float* acc,
                                 std::size_t n) {
  const Dynamic8& map = dynamic8();
  for (std::size_t i = 0; i < n; ++i) acc[i] += weight * (map.values[in[i]] * scale);
}
