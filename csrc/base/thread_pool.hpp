// A small thread pool, started at first use. No OpenMP: PyTorch bundles its own runtime, and two of
// them in one process can hang. base/chunks.hpp splits tensors into tasks.
#pragma once

#include <cstddef>

namespace gradcomp {

// Threads used for one call, the calling one included. Read from GRADCOMP_THREADS at first use
// (1 when unset or not a whole number from 1 to 256).
std::size_t thread_count() noexcept;
void set_thread_count(std::size_t count) noexcept;

inline constexpr std::size_t kMaxThreads = 256;

// Calls task(context, i) for i in [0, count), on the pool if it is free, otherwise on this thread.
// Tasks must not throw and must not depend on which thread runs them. Safe after fork(). Most
// callers want for_tasks().
void run_tasks(std::size_t count, void (*task)(void*, std::size_t), void* context) noexcept;

// Calls fn(i) for i in [0, count) as run_tasks() does.
template <typename Fn>
void for_tasks(std::size_t count, const Fn& fn) noexcept {
  const Fn* task = &fn;
  run_tasks(
      count, [](void* context, std::size_t i) { (**static_cast<const Fn**>(context))(i); }, &task);
}

}  // namespace gradcomp
