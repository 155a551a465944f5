// State of a worker that outlives a step: its tensors, the epoch and the totals of bytes.
// Compressors and Python share it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace gradcomp_byteps {

// State of a tensor on a worker, over all its partitions, as checkpoints need it.
struct Tensor {
  std::mutex mutex;  // guards the sizes and counts below
  std::size_t numel = 0;
  std::vector<float> residual;
  std::vector<float> momentum;
  std::vector<std::uint64_t> steps;  // of each partition: number of compressions
  std::size_t partitioned = 0;       // elements of the partitions registered so far
  std::uint64_t resumed_at = 0;      // first step of partitions that are not registered yet
  // The servers' residual; empty except during a checkpoint's exchange.
  std::vector<float> servers;
  std::uint16_t ask = 0;     // kRead or kWrite: kind of the next push; 0: a gradient
  std::uint32_t piece = 0;   // index of the piece in the next push
  std::uint32_t pieces = 0;  // largest number of pieces of a partition
};

// Bytes since the start: pushed, pulled, and the size of the pushed gradients in memory.
struct Totals {
  std::atomic<std::uint64_t> pushed{0};
  std::atomic<std::uint64_t> pulled{0};
  std::atomic<std::uint64_t> dense{0};
};

inline std::mutex tensors_mutex;
inline std::vector<std::shared_ptr<Tensor>>& tensors() {
  static std::vector<std::shared_ptr<Tensor>> all;
  return all;
}

inline Totals totals;
inline std::atomic<std::uint64_t> current_epoch{0};

// The tensor with this id, counted from 1; nullptr if there is none.
inline std::shared_ptr<Tensor> find_tensor(std::uint64_t id) {
  const std::lock_guard<std::mutex> lock(tensors_mutex);
  return id == 0 || id > tensors().size() ? nullptr : tensors()[id - 1];
}

}  // namespace gradcomp_byteps
