// Base class of compressors: messages, the codec of a step, and pieces of the server's residual.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "byteps/common/compressor/compressor.h"
#include "core.hpp"
#include "elements.hpp"
#include "gradcomp/gradcomp.h"
#include "header.hpp"

namespace gradcomp_byteps {

using byteps::common::compressor::Compressor;
using byteps::common::compressor::tensor_t;

// Keyword arguments of a compressor, parsed.
struct Options {
  std::string spec;
  std::uint64_t tensor = 0;
  std::uint64_t seed = 0;
  bool feedback = false;
};

// Base class of a partition's compressors on workers and on the server: messages and codecs.
class Partition : public Compressor {
 protected:
  Partition(const Options& options, std::size_t size, DataType type)
      : Compressor(size, type),
        options_(options),
        type_(element_type(type)),
        registered_(size / type_.width),
        spec_(make_spec(options.spec)),
        scheduled_(gradcomp_spec_scheduled(spec_.get()) != 0),
        keeps_(type_.compressible ? gradcomp_spec_keeps(spec_.get()) : 0) {
    // BytePS rounds sizes up to a multiple of this, so a message above the limit must be raw.
    const std::size_t rounding = 8 * type_.width * type_.width;
    limit_ = type_.compressible ? size - rounding : 0;
    summable_ = (gradcomp_codec_caps(codec_at(0, 0)) & GRADCOMP_CAP_SUMMABLE) != 0;
  }

  // The codec of a step and epoch, created anew only if the spec is scheduled.
  const gradcomp_codec* codec_at(std::uint64_t step, std::uint64_t epoch) {
    if (codec_ == nullptr || (scheduled_ && (step != codec_step_ || epoch != codec_epoch_))) {
      codec_ = make_codec(spec_.get(), step, epoch);
      codec_step_ = step;
      codec_epoch_ = epoch;
    }
    return codec_.get();
  }

  gradcomp_call call_of(const Header& header) const {
    const std::uint64_t seed = header.sender == Header::kCommonSeed
                                   ? options_.seed
                                   : gradcomp_rank_seed(options_.seed, header.sender);
    return {seed, header.step, options_.tensor << 16 | header.partition};
  }

  bool is_raw(const tensor_t& message) const { return message.size > limit_; }

  // Writes header and payload; returns false if a raw message is no longer than this one.
  template <typename Encode>
  bool encode(const gradcomp_codec* codec, std::size_t n, Header header, Encode&& encode) {
    header_size_ = header.size();
    message_.resize(header_size_ + gradcomp_max_payload_size(codec, n));
    payload_size_ = 0;
    check(encode(payload(), message_.size() - header_size_), "encode");
    if (header_size_ + payload_size_ > limit_) return false;
    header.rounding = static_cast<std::uint8_t>(registered_ - n);
    header.write(message_.data());
    return true;
  }
  std::uint8_t* payload() { return message_.data() + header_size_; }
  tensor_t coded() { return {message_.data(), header_size_ + payload_size_, _dtype}; }

  tensor_t raw(const char* data, std::size_t size) {
    message_.assign(data, data + size);
    return {message_.data(), size, _dtype};
  }
  tensor_t raw(const float* values, std::size_t n) {
    message_.resize(n * type_.width);
    store(_dtype, values, reinterpret_cast<char*>(message_.data()), n);
    return {message_.data(), message_.size(), _dtype};
  }

  // The header of a coded message.
  Header header_of(const tensor_t& message) const {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(message.data);
    Header header;
    if (message.size >= Header::kSize) header.read(bytes);
    if (message.size < header.size()) {
      fail("a message has " + std::to_string(message.size) + " bytes, fewer than its header");
    }
    if (header.has_unit) header.read_unit(bytes + Header::kSize);
    if (header.rounding >= registered_) fail("a message does not fit its partition's size");
    return header;
  }
  std::size_t numel_of(const Header& header) const { return registered_ - header.rounding; }

