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
    world_size_ = number(variable("DMLC_NUM_WORKER"), "DMLC_NUM_WORKER");
    const std::lock_guard<std::mutex> lock(tensor_->mutex);
    offset_ = tensor_->partitioned;
    tensor_->partitioned += registered_;
    if (tensor_->numel == 0) grow(registered_);  // no gradcomp_tensor: size unknown
    index_ = tensor_->parts.size();
    header_.partition = static_cast<std::uint16_t>(index_);
    Part part;
    part.offset = offset_;
    part.steps = part.marked = tensor_->resumed.steps;
    part.lr = tensor_->resumed.lr;
    part.fresh = tensor_->resumed.fresh != 0;
    tensor_->parts.push_back(part);
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
    answered_coded_ = !is_raw(message);
    if (answered_coded_) {
      const Header header = header_of(message);
      if (header.sender == Header::kApart) fail_apart(message);
      if (numel_of(header) != numel_) {
        fail("a sum has " + std::to_string(numel_of(header)) + " elements, and its gradient " +
             std::to_string(numel_));
      }
      if (header.is_piece()) {
        if (message.size > header.size()) take_piece(message, header, servers());
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
      const std::string who = apart.sender[i] == Header::kCommonSeed
                                  ? "a worker"
                                  : "worker " + std::to_string(apart.sender[i]);
      text += (i == 0 ? "" : ", and ") + who + " is at step " + std::to_string(apart.step[i]) +
              ", epoch " + std::to_string(apart.epoch[i]);
    }
    if (apart.step[0] == apart.step[1] && apart.epoch[0] == apart.epoch[1]) {
      text += ", with different learning rates or loss scales";
    }
    const std::uint64_t step = part().steps;
    fail(text + "; this is worker " + std::to_string(worker_) + ", at step " +
         std::to_string(step - 1) + ", epoch " + std::to_string(header_.epoch) +
         ". Load states of one step on all workers, and call set_epoch, set_lr and set_loss_scale "
         "before the same step with the same values");
  }

  // The message that is pushed instead of a gradient during a checkpoint's exchange.
  tensor_t ask(const tensor_t& grad, std::size_t n) {
    if (piece_size() == 0) return raw(grad.data, grad.size);  // the server keeps no residual
    Header header = header_;
    set_unit(header, part().lr);
    header.sender = tensor_->ask;
    header.step = tensor_->piece;
    const bool writes = tensor_->ask == Header::kWrite && worker_ == 0;
    return piece_message(header, n, writes ? servers() : nullptr);
  }

  Part& part() const { return tensor_->parts[index_]; }

  // Sets a message's unit; `lr` is the learning rate, for specs with lr=scale.
  void set_unit(Header& header, float lr) const {
    const bool follows_lr = (keeps_ & GRADCOMP_KEEPS_LR) != 0;
    header.has_unit = follows_lr || tensor_->keeps_steps || tensor_->loss_scale != 1;
    header.unit.value = (follows_lr ? lr : 1.0) / tensor_->loss_scale;
    header.unit.steps = static_cast<std::uint32_t>(part().steps);
    header.unit.skips = part().skips_now();
    header.unit.scaled = tensor_->keeps_steps;
  }

  // Copies the state that a step may undo.
  void keep(const gradcomp_memory& memory, std::size_t n) {
    Part& one = part();
    if (memory.residual != nullptr) one.kept_residual.assign(memory.residual, memory.residual + n);
    if (memory.momentum != nullptr) one.kept_momentum.assign(memory.momentum, memory.momentum + n);
    one.kept_lr = one.lr;
    one.kept_fresh = one.fresh;
    one.kept = true;
  }

  // The learning rate of this step; 0 for specs that do not follow it.
  float present_lr() const {
    if (!(keeps_ & GRADCOMP_KEEPS_LR)) return 0;
    if (tensor_->lr < 0) {
      fail("ConfigError: '" + options_.spec +
           "' scales the residual by the learning rate, which "
           "is unknown: use byteps_compressors.torch.DistributedOptimizer, or call set_lr(lr) on "
           "the result of attach before each step");
    }
    return tensor_->lr;
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
    Part& state = part();
    header_.step = static_cast<std::uint32_t>(state.steps);
    header_.epoch = static_cast<std::uint16_t>(current_epoch.load());
    const float lr = present_lr();
    set_unit(header_, lr);
    ++state.steps;
    state.kept = false;
    const gradcomp_codec* const codec = codec_at(header_.step, header_.epoch);
    const gradcomp_memory memory = {
        array(tensor_->residual, own_.residual, GRADCOMP_KEEPS_RESIDUAL, n),
        array(tensor_->momentum, own_.momentum, GRADCOMP_KEEPS_MOMENTUM, n), state.lr, lr,
        state.fresh};
    const gradcomp_call call = call_of(header_);
    const float* const values = load_values(grad, n);
    if (limit_ == 0 && keeps_ == 0) return raw(grad.data, grad.size);
    if (tensor_->keeps_steps) {
      // All workers see the overflow in the average and skip the step.
      if (!finite(values, n)) {
        return answered_coded_ ? overflow_message(header_, n) : raw(grad.data, grad.size);
      }
      keep(memory, n);
    }
    state.fresh = false;
    const bool waits = (keeps_ & GRADCOMP_KEEPS_LR) && lr == 0;
    if (lr != 0) state.lr = lr;
    const bool shorter = encode(codec, n, header_, [&](std::uint8_t* out, std::size_t capacity) {
      return gradcomp_spec_encode(spec_.get(), codec, values, n, &memory, world_size_, &call, out,
                                  capacity, &payload_size_);
    });
    if (shorter) return coded();
    if (keeps_ == 0 || waits) return raw(grad.data, grad.size);
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
  std::size_t index_ = 0;  // in tensor_->parts
  std::size_t world_size_ = 1;
  std::uint64_t worker_ = 0;
  std::size_t offset_ = 0;
  std::size_t numel_ = 0;
  Header header_;
  // Whether the last answer was coded. BytePS would then cut a message of full size.
  bool answered_coded_ = false;
  std::vector<char> pulled_;
};

}  // namespace

std::unique_ptr<Compressor> make_worker_partition(const Options& options, std::size_t size,
                                                  DataType type) {
  return std::make_unique<WorkerPartition>(options, size, type);
}

}  // namespace gradcomp_byteps
