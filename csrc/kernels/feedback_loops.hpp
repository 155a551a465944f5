// Loops of error feedback and memory. No include guard: each level includes this file inside its
// namespace, after its vectors.

GRADCOMP_LEVEL bool compensate(float* residual, const float* grad, float beta, float gamma,
                               std::size_t n) {
  Mask bad{};
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Floats corrected = beta * load(residual + i) + gamma * load(grad + i);
    store(residual + i, corrected);
    bad |= nonfinite(corrected);
  }
  const bool tail_finite = kScalarKernels.compensate(residual + i, grad + i, beta, gamma, n - i);
  return tail_finite && !any(bad);
}

GRADCOMP_LEVEL bool correct_momentum(float* velocity, float* momentum, const float* grad,
                                     float factor, float scale, bool nesterov, std::size_t n) {
  Mask bad{};
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Floats scaled = scale * load(grad + i);
    Floats m = load(momentum + i);
    Floats step;
    if (nesterov) {
      m = factor * (m + scaled);
      step = m + scaled;
    } else {
      m = factor * m + scaled;
      step = m;
    }
    store(momentum + i, m);
    const Floats sum = load(velocity + i) + step;
    store(velocity + i, sum);
    bad |= nonfinite(sum);
  }
  const bool tail_finite = kScalarKernels.correct_momentum(velocity + i, momentum + i, grad + i,
                                                           factor, scale, nesterov, n - i);
  return tail_finite && !any(bad);
}

GRADCOMP_LEVEL void zero_nonfinite(float* x, std::size_t n) {
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Floats v = load(x + i);
    clear(x + i, v, nonfinite(v));
  }
  kScalarKernels.zero_nonfinite(x + i, n - i);
}

// Floats of a cache line.
constexpr std::size_t kLine = 16;

GRADCOMP_LEVEL void zero(float* y, std::size_t n) {
  if (n < kUncachedFrom) return kScalarKernels.zero(y, n);
  std::size_t i = until_line(y, n);
  kScalarKernels.zero(y, i);
  for (; i + kLine <= n; i += kLine) {
    for (std::size_t j = i; j < i + kLine; j += kWidth) stream(y + j, Floats{});
  }
  _mm_sfence();
  kScalarKernels.zero(y + i, n - i);
}

GRADCOMP_LEVEL void copy_uncached(const float* x, float* y, std::size_t n) {
  std::size_t i = until_line(y, n);
  kScalarKernels.copy_uncached(x, y, i);
  for (; i + kLine <= n; i += kLine) {
    for (std::size_t j = i; j < i + kLine; j += kWidth) stream(y + j, load(x + j));
  }
  _mm_sfence();
  kScalarKernels.copy_uncached(x + i, y + i, n - i);
}