  // Decodes a coded message into `out`, which has room for numel_of(header) elements.
  void decode(const tensor_t& message, const Header& header, char* out) {
    const std::size_t n = numel_of(header);
    if (header.sender == Header::kOverflow) {
      std::fill_n(floats(n), n, std::numeric_limits<float>::quiet_NaN());
      store(_dtype, floats_.data(), out, n);
      return;
    }
    const gradcomp_call call = call_of(header);
    float* const values =
        _dtype == byteps::common::BYTEPS_FLOAT32 ? reinterpret_cast<float*>(out) : floats(n);
    check(gradcomp_decode(codec_at(header.step, header.epoch),
                          reinterpret_cast<const std::uint8_t*>(message.data) + header.size(),
                          message.size - header.size(), &call, values, n),
          "decode");
    if (values == floats_.data()) store(_dtype, values, out, n);
  }

  // Byte range within n floats that one message has room for.
  struct Piece {
    std::size_t begin;
    std::size_t size;
  };
  std::size_t piece_size() const {
    constexpr std::size_t longest = Header::kSize + Header::kUnitSize;
    return limit_ > longest ? limit_ - longest : 0;
  }
  Piece piece(std::size_t n, std::size_t index) const {
    const std::size_t begin = std::min(index * piece_size(), 4 * n);
    return {begin, std::min(piece_size(), 4 * n - begin)};
  }
  // Makes a message with piece header.step of `values`; only a header if they are NULL.
  tensor_t piece_message(Header header, std::size_t n, const float* values) {
    const Piece sent = values == nullptr ? Piece{0, 0} : piece(n, header.step);
    header.rounding = static_cast<std::uint8_t>(registered_ - n);
    header_size_ = header.size();
    payload_size_ = sent.size;
    message_.resize(header_size_ + sent.size);
    header.write(message_.data());
    if (sent.size > 0) {
      std::memcpy(payload(), reinterpret_cast<const char*>(values) + sent.begin, sent.size);
    }
    return coded();
  }
  // Copies the piece in a message to its place in `values`.
  void take_piece(const tensor_t& message, const Header& header, float* values) {
    const Piece taken = piece(numel_of(header), header.step);
    if (message.size != header.size() + taken.size) {
      fail("a piece of the servers' state has " + std::to_string(message.size - header.size()) +
           " bytes; it must have " + std::to_string(taken.size));
    }
    std::memcpy(reinterpret_cast<char*>(values) + taken.begin, message.data + header.size(),
                taken.size);
  }

  // Makes the message of a partition of n elements that has a NaN or Inf.
  tensor_t overflow_message(Header header, std::size_t n) {
    header.rounding = static_cast<std::uint8_t>(registered_ - n);
    header.sender = Header::kOverflow;
    header_size_ = header.size();
    payload_size_ = 0;
    message_.resize(header_size_);
    header.write(message_.data());
    return coded();
  }

  // The partition's values as float32; only other types are copied.
  const float* load_values(const tensor_t& from, std::size_t n) {
    if (_dtype == byteps::common::BYTEPS_FLOAT32) return reinterpret_cast<const float*>(from.data);
    load(_dtype, from.data, floats(n), n);
    return floats_.data();
  }
  // Whether all n values are finite.
  static bool finite(const float* values, std::size_t n) {
    bool all = true;
    for (std::size_t i = 0; i < n; ++i) all &= std::isfinite(values[i]);
    return all;
  }
  float* floats(std::size_t n) {
    floats_.resize(n);
    return floats_.data();
  }

  Options options_;
  ElementType type_;
  std::size_t registered_;  // number of elements, rounded up
  Spec spec_;
  bool scheduled_;
  std::uint32_t keeps_;  // gradcomp_spec_keeps; 0 for integers
  bool summable_ = false;
  std::size_t limit_ = 0;  // maximum size of a coded message in bytes
  // Buffer of Compress alone; Decompress must not write to it, as BytePS still sends from it.
  std::vector<std::uint8_t> message_;
  std::size_t header_size_ = Header::kSize;
  std::size_t payload_size_ = 0;
  std::vector<float> floats_;

 private:
  Codec codec_;
  std::uint64_t codec_step_ = 0;
  std::uint64_t codec_epoch_ = 0;
};

// Make the compressor of a partition of `size` bytes.
std::unique_ptr<Compressor> make_worker_partition(const Options& options, std::size_t size,
                                                  DataType type);
std::unique_ptr<Compressor> make_server_partition(const Options& options, std::size_t size,
                                                  DataType type);

}  // namespace gradcomp_byteps
