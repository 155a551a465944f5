// Loops of LinalgKernels, shared by all levels. No include guard: each level includes this file
// inside its own namespace, with
//   GRADCOMP_LEVEL    the functions' attribute,
//   GRADCOMP_WIDTH    floats in a register,
//   GRADCOMP_ROWS     rows and
//   GRADCOMP_COLUMNS  vectors of a tile of multiply(), whose partial sums should fit the registers,
//   GRADCOMP_BLOCK    rows that the other two take at once,
//   GRADCOMP_VECTORS  registers of columns of a tile of outer(),
//   GRADCOMP_STREAM   what stores a vector past the caches,
//   GRADCOMP_FENCE    what makes all such stores seen,
// and may define
//   GRADCOMP_LOAD_FIRST(x, n)  the first n < GRADCOMP_WIDTH elements of a vector, then zeros, and
//   GRADCOMP_ADD_UP(sums, p, p_stride)  what adds up and stores the sums of a whole tile of
//                     multiply().
// Tiles say what is computed when, never in which order a sum is added up. Loops over the rows and
// registers of a tile are unrolled where compilers would otherwise keep them in memory.

typedef float Vector __attribute__((vector_size(4 * GRADCOMP_WIDTH)));
constexpr std::size_t kWidth = GRADCOMP_WIDTH;
constexpr std::size_t kPartials = 16;
constexpr std::size_t kPieces = kPartials / kWidth;

// By reference, as vectors by value have another ABI on every level.
GRADCOMP_LEVEL inline void load(const float* x, Vector& v) { std::memcpy(&v, x, sizeof v); }
GRADCOMP_LEVEL inline void store(const Vector& v, float* x) { std::memcpy(x, &v, sizeof v); }

// The first elements of a vector, fewer than kWidth; the others are 0.
GRADCOMP_LEVEL inline void load_first(const float* x, std::size_t n, Vector& v) {
#ifdef GRADCOMP_LOAD_FIRST
  v = Vector(GRADCOMP_LOAD_FIRST(x, n));
#else
  float first[kWidth] = {};
  std::memcpy(first, x, sizeof(float) * n);
  load(first, v);
#endif
}

template <std::size_t kRows, std::size_t kColumns>
GRADCOMP_LEVEL inline void add_products(const float* m, std::size_t ld, const float* q,
                                        std::size_t q_stride,
                                        Vector (&sums)[kRows][kColumns][kPieces]) {
  for (std::size_t piece = 0; piece < kPieces; ++piece) {
    Vector x[kRows];
    for (std::size_t r = 0; r < kRows; ++r) load(m + r * ld + piece * kWidth, x[r]);
    for (std::size_t c = 0; c < kColumns; ++c) {
      Vector y;
      load(q + c * q_stride + piece * kWidth, y);
      for (std::size_t r = 0; r < kRows; ++r) sums[r][c][piece] += x[r] * y;
    }
  }
}

// The same for the last n < kPartials columns. Products of zeros change no sum but the sign of a
// zero, and that on every level alike.
template <std::size_t kRows, std::size_t kColumns>
GRADCOMP_LEVEL inline void add_last_products(const float* m, std::size_t ld, const float* q,
                                             std::size_t q_stride, std::size_t n,
                                             Vector (&sums)[kRows][kColumns][kPieces]) {
  for (std::size_t piece = 0; piece < kPieces; ++piece) {
    const std::size_t at = piece * kWidth;
    const std::size_t left = n > at ? n - at : 0;
    const bool whole = left >= kWidth;
    Vector x[kRows];
    for (std::size_t r = 0; r < kRows; ++r) {
      whole ? load(m + r * ld + at, x[r]) : load_first(m + r * ld + at, left, x[r]);
    }
    for (std::size_t c = 0; c < kColumns; ++c) {
      Vector y;
      whole ? load(q + c * q_stride + at, y) : load_first(q + c * q_stride + at, left, y);
      for (std::size_t r = 0; r < kRows; ++r) sums[r][c][piece] += x[r] * y;
    }
  }
}

