// Blocks of a batch, on the thread pool.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

#include "base/status.hpp"
#include "base/thread_pool.hpp"

namespace gradcomp::polar_code {

// Calls worker(block) for each block of [0, count); a worker (made by make_worker()) belongs to one
// thread at a time and must not throw.
template <typename MakeWorker>
Status for_blocks(std::size_t count, const MakeWorker& make_worker) {
  using Worker = decltype(make_worker());
  try {
    std::vector<Worker> workers;
    const std::size_t wanted = std::min(count, thread_count());
    workers.reserve(wanted);
    for (std::size_t i = 0; i < wanted; ++i) workers.push_back(make_worker());
    struct Context {
      std::vector<Worker>* workers;
      std::size_t count;
    } context{&workers, count};
    run_tasks(
        workers.size(),
        [](void* opaque, std::size_t i) {
          const Context& c = *static_cast<Context*>(opaque);
          const std::size_t end = c.count * (i + 1) / c.workers->size();
          for (std::size_t b = c.count * i / c.workers->size(); b < end; ++b) (*c.workers)[i](b);
        },
        &context);
  } catch (const std::bad_alloc&) {
    return capacity_error("memory ran out");
  }
  return {};
}

}  // namespace gradcomp::polar_code
