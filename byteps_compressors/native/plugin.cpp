// gradcomp's codecs as BytePS compressors. Workers and servers load the same library, built against
// BytePS' headers and gradcomp.h (byteps_compressors/build.py).
//
// BytePS cuts a tensor into partitions and makes one compressor per partition, on every worker and
// on one server. In each step, a worker compresses its partition and pushes the message. The server
// decompresses the messages, adds them and compresses the sum; every worker pulls and decompresses
// it.
//
// Keyword arguments of a compressor (BytePS passes them as text without blanks):
//   compressor_type=gradcomp gradcomp_spec=SPEC    any spec without an algorithm
//   compressor_type=gradcomp_CODEC [PARAM=VALUE]   a codec by name
//   gradcomp_memory=NAME  with a codec by name: memory of the spec, such as residual; default: none
//   gradcomp_tensor=ID    result of gradcomp_byteps_tensor; default 0: a state of its own
//   gradcomp_seed=N       equal on all workers; default 0
//   gradcomp_feedback=1   error feedback on the server: its error is added to the next sum
//
// A message is either raw, with the size of the partition in memory, or coded and shorter: a Header
// and the codec's payload.
//
// For checkpoints, workers read and write the servers' residuals between steps
// (gradcomp_byteps_ask). These exchanges use the push_pull of the gradient. A message must be
// shorter than the partition, so the residual travels in pieces. To read, every worker pushes a
// Header with kRead and pulls the piece. To write, every worker pushes a Header with kWrite, which
// worker 0 alone follows with the piece. Servers answer with a Header of the same kind.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "byteps/common/compressor/compressor.h"
#include "byteps/common/compressor/compressor_registry.h"
#include "gradcomp/gradcomp.h"

namespace byteps {
namespace common {
// Weak, as only the workers' library defines them.
bool IsTensorDeclared(const std::string& name) __attribute__((weak));
void RegisterCompressor(const std::string& name,
                        std::unordered_map<std::string, std::string>& kwargs) __attribute__((weak));
}  // namespace common
}  // namespace byteps

namespace {

using byteps::common::DataType;
using byteps::common::compressor::Compressor;
using byteps::common::compressor::CompressorRegistry;
using byteps::common::compressor::kwargs_t;
using byteps::common::compressor::tensor_t;

// Ends the process: BytePS' compressors cannot report errors in another way.
[[noreturn]] void fail(const std::string& reason) {
  byteps::common::LogMessageFatal("gradcomp", 0) << reason;
  std::abort();  // not reached; the destructor above aborts
}

void check(gradcomp_status status, const char* doing) {
  if (status != GRADCOMP_OK) fail(std::string(doing) + ": " + gradcomp_last_error());
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::uint64_t number(const std::string& text, const char* name) {
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0') {
    fail(std::string(name) + " is '" + text + "'; it must be a whole number");
  }
  return value;
}

struct Destroy {
  void operator()(gradcomp_codec* codec) const { gradcomp_codec_destroy(codec); }
  void operator()(gradcomp_spec* spec) const { gradcomp_spec_destroy(spec); }
};
using Codec = std::unique_ptr<gradcomp_codec, Destroy>;
using Spec = std::unique_ptr<gradcomp_spec, Destroy>;

Spec make_spec(const std::string& text) {
  gradcomp_spec* spec = nullptr;
  check(gradcomp_spec_create(text.c_str(), &spec), "gradcomp_spec");
  return Spec(spec);
}

Codec make_codec(const gradcomp_spec* spec, std::uint64_t step, std::uint64_t epoch) {
  gradcomp_codec* codec = nullptr;
  check(gradcomp_spec_codec(spec, step, epoch, &codec), "codec");
  return Codec(codec);
}

// --------------------------------------------------------- state of a worker's tensors

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

std::mutex tensors_mutex;
std::vector<std::shared_ptr<Tensor>>& tensors() {
  static std::vector<std::shared_ptr<Tensor>> all;
  return all;
}
Totals totals;
std::atomic<std::uint64_t> current_epoch{0};
thread_local std::string error_text;

// The tensor with this id, counted from 1; nullptr if there is none.
std::shared_ptr<Tensor> find_tensor(std::uint64_t id) {
  const std::lock_guard<std::mutex> lock(tensors_mutex);
  return id == 0 || id > tensors().size() ? nullptr : tensors()[id - 1];
}

// ------------------------------------------------------------------- element types

template <typename T>
void to_floats(const char* from, float* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = static_cast<float>(value);
  }
}

