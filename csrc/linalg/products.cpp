#include "linalg/products.hpp"

#include <algorithm>
#include <atomic>

#include "base/chunks.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Number of rows that stay in the cache from one use to the next, in whole blocks of every level.
std::size_t cached_rows(std::size_t cols) {
  constexpr std::size_t kElements = 16 * 1024;
  return std::max<std::size_t>(kElements / cols / 8 * 8, 8);
}

// Calls fn(begin, end) for runs of [0, n) that begin at multiples of 16, on as many threads as work
// on `elements` deserves.
template <typename Fn>
void for_lines(std::size_t n, std::size_t elements, const Fn& fn) {
  const std::size_t units = (n + 15) / 16;
  for_parts(units, std::min(range_count(elements), units),
            [&](std::size_t, std::size_t first, std::size_t last) {
              fn(first * 16, std::min(last * 16, n));
            });
}

}  // namespace

bool multiply(const Matrix& m, const MatrixFeedback& feedback, const float* q, std::size_t rank,
              float* p) {
  const float* const grad = feedback.grad;
  std::atomic<bool> finite{true};
  const Kernels& k = kernels();
  for_lines(m.rows, m.size(), [&](std::size_t begin, std::size_t end) {
    const std::size_t step = cached_rows(m.cols);
    for (std::size_t i = begin; i < end; i += step) {
      const std::size_t rows = std::min(step, end - i);
      const std::size_t at = i * m.cols;
      if (grad != nullptr &&
          !k.compensate(m.data + at, grad + at, feedback.beta, 1, rows * m.cols)) {
        finite.store(false, std::memory_order_relaxed);
      }
      k.linalg->multiply(m.data + at, m.cols, rows, m.cols, q, m.cols, rank, p + i, m.rows);
    }
  });
  return finite.load();
}

bool multiply_transposed(const Matrix& m, const MatrixFeedback& feedback, const float* p,
                         std::size_t rank, float* q) {
  const float* const grad = feedback.grad;
  std::fill_n(q, rank * m.cols, 0.0f);
  std::atomic<bool> finite{true};
  const Kernels& k = kernels();
  for_lines(m.cols, m.size(), [&](std::size_t begin, std::size_t end) {
    const std::size_t width = end - begin;
    const std::size_t step = cached_rows(width);
    for (std::size_t i = 0; i < m.rows; i += step) {
      const std::size_t rows = std::min(step, m.rows - i);
      const std::size_t at = i * m.cols + begin;
      if (grad != nullptr) {
        // One run if the part is the whole matrix.
        const std::size_t runs = width == m.cols ? 1 : rows;
        for (std::size_t r = 0; r < runs; ++r) {
          const std::size_t from = at + r * m.cols;
          if (!k.compensate(m.data + from, grad + from, feedback.beta, 1, rows / runs * width)) {
            finite.store(false, std::memory_order_relaxed);
          }
        }
      }
      k.linalg->multiply_transposed(m.data + at, m.cols, rows, width, p + i, m.rows, rank,
                                    q + begin, m.cols);
    }
  });
  return finite.load();
}

void outer(const float* p, const float* q, std::size_t rank, std::size_t rows, std::size_t cols,
           const OuterOutput& out) {
  const Kernels& k = kernels();
  const auto shifted = [](auto* x, std::size_t by) { return x == nullptr ? x : x + by; };
  constexpr std::size_t kLine = 64;
  const bool in_lines = reinterpret_cast<std::uintptr_t>(out.assigned) % kLine == 0 &&
                        cols % (kLine / sizeof(float)) == 0;
  const bool uncached = out.assigned != nullptr && in_lines && rows * cols >= kUncachedFrom;
  for_lines(rows, rows * cols, [&](std::size_t begin, std::size_t end) {
    const std::size_t at = begin * cols;
    const OuterOutput part{shifted(out.assigned, at), shifted(out.added, at),
                           shifted(out.subtracted, at), shifted(out.from, at), uncached};
    k.linalg->outer(p + begin, rows, q, cols, rank, end - begin, cols, part, cols);
  });
}

}  // namespace gradcomp
