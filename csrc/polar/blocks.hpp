// Parallel loop over the blocks of a batch, with working memory per thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

#include "base/chunks.hpp"
#include "base/status.hpp"

namespace gradcomp::polar_code {

// Calls worker(block) for each block in [0, count). make_worker() makes a worker for each thread;
// calls of a worker must not throw.
template <typename MakeWorker>
Status for_blocks(std::size_t count, const MakeWorker& make_worker) {
  using Worker = decltype(make_worker());
  try {
    std::vector<Worker> workers;
    const std::size_t wanted = count == 0 ? 0 : part_count(count);
    workers.reserve(wanted);
    for (std::size_t i = 0; i < wanted; ++i) workers.push_back(make_worker());
    for_parts(count, wanted, [&](std::size_t part, std::size_t begin, std::size_t end) {
      for (std::size_t block = begin; block < end; ++block) workers[part](block);
    });
  } catch (const std::bad_alloc&) {
    return capacity_error("memory ran out");
  }
  return {};
}

}  // namespace gradcomp::polar_code
