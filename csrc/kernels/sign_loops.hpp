// Signs, bits of elements, and the Walsh-Hadamard transform. No include guard: each level includes
// this file inside its namespace, after its vectors.

GRADCOMP_LEVEL void pack_negative(const float* x, std::uint8_t* out, std::size_t n) {
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store_mask(out + i / 8, greater(Floats{}, load(x + i)));
  kScalarKernels.pack_negative(x + i, out + i / 8, n - i);
}

GRADCOMP_LEVEL void select_bits(const std::uint8_t* bits, float clear, float set, float* y,
                                std::size_t n) {
  const Floats c = broadcast(clear);
  const Floats s = broadcast(set);
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(y + i, select(load_mask(bits + i / 8), s, c));
  kScalarKernels.select_bits(bits + i / 8, clear, set, y + i, n - i);
}

GRADCOMP_LEVEL void select_bits_add(const std::uint8_t* bits, float clear, float set, float* acc,
                                    std::size_t n) {
  const Floats c = broadcast(clear);
  const Floats s = broadcast(set);
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    store(acc + i, load(acc + i) + select(load_mask(bits + i / 8), s, c));
  }
  kScalarKernels.select_bits_add(bits + i / 8, clear, set, acc + i, n - i);
}

GRADCOMP_LEVEL void flip_signs(const float* x, const std::uint32_t* words, float factor, float* y,
                               std::size_t n) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    // Hardware prefetching stops at the end of a page.
    for (std::size_t line = 0; line < 2; ++line) prefetch_ahead(x + i + 16 * line);
    const std::uint32_t word = words[i / 32];
    for (unsigned j = 0; j < 32; j += kWidth) {
      store(y + i + j, negate(factor * load(x + i + j), word, j));
    }
  }
  kScalarKernels.flip_signs(x + i, words + i / 32, factor, y + i, n - i);
}

GRADCOMP_LEVEL inline void butterfly(Floats& a, Floats& b) {
  const Floats sum = a + b;
  b = a - b;
  a = sum;
}

// The stages of the strides from `stride` to below kWidth * stride; with kLanes, first those within
// vectors. Unrolled, as compilers would otherwise keep the vectors in memory.
template <bool kLanes>
GRADCOMP_LEVEL inline void hadamard_stages(float* x, std::size_t n, std::size_t stride) {
  for (std::size_t i = 0; i < n; i += kWidth * stride) {
    for (std::size_t j = i; j < i + stride; j += kWidth) {
      Floats v[kWidth];
#pragma GCC unroll 16
      for (std::size_t k = 0; k < kWidth; ++k) {
        v[k] = load(x + j + k * stride);
        if (kLanes) v[k] = lane_butterflies(v[k]);
      }
#pragma GCC unroll 16
      for (std::size_t k = 0; k < kWidth; k += 2) butterfly(v[k], v[k + 1]);
#pragma GCC unroll 16
      for (std::size_t k = 0; k < kWidth; ++k) {
        if (k % 4 < 2) butterfly(v[k], v[k + 2]);
      }
#pragma GCC unroll 16
      for (std::size_t k = 0; k < kWidth; ++k) {
        if (k % 8 < 4) butterfly(v[k], v[k + 4]);
      }
#pragma GCC unroll 16
      for (std::size_t k = 0; k + 8 < kWidth; ++k) butterfly(v[k], v[k + 8]);
#pragma GCC unroll 16
      for (std::size_t k = 0; k < kWidth; ++k) store(x + j + k * stride, v[k]);
    }
  }
}

GRADCOMP_LEVEL void hadamard(float* x, unsigned log2) {
  const std::size_t n = std::size_t{1} << log2;
  if (n < kWidth) return kScalarKernels.hadamard(x, log2);
  std::size_t stride = kWidth;
  if (n >= kWidth * kWidth) {
    hadamard_stages<true>(x, n, stride);
    stride *= kWidth;
  } else {
    for (std::size_t i = 0; i < n; i += kWidth) store(x + i, lane_butterflies(load(x + i)));
  }
  for (; kWidth * stride <= n; stride *= kWidth) hadamard_stages<false>(x, n, stride);
  for (; stride < n; stride *= 2) {
    for (std::size_t i = 0; i < n; i += 2 * stride) {
      for (std::size_t j = i; j < i + stride; j += kWidth) {
        Floats a = load(x + j);
        Floats b = load(x + j + stride);
        butterfly(a, b);
        store(x + j, a);
        store(x + j + stride, b);
      }
    }
  }
}
