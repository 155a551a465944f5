// Functions that byteps_compressors/native/__init__.py calls: declaring tensors, and the state of a
// worker for checkpoints and statistics.
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

// Number of steps in which the tensor was compressed.
__attribute__((visibility("default"))) std::uint64_t gradcomp_byteps_steps(std::uint64_t id) {
  const auto tensor = find_tensor(id);
  if (tensor == nullptr) return 0;
  const std::lock_guard<std::mutex> lock(tensor->mutex);
  return tensor->steps.empty() ? tensor->resumed_at : tensor->steps.front();
}

// Sets the number of steps of all partitions, for a loaded checkpoint.
__attribute__((visibility("default"))) void gradcomp_byteps_set_steps(std::uint64_t id,
                                                                      std::uint64_t steps) {
  const auto tensor = find_tensor(id);
  if (tensor == nullptr) return;
  const std::lock_guard<std::mutex> lock(tensor->mutex);
  tensor->resumed_at = steps;
  for (std::uint64_t& one : tensor->steps) one = steps;
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
