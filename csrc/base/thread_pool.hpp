// A small lazy thread pool. No OpenMP: PyTorch bundles its own runtime, and two of them in one
// process can hang.
#pragma once

#include <cstddef>

namespace gradcomp {

// Threads used for one call, the calling one included. Read from GRADCOMP_THREADS at first use
// (1 when unset or not a whole number from 1 to 256).
std::size_t thread_count() noexcept;
void set_thread_count(std::size_t count) noexcept;

inline constexpr std::size_t kMaxThreads = 256;

// Calls task(context, i) for i in [0, count), on the pool when it is free, else on this thread.
// Tasks must not throw and must not depend on which thread runs them. Safe after fork().
void run_tasks(std::size_t count, void (*task)(void*, std::size_t), void* context) noexcept;

// Ranges handed to tasks are multiples of this many elements, whatever the thread count.
inline constexpr std::size_t kChunk = std::size_t{64} * 1024;

// The number of ranges for_ranges() makes of n elements: 1 unless there is work for more threads.
inline std::size_t range_count(std::size_t n) noexcept {
  const std::size_t chunks = (n + kChunk - 1) / kChunk;
  const std::size_t threads = thread_count();
  const std::size_t ranges = chunks < threads ? chunks : threads;
  return ranges == 0 ? 1 : ranges;
}

// Splits [0, n) into `ranges` runs of whole chunks and calls fn(range, begin, end) for each.
template <typename Fn>
void for_ranges(std::size_t n, std::size_t ranges, const Fn& fn) noexcept {
  if (ranges <= 1) {
    fn(std::size_t{0}, std::size_t{0}, n);
    return;
  }
  struct Context {
    std::size_t n, chunks, ranges;
    const Fn* fn;
  } context{n, (n + kChunk - 1) / kChunk, ranges, &fn};
  run_tasks(
      ranges,
      [](void* opaque, std::size_t i) {
        Context& c = *static_cast<Context*>(opaque);
        const std::size_t begin = c.chunks * i / c.ranges * kChunk;
        const std::size_t end = c.chunks * (i + 1) / c.ranges * kChunk;
        (*c.fn)(i, begin, end < c.n ? end : c.n);
      },
      &context);
}

template <typename Fn>
void for_ranges(std::size_t n, const Fn& fn) noexcept {
  for_ranges(n, range_count(n), fn);
}

}  // namespace gradcomp
