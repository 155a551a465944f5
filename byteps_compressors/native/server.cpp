// Compression on servers: decoding of the workers' messages and encoding of their sum.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "partition.hpp"

namespace gradcomp_byteps {
namespace {

// A partition on the server: decodes the workers' messages and encodes their sum.
class ServerPartition final : public Partition {
 public:
  ServerPartition(const Options& options, std::size_t size, DataType type)
      : Partition(options, size, type) {}

  tensor_t Decompress(tensor_t message) override {
    if (is_raw(message)) return message;
    const Header header = header_of(message);
    if (any_coded_ && header.is_piece() != header_.is_piece()) {
      fail(
          "one worker pushed a gradient, and another one exchanges the servers' state: all must "
          "call state_dict and load_state_dict between the same steps");
    }
    const bool differs =
        any_coded_ && (header.step != header_.step || header.epoch != header_.epoch);
    if (differs && !apart_) {
      apart_ = true;
      difference_.set(0, header_);
      difference_.set(1, header);
    }
    any_coded_ = true;
    header_ = header;
    const std::size_t n = numel_of(header);
    if (header.is_piece()) {
      if (message.size > Header::kSize) {
        residual_.resize(n);
        take_piece(message, header, residual_.data());
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
      const bool answers = header_.sender == Header::kRead && residual_.size() == n;
      return piece_message(header_, n, answers ? residual_.data() : nullptr);
    }
    if (!summable_) header_.sender = Header::kServer;
    const gradcomp_codec* const codec = codec_at(header_.step, header_.epoch);
    const gradcomp_call call = call_of(header_);
    const float* const values = load_values(sum, n);
    if (options_.feedback) residual_.resize(n);
    const bool shorter = encode(codec, n, header_, [&](std::uint8_t* out, std::size_t capacity) {
      return options_.feedback
                 ? gradcomp_encode_with_residual(codec, residual_.data(), values, n, 1.0f, 1.0f,
                                                 &call, out, capacity, &payload_size_)
                 : gradcomp_encode(codec, values, n, &call, out, capacity, &payload_size_);
    });
    if (shorter) return coded();
    if (!options_.feedback) return raw(sum.data, sum.size);
    check(gradcomp_decode_add(codec, payload(), payload_size_, &call, 1.0f, residual_.data(), n),
          "decode");
    const tensor_t message = raw(residual_.data(), n);
    std::fill(residual_.begin(), residual_.end(), 0.0f);
    return message;
  }

 private:
  // The answer to all workers instead of a sum. It fits: limit_ is at least 32 bytes if messages
  // are coded.
  tensor_t apart_message() {
    header_.sender = Header::kApart;
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
};

}  // namespace

std::unique_ptr<Compressor> make_server_partition(const Options& options, std::size_t size,
                                                  DataType type) {
  return std::make_unique<ServerPartition>(options, size, type);
}

}  // namespace gradcomp_byteps