template <typename T>
void from_floats(const float* from, char* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const T value = static_cast<T>(from[i]);
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

// The codec "fp16", used to convert float16; it rounds to nearest even, as IEEE 754.
const gradcomp_codec* half() {
  static const Codec codec = make_codec(make_spec("fp16").get(), 0, 0);
  return codec.get();
}

struct ElementType {
  std::size_t width;
  bool compressible;  // false for integers, which travel raw: they are no gradients
};

ElementType element_type(DataType type) {
  switch (type) {
    case byteps::common::BYTEPS_FLOAT32:
      return {4, true};
    case byteps::common::BYTEPS_FLOAT64:
      return {8, true};
    case byteps::common::BYTEPS_FLOAT16:
      return {2, true};
    case byteps::common::BYTEPS_INT32:
      return {4, false};
    case byteps::common::BYTEPS_INT64:
      return {8, false};
    case byteps::common::BYTEPS_UINT8:
    case byteps::common::BYTEPS_INT8:
      break;
  }
  return {1, false};
}

// Converts n elements to float32.
void load(DataType type, const char* from, float* to, std::size_t n) {
  switch (type) {
    case byteps::common::BYTEPS_FLOAT64:
      return to_floats<double>(from, to, n);
    case byteps::common::BYTEPS_FLOAT16:
      return check(gradcomp_decode(half(), reinterpret_cast<const std::uint8_t*>(from), 2 * n,
                                   nullptr, to, n),
                   "float16");
    default:
      std::memcpy(to, from, 4 * n);
  }
}

// Converts n elements from float32.
void store(DataType type, const float* from, char* to, std::size_t n) {
  std::size_t written = 0;
  switch (type) {
    case byteps::common::BYTEPS_FLOAT64:
      return from_floats<double>(from, to, n);
    case byteps::common::BYTEPS_FLOAT16:
      return check(gradcomp_encode(half(), from, n, nullptr, reinterpret_cast<std::uint8_t*>(to),
                                   2 * n, &written),
                   "float16");
    default:
      std::memcpy(to, from, 4 * n);
  }
}

// ------------------------------------------------------------------------ payloads

// Header of a coded message: the data that decoding needs besides the payload.
struct Header {
  // Registered number of elements minus the actual one: BytePS rounds sizes up, and tells
  // compressors only the rounded sizes.
  std::uint8_t rounding = 0;
  std::uint32_t step = 0;
  std::uint16_t epoch = 0;
  std::uint16_t partition = 0;
  std::uint16_t sender = kShared;  // rank that seeds the random numbers, or a constant below

  static constexpr std::size_t kSize = 11;
  static constexpr std::uint16_t kShared = 0xFFFF;  // seed shared by all workers
  static constexpr std::uint16_t kServer = 0xFFFE;
  // Not a gradient, but piece `step` of the server's residual.
  static constexpr std::uint16_t kRead = 0xFFFD;
  static constexpr std::uint16_t kWrite = 0xFFFC;
  bool is_piece() const { return sender == kRead || sender == kWrite; }

  void write(std::uint8_t* to) const {
    to[0] = rounding;
    std::memcpy(to + 1, &step, 4);
    std::memcpy(to + 5, &epoch, 2);
    std::memcpy(to + 7, &partition, 2);
    std::memcpy(to + 9, &sender, 2);
  }
  void read(const std::uint8_t* from) {
    rounding = from[0];
    std::memcpy(&step, from + 1, 4);
    std::memcpy(&epoch, from + 5, 2);
    std::memcpy(&partition, from + 7, 2);
    std::memcpy(&sender, from + 9, 2);
  }
};

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
        scheduled_(gradcomp_spec_scheduled(spec_.get()) != 0) {
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
    const std::uint64_t seed = header.sender == Header::kShared
                                   ? options_.seed
                                   : gradcomp_rank_seed(options_.seed, header.sender);
    return {seed, header.step, options_.tensor << 16 | header.partition};
  }

  bool is_raw(const tensor_t& message) const { return message.size > limit_; }

  // Writes header and payload; returns false if a raw message is no longer than this one.
  template <typename Encode>
  bool encode(const gradcomp_codec* codec, std::size_t n, Header header, Encode&& encode) {
    message_.resize(Header::kSize + gradcomp_max_payload_size(codec, n));
    payload_size_ = 0;
    check(encode(payload(), message_.size() - Header::kSize), "encode");
    if (Header::kSize + payload_size_ > limit_) return false;
    header.rounding = static_cast<std::uint8_t>(registered_ - n);
    header.write(message_.data());
    return true;
  }
  std::uint8_t* payload() { return message_.data() + Header::kSize; }
  tensor_t coded() { return {message_.data(), Header::kSize + payload_size_, _dtype}; }

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
    if (message.size < Header::kSize) {
      fail("a message has " + std::to_string(message.size) + " bytes, fewer than its header");
    }
    Header header;
    header.read(reinterpret_cast<const std::uint8_t*>(message.data));
    if (header.rounding >= registered_) fail("a message does not fit its partition's size");
    return header;
  }
  std::size_t numel_of(const Header& header) const { return registered_ - header.rounding; }

  // Decodes a coded message into `out`, which has room for numel_of(header) elements.
  void decode(const tensor_t& message, const Header& header, char* out) {
    const std::size_t n = numel_of(header);
    const gradcomp_call call = call_of(header);
    float* const values =
        _dtype == byteps::common::BYTEPS_FLOAT32 ? reinterpret_cast<float*>(out) : floats(n);
    check(gradcomp_decode(codec_at(header.step, header.epoch),
                          reinterpret_cast<const std::uint8_t*>(message.data) + Header::kSize,
                          message.size - Header::kSize, &call, values, n),
          "decode");
    if (values == floats_.data()) store(_dtype, values, out, n);
  }

  // Byte range within n floats that one message has room for.
  struct Piece {
    std::size_t begin;
    std::size_t size;
  };
  std::size_t piece_size() const { return limit_ > Header::kSize ? limit_ - Header::kSize : 0; }
  Piece piece(std::size_t n, std::size_t index) const {
    const std::size_t begin = std::min(index * piece_size(), 4 * n);
    return {begin, std::min(piece_size(), 4 * n - begin)};
  }
  // Makes a message with piece header.step of `values`; only a header if they are NULL.
  tensor_t piece_message(Header header, std::size_t n, const float* values) {
    const Piece sent = values == nullptr ? Piece{0, 0} : piece(n, header.step);
    header.rounding = static_cast<std::uint8_t>(registered_ - n);
    payload_size_ = sent.size;
    message_.resize(Header::kSize + sent.size);
    header.write(message_.data());
    if (sent.size > 0) {
      std::memcpy(payload(), reinterpret_cast<const char*>(values) + sent.begin, sent.size);
    }
    return coded();
  }
  // Copies the piece in a message to its place in `values`.
  void take_piece(const tensor_t& message, const Header& header, float* values) {
    const Piece taken = piece(numel_of(header), header.step);
    if (message.size != Header::kSize + taken.size) {
      fail("a piece of the servers' state has " + std::to_string(message.size - Header::kSize) +
           " bytes; it must have " + std::to_string(taken.size));
    }
    std::memcpy(reinterpret_cast<char*>(values) + taken.begin, message.data + Header::kSize,
                taken.size);
  }

  // The partition's values as float32; only other types are copied.
  const float* load_values(const tensor_t& from, std::size_t n) {
    if (_dtype == byteps::common::BYTEPS_FLOAT32) return reinterpret_cast<const float*>(from.data);
    load(_dtype, from.data, floats(n), n);
    return floats_.data();
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
  bool summable_ = false;
  std::size_t limit_ = 0;  // maximum size of a coded message in bytes
  // Buffer of Compress alone; Decompress must not write to it, as BytePS still sends from it.
  std::vector<std::uint8_t> message_;
  std::size_t payload_size_ = 0;
  std::vector<float> floats_;

 private:
  Codec codec_;
  std::uint64_t codec_step_ = 0;
  std::uint64_t codec_epoch_ = 0;
};

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
  bool any_coded_ = false;  // whether a worker's message of this step was coded
  Header header_;           // of the latest coded message from a worker
  std::vector<float> residual_;
};