GRADCOMP_LEVEL inline float add_up(const Vector (&sums)[kPieces]) {
  float partial[kPartials];
  for (std::size_t piece = 0; piece < kPieces; ++piece) {
    store(sums[piece], partial + piece * kWidth);
  }
  for (std::size_t width = kPartials / 2; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) partial[j] += partial[j + width];
  }
  return partial[0];
}

template <std::size_t kRows, std::size_t kColumns>
GRADCOMP_LEVEL inline void multiply_tile(const float* m, std::size_t ld, std::size_t cols,
                                         const float* q, std::size_t q_stride, float* p,
                                         std::size_t p_stride) {
  Vector sums[kRows][kColumns][kPieces] = {};
  std::size_t j = 0;
  for (; j + kPartials <= cols; j += kPartials) add_products(m + j, ld, q + j, q_stride, sums);
  if (j < cols) add_last_products(m + j, ld, q + j, q_stride, cols - j, sums);
#ifdef GRADCOMP_ADD_UP
  if constexpr (kRows == GRADCOMP_ROWS && kColumns == GRADCOMP_COLUMNS) {
    GRADCOMP_ADD_UP(sums, p, p_stride);
    return;
  }
#endif
  for (std::size_t c = 0; c < kColumns; ++c) {
    for (std::size_t r = 0; r < kRows; ++r) p[c * p_stride + r] = add_up(sums[r][c]);
  }
}

template <std::size_t kRows>
GRADCOMP_LEVEL inline void multiply_rows(const float* m, std::size_t ld, std::size_t cols,
                                         const float* q, std::size_t q_stride, std::size_t rank,
                                         float* p, std::size_t p_stride) {
  std::size_t c = 0;
  for (; c + GRADCOMP_COLUMNS <= rank; c += GRADCOMP_COLUMNS) {
    multiply_tile<kRows, GRADCOMP_COLUMNS>(m, ld, cols, q + c * q_stride, q_stride,
                                           p + c * p_stride, p_stride);
  }
  for (; c < rank; ++c) {
    multiply_tile<kRows, 1>(m, ld, cols, q + c * q_stride, q_stride, p + c * p_stride, p_stride);
  }
}

GRADCOMP_LEVEL void multiply(const float* m, std::size_t ld, std::size_t rows, std::size_t cols,
                             const float* q, std::size_t q_stride, std::size_t rank, float* p,
                             std::size_t p_stride) {
  std::size_t i = 0;
  for (; i + GRADCOMP_ROWS <= rows; i += GRADCOMP_ROWS) {
    multiply_rows<GRADCOMP_ROWS>(m + i * ld, ld, cols, q, q_stride, rank, p + i, p_stride);
  }
  for (; i < rows; ++i) multiply_rows<1>(m + i * ld, ld, cols, q, q_stride, rank, p + i, p_stride);
}

// kWidth columns of kRows rows.
template <std::size_t kRows>
GRADCOMP_LEVEL inline void add_scaled_rows(const float* m, std::size_t ld, const float* p,
                                           std::size_t p_stride, std::size_t rank, float* q,
                                           std::size_t q_stride) {
  Vector x[kRows];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) load(m + r * ld, x[r]);
  for (std::size_t c = 0; c < rank; ++c) {
    Vector sum;
    load(q + c * q_stride, sum);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) sum += x[r] * p[c * p_stride + r];
    store(sum, q + c * q_stride);
  }
}

template <std::size_t kRows>
GRADCOMP_LEVEL inline void multiply_transposed_rows(const float* m, std::size_t ld,
                                                    std::size_t cols, const float* p,
                                                    std::size_t p_stride, std::size_t rank,
                                                    float* q, std::size_t q_stride) {
  std::size_t j = 0;
  for (; j + kWidth <= cols; j += kWidth) {
    add_scaled_rows<kRows>(m + j, ld, p, p_stride, rank, q + j, q_stride);
  }
  for (; j < cols; ++j) {
    for (std::size_t c = 0; c < rank; ++c) {
      float sum = q[c * q_stride + j];
      for (std::size_t r = 0; r < kRows; ++r) sum += m[r * ld + j] * p[c * p_stride + r];
      q[c * q_stride + j] = sum;
    }
  }
}

