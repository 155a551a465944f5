// Walks over a tensor in pieces that do not depend on the number of threads.
#pragma once

#include <cstddef>

#include "base/thread_pool.hpp"

namespace gradcomp {

inline std::size_t chunk_count(std::size_t n) noexcept { return (n + kChunk - 1) / kChunk; }

// Calls fn(chunk, begin, end) for every chunk of kChunk elements, on all threads.
template <typename Fn>
void for_chunks(std::size_t n, const Fn& fn) noexcept {
  for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (; begin < end; begin += kChunk) {
      fn(begin / kChunk, begin, end - begin < kChunk ? end : begin + kChunk);
    }
  });
}

// Calls fn(block, begin, count) for every block of `size` <= kChunk elements (the last one may be
// shorter), on all threads. The thread in whose range a block begins takes it whole.
template <typename Fn>
void for_blocks(std::size_t n, std::size_t size, const Fn& fn) noexcept {
  for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t block = (begin + size - 1) / size; block * size < end; ++block) {
      const std::size_t first = block * size;
      fn(block, first, n - first < size ? n - first : size);
    }
  });
}

}  // namespace gradcomp
