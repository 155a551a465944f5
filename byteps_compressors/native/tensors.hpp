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

// Numbers that outlive a step; native/__init__.py has the same structure.
struct Progress {
  std::uint64_t steps = 0;  // number of compressions
  double loss_scale = 1;
  float lr = 0;   // learning rate of the residual's last step; 0 if there was none
  int fresh = 1;  // whether memories are still 0: no step, or only steps that were undone
};

// A partition's state on a worker.
struct Part {
  std::size_t offset = 0;  // first element in the tensor
  std::uint64_t steps = 0;
  float lr = 0;
  bool fresh = true;
  // While steps are kept: bit i tells whether step `marked - 1 - i` was skipped or discarded.
  std::uint32_t skips = 0;
  std::uint64_t marked = 0;  // number of steps at the last call that began a step or discarded one
  // State before the latest step, if it changed any.
  bool kept = false;
  float kept_lr = 0;
  bool kept_fresh = true;
  std::vector<float> kept_residual;
  std::vector<float> kept_momentum;

  // `skips` for a message after the present number of steps.
  std::uint32_t skips_now() const {
    const std::uint64_t since = steps - marked;
    return since < 32 ? skips << since : 0;
  }
};

// State of a tensor on a worker, over all its partitions, as checkpoints need it.
struct Tensor {
  std::mutex mutex;  // guards the sizes and counts below
  std::size_t numel = 0;
  std::vector<float> residual;
  std::vector<float> momentum;
  std::vector<Part> parts;      // the partitions registered so far
  std::size_t partitioned = 0;  // their elements
  Progress resumed;             // start of partitions that are not registered yet
  double loss_scale = 1;
  // Whether steps can be undone: a loss scale was set in this process, or steps may be discarded.
  bool keeps_steps = false;
  float lr = -1;  // learning rate of the present step; negative if unknown
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
