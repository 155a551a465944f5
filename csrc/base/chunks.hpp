// Splits a tensor into ranges, chunks or blocks, and hands these to the threads. Borders of chunks
// and blocks never depend on the number of threads, so results do not depend on it either.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/thread_pool.hpp"

namespace gradcomp {

// Elements in a chunk. Ranges are whole chunks, at any number of threads.
inline constexpr std::size_t kChunk = std::size_t{64} * 1024;

inline std::size_t chunk_count(std::size_t n) noexcept { return (n + kChunk - 1) / kChunk; }

// Number of parts to split `count` items into: one for each thread, at least 1, at most `count`.
inline std::size_t part_count(std::size_t count) noexcept {
  return std::max<std::size_t>(std::min(count, thread_count()), 1);
}

// Number of ranges that for_ranges() splits n elements into.
inline std::size_t range_count(std::size_t n) noexcept { return part_count(chunk_count(n)); }

// Splits [0, count) into `parts` nearly equal runs and calls fn(part, begin, end) for each, on all
// threads.
template <typename Fn>
void for_parts(std::size_t count, std::size_t parts, const Fn& fn) noexcept {
  if (parts <= 1) {
    fn(std::size_t{0}, std::size_t{0}, count);
    return;
  }
  for_tasks(parts,
            [&](std::size_t part) { fn(part, count * part / parts, count * (part + 1) / parts); });
}

// Splits [0, n) into `ranges` runs of whole chunks and calls fn(range, begin, end) for each, on all
// threads.
template <typename Fn>
void for_ranges(std::size_t n, std::size_t ranges, const Fn& fn) noexcept {
  for_parts(chunk_count(n), ranges, [&](std::size_t range, std::size_t first, std::size_t last) {
    fn(range, first * kChunk, std::min(last * kChunk, n));
  });
}

template <typename Fn>
void for_ranges(std::size_t n, const Fn& fn) noexcept {
  for_ranges(n, range_count(n), fn);
}

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
// shorter), on all threads. A block is processed by the thread whose range contains its first
// element.
template <typename Fn>
void for_blocks(std::size_t n, std::size_t size, const Fn& fn) noexcept {
  for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t block = (begin + size - 1) / size; block * size < end; ++block) {
      const std::size_t first = block * size;
      fn(block, first, n - first < size ? n - first : size);
    }
  });
}

// Tensors with more elements are worked on one after the other, each by all threads.
inline constexpr std::size_t kLargeTensor = std::size_t{1} << 20;

// Calls fn(i) for i in [0, count), for tensors of size_of(i) elements: for the large ones, and for
// those that are more than a thread's share of all, on this thread, as fn itself uses the others;
// for the rest on all threads, the largest first.
template <typename SizeOf, typename Fn>
void for_tensors(std::size_t count, const SizeOf& size_of, const Fn& fn) {
  std::size_t all = 0;
  for (std::size_t i = 0; i < count; ++i) all += size_of(i);
  std::vector<std::size_t> rest;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t size = size_of(i);
    if (size > kLargeTensor || (size > kChunk && size > all / thread_count())) {
      fn(i);
    } else {
      rest.push_back(i);
    }
  }
  std::stable_sort(rest.begin(), rest.end(),
                   [&](std::size_t a, std::size_t b) { return size_of(a) > size_of(b); });
  for_tasks(rest.size(), [&](std::size_t i) { fn(rest[i]); });
}

}  // namespace gradcomp