GRADCOMP_LEVEL void multiply_transposed(const float* m, std::size_t ld, std::size_t rows,
                                        std::size_t cols, const float* p, std::size_t p_stride,
                                        std::size_t rank, float* q, std::size_t q_stride) {
  std::size_t i = 0;
  for (; i + GRADCOMP_BLOCK <= rows; i += GRADCOMP_BLOCK) {
    multiply_transposed_rows<GRADCOMP_BLOCK>(m + i * ld, ld, cols, p + i, p_stride, rank, q,
                                             q_stride);
  }
  for (; i < rows; ++i) {
    multiply_transposed_rows<1>(m + i * ld, ld, cols, p + i, p_stride, rank, q, q_stride);
  }
}

// Number is Vector or float.
template <bool kUncached, typename Number>
GRADCOMP_LEVEL inline void put(const Number& sum, const OuterOutput& out, std::size_t at) {
  Number old;
  if constexpr (kUncached) {
    GRADCOMP_STREAM(out.assigned + at, sum);
  } else if (out.assigned != nullptr) {
    std::memcpy(out.assigned + at, &sum, sizeof sum);
  }
  if (out.added != nullptr) {
    std::memcpy(&old, out.added + at, sizeof old);
    old += sum;
    std::memcpy(out.added + at, &old, sizeof old);
  }
  if (out.subtracted != nullptr) {
    std::memcpy(&old, (out.from == nullptr ? out.subtracted : out.from) + at, sizeof old);
    old -= sum;
    std::memcpy(out.subtracted + at, &old, sizeof old);
  }
}

// kVectors * kWidth columns of kRows rows.
template <std::size_t kRows, std::size_t kVectors, bool kUncached>
GRADCOMP_LEVEL inline void outer_tile(const float* p, std::size_t p_stride, const float* q,
                                      std::size_t q_stride, std::size_t rank,
                                      const OuterOutput& out, std::size_t at, std::size_t ld) {
  Vector sums[kRows][kVectors];
  Vector y;
#pragma GCC unroll 8
  for (std::size_t v = 0; v < kVectors; ++v) {
    load(q + v * kWidth, y);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) sums[r][v] = y * p[r];
  }
  for (std::size_t c = 1; c < rank; ++c) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      load(q + c * q_stride + v * kWidth, y);
#pragma GCC unroll 8
      for (std::size_t r = 0; r < kRows; ++r) sums[r][v] += y * p[c * p_stride + r];
    }
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      put<kUncached>(sums[r][v], out, at + r * ld + v * kWidth);
    }
  }
}

// The last columns of kRows rows, fewer than kWidth.
template <std::size_t kRows>
GRADCOMP_LEVEL inline void outer_last(const float* p, std::size_t p_stride, const float* q,
                                      std::size_t q_stride, std::size_t rank, std::size_t cols,
                                      const OuterOutput& out, std::size_t at, std::size_t ld) {
  Vector sums[kRows];
  Vector y;
  load_first(q, cols, y);
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) sums[r] = y * p[r];
  for (std::size_t c = 1; c < rank; ++c) {
    load_first(q + c * q_stride, cols, y);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) sums[r] += y * p[c * p_stride + r];
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    float sum[kWidth];
    store(sums[r], sum);
    for (std::size_t j = 0; j < cols; ++j) put<false>(sum[j], out, at + r * ld + j);
  }
}

constexpr std::size_t kTile = GRADCOMP_VECTORS * kWidth;

