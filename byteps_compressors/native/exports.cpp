// Functions that byteps_compressors/native/__init__.py calls: declaring tensors, and the state of a
// worker for checkpoints and statistics.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "byteps/common/compressor/compressor_registry.h"
#include "gradcomp/gradcomp.h"
#include "header.hpp"
#include "tensors.hpp"

namespace byteps {
namespace common {
// Weak, as only the workers' library defines them.
bool IsTensorDeclared(const std::string& name) __attribute__((weak));
void RegisterCompressor(const std::string& name,
                        std::unordered_map<std::string, std::string>& kwargs) __attribute__((weak));
}  // namespace common
}  // namespace byteps

namespace {

using namespace gradcomp_byteps;

thread_local std::string error_text;

// Copies `from` to `to` + offset, unless there is no array.
void restore(std::vector<float>& to, std::size_t offset, const std::vector<float>& from) {
  if (!to.empty()) std::copy(from.begin(), from.end(), to.begin() + offset);
}

// Begins a step with this loss scale. If the last step was skipped, its changes are undone. Returns
// whether there were any.
bool begin_kept_step(Tensor& tensor, double scale, bool skipped) {
  bool undone = false;
  for (Part& part : tensor.parts) {
    const bool undoes = skipped && tensor.keeps_steps && part.steps > part.marked;
    undone |= undoes;
    part.skips = part.skips_now() | (undoes ? 1 : 0);
    part.marked = part.steps;
    if (undoes && part.kept) {
      restore(tensor.residual, part.offset, part.kept_residual);
      restore(tensor.momentum, part.offset, part.kept_momentum);
      part.lr = part.kept_lr;
      part.fresh = part.kept_fresh;
    }
    part.kept = false;
  }
  const auto factor = static_cast<float>(scale / tensor.loss_scale);
  if (factor != 1.0f) {
    for (float& value : tensor.residual) value *= factor;
    for (float& value : tensor.momentum) value *= factor;
  }
  tensor.loss_scale = scale;
  tensor.keeps_steps = true;
  return undone;
}

// Calls fn(tensor) for each tensor, with its lock.
template <typename Fn>
void for_tensors(const std::uint64_t* ids, std::size_t count, const Fn& fn) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto tensor = find_tensor(ids[i]);
    if (tensor == nullptr) continue;
    const std::lock_guard<std::mutex> lock(tensor->mutex);
    fn(*tensor);
  }
}

}  // namespace

