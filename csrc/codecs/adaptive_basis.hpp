// What preset=basis keeps of a matrix: the directions in which the rows of past averages were
// largest. All ranks have the same averages, hence the same directions, which payloads then need
// not carry.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/scratch.hpp"
#include "core/span.hpp"
#include "core/status.hpp"

namespace gradcomp {

// The most directions that are kept of a matrix.
inline constexpr std::size_t kMaxShared = 32;

// A view of what is kept: the directions, orthonormal, the largest first, and then how large each
// of them was.
struct SharedBasis {
  const float* v = nullptr;  // rank x cols
  std::size_t rank = 0;      // 0: nothing is kept, or nothing was learned yet
  std::size_t cols = 0;
  std::uint32_t check = 0;  // CRC-32C of all that is kept

  static SharedBasis of(Span<const float> kept, std::size_t cols);
};

// How many numbers are kept of a matrix, with at most `most` directions, and no more than
// kMaxShared.
std::size_t shared_basis_size(std::size_t rows, std::size_t cols, std::size_t most);

// Brings what is kept up to date with one more average; zeros stand for nothing yet. An average
// without any finite size leaves it alone.
Status learn_basis(const float* average, std::size_t rows, std::size_t cols, Scratch& scratch,
                   Span<float> kept);

}  // namespace gradcomp
