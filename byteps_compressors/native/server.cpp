// Compression on servers: decoding of the workers' messages and encoding of their sum.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "partition.hpp"

namespace gradcomp_byteps {
namespace {

// A partition on the server: decodes the workers' messages and encodes their sum.
class ServerPartition final : public Partition {
 public:
  ServerPartition(const Options& options, std::size_t size, DataType type)
      : Partition(options, size, type) {
    if (keeps_ & GRADCOMP_KEEPS_LR) unit_ = 0;
  }

  tensor_t Decompress(tensor_t message) override {
    if (is_raw(message)) return message;
    const Header header = header_of(message);
    if (any_coded_ && header.is_piece() != header_.is_piece()) {
      fail(
          "one worker pushed a gradient, and another one exchanges the servers' state: all must "
          "call state_dict and load_state_dict between the same steps");
    }
    if (any_coded_ && !header.same_point(header_) && !apart_) {
      apart_ = true;
      difference_.set(0, header_);
      difference_.set(1, header);
    }
    any_coded_ = true;
    header_ = header;
    const std::size_t n = numel_of(header);
    if (header.is_piece()) {
      if (message.size > header.size()) {
        residual_.resize(n);
        take_piece(message, header, residual_.data());
        unit_ = header.unit.value;
        kept_.reset();
      }
      std::memset(_buf.get(), 0, n * type_.width);  // BytePS adds it as it adds gradients
    } else {
      decode(message, header, _buf.get());
    }
    return {_buf.get(), n * type_.width, message.dtype};
  }

  tensor_t Compress(tensor_t sum) override {
    const std::size_t n = sum.size / type_.width;
    const bool coded_before = any_coded_;
    any_coded_ = false;
    // If no worker's message got shorter, neither would the sum's.
    if (!type_.compressible || !coded_before) return raw(sum.data, sum.size);
    if (apart_) return apart_message();
    if (header_.is_piece()) {
      follow();
      const bool answers = header_.sender == Header::kRead && residual_.size() == n;
      return piece_message(header_, n, answers ? residual_.data() : nullptr);
    }
    if (!summable_) header_.sender = Header::kServer;
    const gradcomp_codec* const codec = codec_at(header_.step, header_.epoch);
    const gradcomp_call call = call_of(header_);
    const float* const values = load_values(sum, n);
    // All workers skip a step with an overflow: the residual is for a later one.
    if (header_.unit.scaled && !finite(values, n)) return overflow_message(header_, n);
    const bool feedback = options_.feedback && header_.unit.value > 0;
    float weight = 1.0f;
    if (feedback) {
      residual_.resize(n);
      weight = begin_step();
    }
    Header answer = header_;
    answer.has_unit = false;
    const bool shorter = encode(codec, n, answer, [&](std::uint8_t* out, std::size_t capacity) {
      return feedback ? gradcomp_encode_with_residual(codec, residual_.data(), values, n, weight,
                                                      1.0f, &call, out, capacity, &payload_size_)
                      : gradcomp_encode(codec, values, n, &call, out, capacity, &payload_size_);
    });
    if (shorter) return coded();
    if (!feedback) return raw(sum.data, sum.size);
    check(gradcomp_decode_add(codec, payload(), payload_size_, &call, 1.0f, residual_.data(), n),
          "decode");
    const tensor_t message = raw(residual_.data(), n);
    std::fill(residual_.begin(), residual_.end(), 0.0f);
    return message;
  }

 private:
  // Takes back the latest change of the residual if all workers skipped its step.
  void undo_skipped() {
    if (!kept_ || !header_.unit.skipped(kept_->step)) return;
    residual_ = std::move(kept_->residual);
    unit_ = kept_->unit;
    kept_.reset();
  }

  // Factor of the residual, from its unit to this round's.
  float factor() const {
    const double unit = header_.unit.value;
    return unit_ > 0 && unit > 0 ? static_cast<float>(unit_ / unit) : 1.0f;
  }

  // Prepares the residual for a step. Returns its factor.
  float begin_step() {
    undo_skipped();
    if (header_.unit.scaled) {
      if (!kept_) kept_.emplace();
      kept_->residual = residual_;
      kept_->unit = unit_;
      kept_->step = header_.step;
    }
    const float weight = factor();
    unit_ = header_.unit.value;
    return weight;
  }

  // Takes back a skipped step and brings the residual to the workers' unit, for a checkpoint.
  void follow() {
    undo_skipped();
    const float weight = factor();
    if (weight != 1.0f) {
      for (float& value : residual_) value *= weight;
    }
    if (header_.unit.value > 0) unit_ = header_.unit.value;
  }

  // The answer to all workers instead of a sum. It fits: limit_ is at least 32 bytes if messages
  // are coded.
  tensor_t apart_message() {
    header_.sender = Header::kApart;
    header_.has_unit = false;
    header_size_ = Header::kSize;
    payload_size_ = Apart::kSize;
    message_.resize(Header::kSize + Apart::kSize);
    header_.write(message_.data());
    difference_.write(payload());
    return coded();
  }

  bool apart_ = false;  // whether two workers' messages of a round had different steps or epochs
  Apart difference_;    // the first two such messages
  bool any_coded_ = false;  // whether a worker's message of this step was coded
  Header header_;           // of the latest coded message from a worker
  std::vector<float> residual_;
  double unit_ = 1;  // of the residual; 0: unknown
  // Residual and unit before a step, while steps are kept.
  struct Kept {
    std::vector<float> residual;
    double unit = 1;
    std::uint32_t step = 0;
  };
  std::optional<Kept> kept_;
};

}  // namespace

std::unique_ptr<Compressor> make_server_partition(const Options& options, std::size_t size,
                                                  DataType type) {
  return std::make_unique<ServerPartition>(options, size, type);
}

}  // namespace gradcomp_byteps
