#include "codecs/adaptive_basis.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "core/bytes.hpp"
#include "core/rng.hpp"
#include "kernels/kernels.hpp"
#include "linalg/orthonormalize.hpp"
#include "linalg/products.hpp"
#include "wire/crc32c.hpp"

namespace gradcomp {
namespace {

// Rows longer than this are mostly those of vectors and of few, and would take much memory.
constexpr std::size_t kMostCols = std::size_t{1} << 16;

// What the last average counts, against all before it.
constexpr float kLastPart = 0.2f;
// Products with the first average, from directions that know nothing.
constexpr int kFirstPasses = 3;

// Largest magnitudes of averages that are learned from: beyond, products could leave the range of
// float32.
constexpr float kLeast = 0x1p-40f;
constexpr float kMost = 0x1p40f;

float norm(const float* x, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return static_cast<float>(std::sqrt(sum));
}

}  // namespace

SharedBasis SharedBasis::of(Span<const float> kept, std::size_t cols) {
  if (kept.empty() || kept.size() % (cols + 1) != 0) return {};
  const std::size_t rank = kept.size() / (cols + 1);
  if (rank > kMaxShared) return {};
  // All numbers are at most 1, but for rounding; of others nothing can be trusted.
  const float largest = bits_float(kernels().max_magnitude(kept.data(), kept.size()));
  if (!(largest <= 2) || !(kept[rank * cols] > 0)) return {};
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(kept.data());
  return {kept.data(), rank, cols, crc32c(bytes, sizeof(float) * kept.size())};
}

std::size_t shared_basis_size(std::size_t rows, std::size_t cols, std::size_t most) {
  if (cols > kMostCols) return 0;
  // So that it takes no more than about a quarter of the matrix.
  return std::min({most, kMaxShared, rows / 4, cols / 4}) * (cols + 1);
}

Status learn_basis(const float* average, std::size_t rows, std::size_t cols, Scratch& scratch,
                   Span<float> kept) {
  const std::size_t n = rows * cols;
  const float largest = bits_float(kernels().max_magnitude(average, n));
  if (!(largest >= kLeast && largest <= kMost)) return {};
  const std::size_t rank = kept.size() / (cols + 1);
  float* const v = kept.data();
  float* const sizes = v + rank * cols;
  const bool first = SharedBasis::of({kept.data(), kept.size()}, cols).rank == 0;
  if (first) {
    Stream start(0);
    for (std::size_t i = 0; i < rank * cols; ++i) {
      v[i] = static_cast<float>(static_cast<std::int32_t>(start.next() >> 32)) * 0x1p-31f;
    }
    std::fill_n(sizes, rank, 0.0f);
  }
  const float last_part = first ? 1 : kLastPart;
  // Every average counts by its directions, not by its size.
  const auto scale = static_cast<float>(1 / kernels().sum_squares(average, n));
  const Matrix m{const_cast<float*>(average), rows, cols};  // which the products only read
  std::vector<float> p(rank * rows);
  std::vector<float> y(rank * cols);
  for (int pass = first ? kFirstPasses : 1; pass > 0; --pass) {
    multiply(m, nullptr, v, rank, p.data());
    for (float& one : p) one *= scale;
    multiply_transposed(m, nullptr, p.data(), rank, y.data());
    std::vector<std::pair<float, std::size_t>> order;
    for (std::size_t k = 0; k < rank; ++k) {
      float* const of = y.data() + k * cols;
      const float kept_part = first ? 0 : (1 - last_part) * sizes[k];
      for (std::size_t j = 0; j < cols; ++j) {
        of[j] = kept_part * v[k * cols + j] + last_part * of[j];
      }
      order.emplace_back(norm(of, cols), k);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (std::size_t k = 0; k < rank; ++k) {
      sizes[k] = order[k].first;
      std::memcpy(v + k * cols, y.data() + order[k].second * cols, sizeof(float) * cols);
    }
    GRADCOMP_TRY(orthonormalize({v, rank * cols}, rank, Orthonormalization::kCholesky, scratch));
  }
  return {};
}

}  // namespace gradcomp
