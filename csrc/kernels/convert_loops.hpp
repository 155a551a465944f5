// Loops that convert floats to and from narrow formats. No include guard: each level includes this
// file inside its namespace, after its vectors.

// A format has kBytes bytes for each element, and values(), the next kWidth of them.

template <typename Format>
GRADCOMP_LEVEL inline std::size_t decode(const Format& format, const std::uint8_t* in, float* y,
                                         std::size_t n) {
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(y + i, format.values(in + Format::kBytes * i));
  return i;
}

template <typename Format>
GRADCOMP_LEVEL inline std::size_t add(const Format& format, const std::uint8_t* in, float weight,
                                      float* acc, std::size_t n) {
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    store(acc + i, load(acc + i) + weight * format.values(in + Format::kBytes * i));
  }
  return i;
}

// ---------------------------------------------------------------- float32

struct Float {
  static constexpr std::size_t kBytes = 4;

  GRADCOMP_LEVEL Floats values(const std::uint8_t* in) const { return load_f32(in); }
};

GRADCOMP_LEVEL void f32_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const std::size_t i = add(Float{}, in, weight, acc, n);
  kScalarKernels.f32_add(in + 4 * i, weight, acc + i, n - i);
}

// ---------------------------------------------------------------- binary16

struct Half {
  static constexpr std::size_t kBytes = 2;

  GRADCOMP_LEVEL Floats values(const std::uint8_t* in) const { return load_f16(in); }
};

// Finite values that would round to Inf become +-65504.
GRADCOMP_LEVEL inline Floats clamp_to_half(Floats x) {
  const Words limit = (bits_of(x) & ~kMagnitudeMask) | float_bits(65504.0f);
  return select(within(magnitude(x), kHalfOverflow, kInfBits), floats_of(limit), x);
}

GRADCOMP_LEVEL void f32_to_f16(const float* x, std::uint8_t* out, std::size_t n, bool saturate) {
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    Floats v = load(x + i);
    if (saturate) v = clamp_to_half(v);
    store_f16(out + 2 * i, v);
  }
  kScalarKernels.f32_to_f16(x + i, out + 2 * i, n - i, saturate);
}

GRADCOMP_LEVEL void f16_to_f32(const std::uint8_t* in, float* y, std::size_t n) {
  const std::size_t i = decode(Half{}, in, y, n);
  kScalarKernels.f16_to_f32(in + 2 * i, y + i, n - i);
}

GRADCOMP_LEVEL void f16_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const std::size_t i = add(Half{}, in, weight, acc, n);
  kScalarKernels.f16_add(in + 2 * i, weight, acc + i, n - i);
}

// ---------------------------------------------------------------- bfloat16

struct Bfloat {
  static constexpr std::size_t kBytes = 2;

  GRADCOMP_LEVEL Floats values(const std::uint8_t* in) const {
    return floats_of(load_halves(in) << 16);
  }
};

GRADCOMP_LEVEL inline Words bfloat_bits(Floats x) {
  const Words bits = bits_of(x);
  const Words rounded = bits + ((bits >> 16 & 1u) + 0x7FFFu);
  const Mask nan = greater(magnitude(x), broadcast(kInfBits));
  return select(nan, bits | 0x400000u, rounded) >> 16;
}

GRADCOMP_LEVEL void f32_to_bf16(const float* x, std::uint8_t* out, std::size_t n) {
  std::size_t i = 0;
  for (; i + kPackedHalves * kWidth <= n; i += kPackedHalves * kWidth) {
    Words bits[kPackedHalves];
    for (std::size_t j = 0; j < kPackedHalves; ++j) bits[j] = bfloat_bits(load(x + i + j * kWidth));
    store_halves(out + 2 * i, bits);
  }
  kScalarKernels.f32_to_bf16(x + i, out + 2 * i, n - i);
}

GRADCOMP_LEVEL void bf16_to_f32(const std::uint8_t* in, float* y, std::size_t n) {
  const std::size_t i = decode(Bfloat{}, in, y, n);
  kScalarKernels.bf16_to_f32(in + 2 * i, y + i, n - i);
}

GRADCOMP_LEVEL void bf16_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const std::size_t i = add(Bfloat{}, in, weight, acc, n);
  kScalarKernels.bf16_add(in + 2 * i, weight, acc + i, n - i);
}