// -------------------------------------------------------------------- registration

std::string take(const kwargs_t& kwargs, const char* name, const char* otherwise) {
  const auto found = kwargs.find(name);
  return found == kwargs.end() ? otherwise : found->second;
}

// The spec in the arguments; "MEMORY|CODEC(PARAM=VALUE,...)" for a codec by name.
std::string spec_of(const std::string& codec, const kwargs_t& kwargs) {
  if (codec.empty()) return take(kwargs, "gradcomp_spec", "");
  std::string params;
  for (const auto& [name, value] : kwargs) {
    if (name == "compressor_type" || name.compare(0, 9, "gradcomp_") == 0) continue;
    params += (params.empty() ? "" : ",") + name + "=" + value;
  }
  const std::string memory = take(kwargs, "gradcomp_memory", "");
  return (memory.empty() ? "" : memory + "|") + codec + (params.empty() ? "" : "(" + params + ")");
}

// Ends the process in modes of BytePS whose servers do not decompress.
void refuse_modes() {
  if (variable("BYTEPS_ENABLE_ASYNC") == "1") {
    fail(
        "BYTEPS_ENABLE_ASYNC=1: asynchronous servers add messages without decompressing them; "
        "unset it, or do not compress");
  }
  if (variable("BYTEPS_SERVER_ENGINE_BLOCKING") == "1") {
    fail(
        "BYTEPS_SERVER_ENGINE_BLOCKING=1: the blocking engine adds messages without decompressing "
        "them; unset it, or do not compress");
  }
}

