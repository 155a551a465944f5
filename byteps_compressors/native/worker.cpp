// Compression on workers: memories, encoding of gradients and decoding of sums.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "partition.hpp"
#include "tensors.hpp"

namespace gradcomp_byteps {
namespace {

// A partition on a worker: applies the spec's memories, encodes gradients and decodes sums.
class WorkerPartition final : public Partition {
 public:
  WorkerPartition(const Options& options, std::size_t size, DataType type)
      : Partition(options, size, type), tensor_(find_tensor(options.tensor)) {
    if (tensor_ == nullptr) tensor_ = std::make_shared<Tensor>();
    keeps_ = type_.compressible ? gradcomp_spec_keeps(spec_.get()) : 0;
    world_size_ = number(variable("DMLC_NUM_WORKER"), "DMLC_NUM_WORKER");
    const std::lock_guard<std::mutex> lock(tensor_->mutex);
    offset_ = tensor_->partitioned;
    tensor_->partitioned += registered_;
    if (tensor_->numel == 0) grow(registered_);  // no gradcomp_tensor: size unknown
    header_.partition = static_cast<std::uint16_t>(tensor_->steps.size());
    tensor_->steps.push_back(tensor_->resumed_at);
    if (piece_size() > 0) {
      const std::size_t pieces = (4 * registered_ + piece_size() - 1) / piece_size();
      tensor_->pieces = std::max(tensor_->pieces, static_cast<std::uint32_t>(pieces));
    }
    worker_ = number(variable("DMLC_WORKER_ID"), "DMLC_WORKER_ID");
    if (!summable_) header_.sender = static_cast<std::uint16_t>(worker_);
  }

  tensor_t Compress(tensor_t grad) override {
    const std::size_t n = grad.size / type_.width;
    numel_ = n;
    if (tensor_->ask != 0) return ask(grad, n);
    totals.dense += grad.size;
    const tensor_t message = type_.compressible ? compress(grad, n) : raw(grad.data, grad.size);
    totals.pushed += message.size;
    return message;
  }

  // Decodes in place.
  tensor_t Decompress(tensor_t message) override {
    if (tensor_->ask == 0) totals.pulled += message.size;
    if (!is_raw(message)) {
      const Header header = header_of(message);
      if (header.sender == Header::kApart) fail_apart(message);
      if (numel_of(header) != numel_) {
        fail("a sum has " + std::to_string(numel_of(header)) + " elements, and its gradient " +
             std::to_string(numel_));
      }
      if (header.is_piece()) {
        if (message.size > Header::kSize) take_piece(message, header, servers());
      } else {
        pulled_.assign(message.data, message.data + message.size);
        decode({pulled_.data(), pulled_.size(), message.dtype}, header, message.data);
      }
    }
    return {message.data, numel_ * type_.width, message.dtype};
  }

 private:
  // Ends the process: the server found workers at different steps or epochs.
  [[noreturn]] void fail_apart(const tensor_t& message) const {
    if (message.size != Header::kSize + Apart::kSize) {
      fail("a server's report of different steps has " + std::to_string(message.size) + " bytes");
    }
    Apart apart;
    apart.read(reinterpret_cast<const std::uint8_t*>(message.data) + Header::kSize);
    std::string text = "ProtocolError: the workers are not at the same point of the training: ";
    for (const std::size_t i : {0, 1}) {
      const std::string who = apart.sender[i] == Header::kShared
                                  ? "a worker"
                                  : "worker " + std::to_string(apart.sender[i]);
      text += (i == 0 ? "" : ", and ") + who + " is at step " + std::to_string(apart.step[i]) +
              ", epoch " + std::to_string(apart.epoch[i]);
    }
    const std::uint64_t step = tensor_->steps[header_.partition];
    fail(text + "; this is worker " + std::to_string(worker_) + ", at step " +
         std::to_string(step - 1) + ", epoch " + std::to_string(header_.epoch) +
         ". Load states of one step on all workers, and call set_epoch before the same step");
  }