extern "C" {

// Declares a tensor with compressor arguments (a count, then names and values, separated by
// blanks). Returns 1; 0 on servers, which cannot declare.
__attribute__((visibility("default"))) int gradcomp_byteps_declare(const char* name,
                                                                   const char* arguments) {
  if (byteps::common::IsTensorDeclared == nullptr) return 0;  // this is a server
  const std::string full = std::string("byteps.") + name;
  byteps::common::IsTensorDeclared(full);
  auto kwargs = byteps::common::compressor::Deserialize(arguments);
  byteps::common::RegisterCompressor(full, kwargs);
  return 1;
}

// Makes the state of a tensor with numel elements. Returns its id; 0 if the spec is invalid, with
// the reason in gradcomp_byteps_error().
__attribute__((visibility("default"))) std::uint64_t gradcomp_byteps_tensor(const char* spec,
                                                                            std::size_t numel) {
  gradcomp_spec* parsed = nullptr;
  if (gradcomp_spec_create(spec, &parsed) != GRADCOMP_OK) {
    error_text = gradcomp_last_error();
    return 0;
  }
  const std::uint32_t keeps = gradcomp_spec_keeps(parsed);
  gradcomp_spec_destroy(parsed);
  auto tensor = std::make_shared<Tensor>();
  tensor->numel = numel;
  if (keeps & GRADCOMP_KEEPS_RESIDUAL) tensor->residual.resize(numel);
  if (keeps & GRADCOMP_KEEPS_MOMENTUM) tensor->momentum.resize(numel);
  const std::lock_guard<std::mutex> lock(tensors_mutex);
  tensors().push_back(std::move(tensor));
  return tensors().size();
}

// Reason of the last failure on this thread.
__attribute__((visibility("default"))) const char* gradcomp_byteps_error(void) {
  return error_text.c_str();
}

// A tensor's array "residual", "momentum" or "servers"; NULL if it is empty.
__attribute__((visibility("default"))) float* gradcomp_byteps_array(std::uint64_t id,
                                                                    const char* kind) {
  const auto tensor = find_tensor(id);
  if (tensor == nullptr) return nullptr;
  const std::string name = kind;
  auto& array = name == "residual"   ? tensor->residual
                : name == "momentum" ? tensor->momentum
                                     : tensor->servers;
  return array.empty() ? nullptr : array.data();
}

// Sets the kind of the tensor's next push_pull. With "read", it copies a piece of the servers'
// residual into the array "servers". With "write", servers replace a piece of theirs by worker 0's.
// With "", it averages a gradient again, and the array is freed. All workers must make the same
// call. Returns the number of pieces, which is known after the first push_pull; 0 before.
__attribute__((visibility("default"))) std::uint32_t gradcomp_byteps_ask(std::uint64_t id,
                                                                         const char* kind,
                                                                         std::uint32_t piece) {
  const auto tensor = find_tensor(id);
  if (tensor == nullptr) return 0;
  const std::lock_guard<std::mutex> lock(tensor->mutex);
  const std::string name = kind;
  tensor->ask = name == "read" ? Header::kRead : name == "write" ? Header::kWrite : 0;
  tensor->piece = piece;
  if (tensor->ask == 0) {
    tensor->servers = {};
  } else {
    tensor->servers.resize(tensor->numel);
  }
  return tensor->pieces;
}

// The tensor's numbers, which are those of each partition.
__attribute__((visibility("default"))) void gradcomp_byteps_progress(std::uint64_t id,
                                                                     Progress* out) {
  const auto tensor = find_tensor(id);
  if (tensor == nullptr) return;
  const std::lock_guard<std::mutex> lock(tensor->mutex);
  *out = tensor->resumed;
  out->loss_scale = tensor->loss_scale;
  if (tensor->parts.empty()) return;
  const Part& first = tensor->parts.front();
  out->steps = first.steps;
  out->lr = first.lr;
  out->fresh = first.fresh;
}

// Sets the numbers of all partitions, for a loaded checkpoint.
__attribute__((visibility("default"))) void gradcomp_byteps_set_progress(std::uint64_t id,
                                                                         const Progress* from) {
  const auto tensor = find_tensor(id);
  if (tensor == nullptr) return;
  const std::lock_guard<std::mutex> lock(tensor->mutex);
  tensor->resumed = *from;
  tensor->loss_scale = from->loss_scale;
  for (Part& part : tensor->parts) {
    const std::size_t offset = part.offset;
    part = {};
    part.offset = offset;
    part.steps = part.marked = from->steps;
    part.lr = from->lr;
    part.fresh = from->fresh != 0;
  }
}

// Sets the learning rates of the coming step; a negative one is unknown.
__attribute__((visibility("default"))) void gradcomp_byteps_set_lr(const std::uint64_t* ids,
                                                                   const float* rates,
                                                                   std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto tensor = find_tensor(ids[i]);
    if (tensor != nullptr) tensor->lr = rates[i];
  }
}

// Begins a step with this loss scale, between steps. A smaller scale than the last one means that
// all workers skipped the last step: its changes are undone.
__attribute__((visibility("default"))) void gradcomp_byteps_set_loss_scale(const std::uint64_t* ids,
                                                                           std::size_t count,
                                                                           double scale) {
  for_tensors(ids, count,
              [&](Tensor& tensor) { begin_kept_step(tensor, scale, scale < tensor.loss_scale); });
}

// Keeps what each step from now on changes, for gradcomp_byteps_discard_step().
__attribute__((visibility("default"))) void gradcomp_byteps_keep_steps(const std::uint64_t* ids,
                                                                       std::size_t count) {
  for_tensors(ids, count,
              [](Tensor& tensor) { begin_kept_step(tensor, tensor.loss_scale, false); });
}

// Undoes the last step, which all workers discard; servers follow with the next message. Returns
// the number of tensors with such a step.
__attribute__((visibility("default"))) std::size_t gradcomp_byteps_discard_step(
    const std::uint64_t* ids, std::size_t count) {
  std::size_t undone = 0;
  for_tensors(ids, count, [&](Tensor& tensor) {
    undone += begin_kept_step(tensor, tensor.loss_scale, true) ? 1 : 0;
  });
  return undone;
}

// Sets the epoch, counted from 0.
__attribute__((visibility("default"))) void gradcomp_byteps_set_epoch(std::uint64_t epoch) {
  current_epoch = epoch;
}

// The epoch, counted from 0.
__attribute__((visibility("default"))) std::uint64_t gradcomp_byteps_epoch(void) {
  return current_epoch;
}

// Bytes so far: pushed, pulled, and the size in memory of the pushed gradients.
__attribute__((visibility("default"))) void gradcomp_byteps_totals(std::uint64_t out[3]) {
  out[0] = totals.pushed;
  out[1] = totals.pulled;
  out[2] = totals.dense;
}

}  // extern "C"