// ---------------------------------------------------------------- natural compression

struct Natural {
  static constexpr std::size_t kBytes = 1;

  GRADCOMP_LEVEL Floats values(const std::uint8_t* in) const {
    const Words wide = load_bytes(in);
    const Words code = wide & 0x7Fu;
    const Words sign = (wide ^ code) << 24;
    const Words power = sign | (code + kNaturalOffset) << 23;
    return floats_of(select(equal(code, Words{}), spread_sign(sign) & kNanBits, power));
  }
};

GRADCOMP_LEVEL inline Words natural_codes(Floats x, Words words) {
  const Words bits = bits_of(x);
  // The sum carries into the exponent exactly where the significand exceeds the word.
  Words code = (magnitude(x) + (0x7FFFFFu - (words >> 9))) >> 23;
  code = max(code, broadcast(kNaturalOffset)) - kNaturalOffset;
  code = min(code, broadcast(127u));
  code = select(equal(code, Words{}), code, code | (bits >> 24 & 0x80u));
  return select(nonfinite(x), broadcast(0x80u), code);
}

GRADCOMP_LEVEL void natural_encode(const float* x, const std::uint32_t* words, std::uint8_t* out,
                                   std::size_t n) {
  std::size_t i = 0;
  for (; i + kPackedBytes * kWidth <= n; i += kPackedBytes * kWidth) {
    Words codes[kPackedBytes];
    for (std::size_t j = 0; j < kPackedBytes; ++j) {
      const std::size_t at = i + j * kWidth;
      codes[j] = natural_codes(load(x + at), load(words + at));
    }
    store_bytes(out + i, codes);
  }
  kScalarKernels.natural_encode(x + i, words + i, out + i, n - i);
}

GRADCOMP_LEVEL void natural_decode(const std::uint8_t* in, float* y, std::size_t n) {
  const std::size_t i = decode(Natural{}, in, y, n);
  kScalarKernels.natural_decode(in + i, y + i, n - i);
}

GRADCOMP_LEVEL void natural_add(const std::uint8_t* in, float weight, float* acc, std::size_t n) {
  const std::size_t i = add(Natural{}, in, weight, acc, n);
  kScalarKernels.natural_add(in + i, weight, acc + i, n - i);
}

// ---------------------------------------------------------------- zigzag symbols

struct Zigzag {
  static constexpr std::size_t kBytes = 1;
  float unit;

  GRADCOMP_LEVEL Floats values(const std::uint8_t* in) const {
    const Words wide = load_bytes(in);
    return unit * to_floats(wide >> 1 ^ -(wide & 1u));
  }
};

GRADCOMP_LEVEL inline Words zigzag_symbols(Floats x, Words words, float scale, Words most) {
  const Words fixed = truncate(absolute(x) * scale) + (words >> 8);
  const Words level = min(fixed >> 24, most);
  return max(level + level + spread_sign(bits_of(x)), Words{});
}

GRADCOMP_LEVEL void f32_to_zigzag(const float* x, const std::uint32_t* words, float scale,
                                  unsigned levels, std::uint8_t* symbols, std::size_t n) {
  const Words most = broadcast(std::uint32_t{levels});
  std::size_t i = 0;
  for (; i + kPackedBytes * kWidth <= n; i += kPackedBytes * kWidth) {
    Words found[kPackedBytes];
    for (std::size_t j = 0; j < kPackedBytes; ++j) {
      const std::size_t at = i + j * kWidth;
      found[j] = zigzag_symbols(load(x + at), load(words + at), scale, most);
    }
    store_bytes(symbols + i, found);
  }
  kScalarKernels.f32_to_zigzag(x + i, words + i, scale, levels, symbols + i, n - i);
}

GRADCOMP_LEVEL void zigzag_to_f32(const std::uint8_t* symbols, float unit, float* y,
                                  std::size_t n) {
  const std::size_t i = decode(Zigzag{unit}, symbols, y, n);
  kScalarKernels.zigzag_to_f32(symbols + i, unit, y + i, n - i);
}

GRADCOMP_LEVEL void zigzag_add(const std::uint8_t* symbols, float unit, float weight, float* acc,
                               std::size_t n) {
  const std::size_t i = add(Zigzag{unit}, symbols, weight, acc, n);
  kScalarKernels.zigzag_add(symbols + i, unit, weight, acc + i, n - i);
}