std::unique_ptr<Compressor> make(const std::string& codec, const kwargs_t& kwargs, std::size_t size,
                                 DataType type) {
  refuse_modes();
  Options options;
  options.spec = spec_of(codec, kwargs);
  options.tensor = number(take(kwargs, "gradcomp_tensor", "0"), "gradcomp_tensor");
  options.seed = number(take(kwargs, "gradcomp_seed", "0"), "gradcomp_seed");
  options.feedback = take(kwargs, "gradcomp_feedback", "0") == "1";
  if (variable("DMLC_ROLE") == "server") {
    return std::make_unique<ServerPartition>(options, size, type);
  }
  return std::make_unique<WorkerPartition>(options, size, type);
}

void register_as(const std::string& name, const std::string& codec) {
  CompressorRegistry::Register(name + "_compressor",
                               [codec](const kwargs_t& kwargs, std::size_t size, DataType type) {
                                 return make(codec, kwargs, size, type);
                               });
}

// Registers the compressors when the library is loaded.
const bool registered = [] {
  register_as("gradcomp", "");
  for (std::size_t i = 0; gradcomp_codec_name(i) != nullptr; ++i) {
    register_as(std::string("gradcomp_") + gradcomp_codec_name(i), gradcomp_codec_name(i));
  }
  return true;
}();

}  // namespace

// Functions for byteps_compressors/native/__init__.py.
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

// Bytes so far: pushed, pulled, and the size in memory of the pushed gradients.
__attribute__((visibility("default"))) void gradcomp_byteps_totals(std::uint64_t out[3]) {
  out[0] = totals.pushed;
  out[1] = totals.pulled;
  out[2] = totals.dense;
}

}  // extern "C"