template <std::size_t kRows, bool kUncached>
GRADCOMP_LEVEL inline void outer_rows(const float* p, std::size_t p_stride, const float* q,
                                      std::size_t q_stride, std::size_t rank, std::size_t cols,
                                      const OuterOutput& out, std::size_t at, std::size_t ld) {
  std::size_t j = 0;
  for (; j + kTile <= cols; j += kTile) {
    outer_tile<kRows, GRADCOMP_VECTORS, kUncached>(p, p_stride, q + j, q_stride, rank, out, at + j,
                                                   ld);
  }
  for (; j + kWidth <= cols; j += kWidth) {
    outer_tile<kRows, 1, kUncached>(p, p_stride, q + j, q_stride, rank, out, at + j, ld);
  }
  if (j < cols) outer_last<kRows>(p, p_stride, q + j, q_stride, rank, cols - j, out, at + j, ld);
}

// With a power of two of columns, the same columns of many vectors map to one cache set and evict
// each other; rows likewise. Hence the inputs of kPackedRows rows and kTile columns are first
// copied side by side.
constexpr std::size_t kPackedRows = 8;
constexpr std::size_t kPackedFrom = 5;
constexpr std::size_t kPackedMost = 32;

template <bool kUncached>
GRADCOMP_LEVEL inline void outer_packed(const float* p, std::size_t p_stride, const float* q,
                                        std::size_t q_stride, std::size_t rank, std::size_t cols,
                                        const OuterOutput& out, std::size_t at, std::size_t ld) {
  static_assert(kPackedRows % GRADCOMP_BLOCK == 0, "whole blocks");
  float x[kPackedMost * kPackedRows];
  float y[kPackedMost * kTile];
  // Vectors with other distances than large powers of two stay in the cache where they are.
  const bool copied = q_stride % 256 == 0;
  for (std::size_t c = 0; c < rank; ++c) {
    std::memcpy(x + c * kPackedRows, p + c * p_stride, sizeof(float) * kPackedRows);
  }
  std::size_t j = 0;
  for (; j + kTile <= cols; j += kTile) {
    for (std::size_t c = 0; copied && c < rank; ++c) {
      std::memcpy(y + c * kTile, q + c * q_stride + j, sizeof(float) * kTile);
    }
    for (std::size_t r = 0; r < kPackedRows; r += GRADCOMP_BLOCK) {
      outer_tile<GRADCOMP_BLOCK, GRADCOMP_VECTORS, kUncached>(
          x + r, kPackedRows, copied ? y : q + j, copied ? kTile : q_stride, rank, out,
          at + r * ld + j, ld);
    }
  }
  for (std::size_t r = 0; r < kPackedRows; r += GRADCOMP_BLOCK) {
    outer_rows<GRADCOMP_BLOCK, kUncached>(x + r, kPackedRows, q + j, q_stride, rank, cols - j, out,
                                          at + r * ld + j, ld);
  }
}

template <bool kUncached>
GRADCOMP_LEVEL inline void outer_all(const float* p, std::size_t p_stride, const float* q,
                                     std::size_t q_stride, std::size_t rank, std::size_t rows,
                                     std::size_t cols, const OuterOutput& out, std::size_t ld) {
  std::size_t i = 0;
  if (rank >= kPackedFrom && rank <= kPackedMost) {
    for (; i + kPackedRows <= rows; i += kPackedRows) {
      outer_packed<kUncached>(p + i, p_stride, q, q_stride, rank, cols, out, i * ld, ld);
    }
  }
  for (; i + GRADCOMP_BLOCK <= rows; i += GRADCOMP_BLOCK) {
    outer_rows<GRADCOMP_BLOCK, kUncached>(p + i, p_stride, q, q_stride, rank, cols, out, i * ld,
                                          ld);
  }
  for (; i < rows; ++i) {
    outer_rows<1, kUncached>(p + i, p_stride, q, q_stride, rank, cols, out, i * ld, ld);
  }
}

GRADCOMP_LEVEL void outer(const float* p, std::size_t p_stride, const float* q,
                          std::size_t q_stride, std::size_t rank, std::size_t rows,
                          std::size_t cols, const OuterOutput& out, std::size_t ld) {
  if (out.uncached) {
    outer_all<true>(p, p_stride, q, q_stride, rank, rows, cols, out, ld);
    GRADCOMP_FENCE();
  } else {
    outer_all<false>(p, p_stride, q, q_stride, rank, rows, cols, out, ld);
  }
}
