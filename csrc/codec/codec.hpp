// The codec contract: an immutable, thread-safe pair of functions over flat float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"
#include "codec/caps.hpp"

namespace gradcomp {

class Feedback;

inline constexpr std::uint64_t kNoShare = ~std::uint64_t{0};

// What share() has done for a bucket's tensors that encode need not do again.
class BucketWork {
 public:
  BucketWork() = default;
  BucketWork(const BucketWork&) = delete;
  BucketWork& operator=(const BucketWork&) = delete;
  virtual ~BucketWork() = default;
};

// Input of a call besides the data. Randomness enters here and nowhere else.
struct Call {
  std::uint64_t stream = 0;            // derive_stream(seed, step, tensor_id)
  Scratch* scratch = nullptr;          // required
  const Feedback* feedback = nullptr;  // encode only, see Codec::fuses_feedback
  // encode and learn only: elements of a row, where the tensor is a matrix [shape[0], rest]; else 0
  std::size_t cols = 0;
  // encode only: this tensor's part of what share() found, or kNoShare for a tensor by itself
  std::uint64_t share = kNoShare;
  // encode only: what share() left of the bucket, or nullptr
  BucketWork* work = nullptr;
  // What learn() has made of this tensor's averages, the same where it is encoded and decoded; or
  // empty, which a payload that was made without decodes with, too.
  Span<const float> basis = {};
};

// A tensor of a bucket: its elements, and Call::cols.
struct BucketTensor {
  Span<const float> x;
  std::size_t cols = 0;
  // What share() left here in the last step, Codec::carried() numbers: what it begins from now,
  // and replaces. Zeros: nothing yet. Empty: nothing is kept.
  Span<float> carried = {};
  Span<const float> basis = {};  // Call::basis
};

// Largest tensor: as float32 it must fit the 32-bit payload length of a frame.
inline constexpr std::size_t kMaxNumel = (std::size_t{1} << 30) - 1;

// Pointers of spans are never null, even of empty spans.
class Codec {
 public:
  Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec() = default;

  virtual Caps caps() const noexcept = 0;

  // Upper bound, in bytes, of the payload of n <= kMaxNumel elements.
  virtual std::size_t max_encoded_size(std::size_t n) const noexcept = 0;

  // Writes the payload of x to out; out.size() >= max_encoded_size(x.size()) makes success certain.
  virtual Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                        std::size_t* written) const = 0;

  // Looks at all tensors of a bucket at once, for codecs with caps().shares: shares[i] is what
  // encode needs to know of it for tensor i, and `work` what it may use, if that is set.
  virtual Status share(Span<const BucketTensor> tensors, const Call& call,
                       Span<std::uint64_t> shares, std::unique_ptr<BucketWork>* work) const {
    (void)tensors, (void)call, (void)work;
    for (std::uint64_t& one : shares) one = kNoShare;
    return {};
  }

  // How many numbers share() keeps of a tensor from step to step, to find sooner what it looks for.
  // They are the encoder's alone: decoding never needs them.
  virtual std::size_t carried() const noexcept { return 0; }

  // How many numbers learn() keeps of a tensor of n elements, for codecs with caps().learns; `cols`
  // as in Call. 0: none of this one.
  virtual std::size_t basis_size(std::size_t n, std::size_t cols) const noexcept {
    (void)n, (void)cols;
    return 0;
  }

  // Brings Call::basis up to date, basis_size() numbers that begin as zeros, with what a step's
  // payloads have become: the average, which all ranks have alike. So the numbers are, too: a
  // function of the averages alone.
  virtual Status learn(Span<const float> average, const Call& call, Span<float> basis) const {
    (void)average, (void)call, (void)basis;
    return {Code::kSpec, "this codec keeps nothing of averages"};
  }

  // Whether encode honours call.feedback (codec/feedback.hpp): it then corrects every element
  // before the first read, and subtracts the decode of the payload. It fails before it has touched
  // any element, or not at all.
  virtual bool fuses_feedback() const noexcept { return false; }

  // Overwrites y. No byte of `in` is trusted. After an error the caller must discard y.
  virtual Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const = 0;

  // acc += weight * decode(in), one rounding for the product and one for the sum, in index order.
  // An error leaves acc untouched.
  virtual Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                            Span<float> acc) const = 0;

  // y = 0 at the elements that the payload carries, whatever their values; for codecs whose
  // payloads hold indices (Symbols::kIndices).
  virtual Status zero_sent(Span<const std::uint8_t> in, const Call& call, Span<float> y) const {
    (void)in, (void)call, (void)y;
    return {Code::kSpec, "this codec's payloads do not say which elements they carry"};
  }
};

}  // namespace gradcomp