  // The message that is pushed instead of a gradient during a checkpoint's exchange.
  tensor_t ask(const tensor_t& grad, std::size_t n) {
    if (piece_size() == 0) return raw(grad.data, grad.size);  // the server keeps no residual
    Header header = header_;
    header.sender = tensor_->ask;
    header.step = tensor_->piece;
    const bool writes = tensor_->ask == Header::kWrite && worker_ == 0;
    return piece_message(header, n, writes ? servers() : nullptr);
  }

  // This partition's part of the servers' residual.
  float* servers() {
    if (offset_ + numel_ > tensor_->servers.size()) {
      fail("the servers' state has more elements than the parameter");
    }
    return tensor_->servers.data() + offset_;
  }

  // Allocates this partition's own memories; used without gradcomp_tensor.
  void grow(std::size_t by) {
    if (keeps_ & GRADCOMP_KEEPS_RESIDUAL) own_.residual.resize(by);
    if (keeps_ & GRADCOMP_KEEPS_MOMENTUM) own_.momentum.resize(by);
  }

  // This partition's part of a memory; NULL if the spec does not keep it.
  float* array(std::vector<float>& of_tensor, std::vector<float>& own, std::uint32_t kind,
               std::size_t n) {
    if (!(keeps_ & kind)) return nullptr;
    if (tensor_->numel == 0) return own.data();
    if (offset_ + n > of_tensor.size()) {
      fail("a gradient has more elements than its declared parameter");
    }
    return of_tensor.data() + offset_;
  }

  tensor_t compress(const tensor_t& grad, std::size_t n) {
    std::uint64_t& step = tensor_->steps[header_.partition];
    header_.step = static_cast<std::uint32_t>(step);
    header_.epoch = static_cast<std::uint16_t>(current_epoch.load());
    ++step;
    const gradcomp_codec* const codec = codec_at(header_.step, header_.epoch);
    const gradcomp_memory memory = {
        array(tensor_->residual, own_.residual, GRADCOMP_KEEPS_RESIDUAL, n),
        array(tensor_->momentum, own_.momentum, GRADCOMP_KEEPS_MOMENTUM, n)};
    const gradcomp_call call = call_of(header_);
    const float* const values = load_values(grad, n);
    if (limit_ == 0 && keeps_ == 0) return raw(grad.data, grad.size);
    const bool shorter = encode(codec, n, header_, [&](std::uint8_t* out, std::size_t capacity) {
      return gradcomp_spec_encode(spec_.get(), codec, values, n, &memory, world_size_, &call, out,
                                  capacity, &payload_size_);
    });
    if (shorter) return coded();
    if (keeps_ == 0) return raw(grad.data, grad.size);
    if (memory.residual == nullptr) return raw(memory.momentum, n);
    // The encoded values are the residual plus the decoded payload; send their sum raw. The new
    // residual is the error of storing it in the gradient's type.
    check(gradcomp_decode_add(codec, payload(), payload_size_, &call, 1.0f, memory.residual, n),
          "decode");
    const tensor_t message = raw(memory.residual, n);
    load(_dtype, message.data, floats(n), n);
    for (std::size_t i = 0; i < n; ++i) {
      const float lost = memory.residual[i] - floats_[i];
      memory.residual[i] = std::isfinite(lost) ? lost : 0.0f;
    }
    return message;
  }

  std::shared_ptr<Tensor> tensor_;
  struct {
    std::vector<float> residual;
    std::vector<float> momentum;
  } own_;
  std::uint32_t keeps_ = 0;
  std::size_t world_size_ = 1;
  std::uint64_t worker_ = 0;
  std::size_t offset_ = 0;
  std::size_t numel_ = 0;
  Header header_;
  std::vector<char> pulled_;
};

}  // namespace

std::unique_ptr<Compressor> make_worker_partition(const Options& options, std::size_t size,
                                                  DataType type) {
  return std::make_unique<WorkerPartition>(options, size, type);
}

}  // namespace gradcomp_byteps
