// The codec contract: an immutable, thread-safe pair of functions over flat float32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"
#include "codec/caps.hpp"
#include "codec/open_payload.hpp"

namespace gradcomp {

class Feedback;
class BucketCodec;
class SparseInterface;
struct BucketCall;

// Input of a call besides the data. Randomness enters here and nowhere else.
struct Call {
  std::uint64_t stream = 0;            // derive_stream(seed, step, tensor_id)
  Scratch* scratch = nullptr;          // required
  const Feedback* feedback = nullptr;  // encode only, see Caps::fuses_feedback
  // encode and learn only: elements of a row, where the tensor is a matrix [shape[0], rest]; else 0
  std::size_t cols = 0;
  const BucketCall* bucket = nullptr;  // codec/bucket_codec.hpp; nullptr: no bucket, no state
};

// Largest tensor: as float32 it must fit the 32-bit payload length of a frame.
inline constexpr std::size_t kMaxNumel = (std::size_t{1} << 30) - 1;

// Spans are never null, even if they are empty.
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

  // The codec's interface for whole buckets (codec/bucket_codec.hpp); nullptr: it has none. Exactly
  // codecs with caps().whole_bucket have one.
  virtual const BucketCodec* bucket() const noexcept { return nullptr; }

  // The codec's interface for sparse payloads (codec/sparse_interface.hpp); nullptr: it has none.
  // Exactly codecs with caps().sparse have one.
  virtual const SparseInterface* sparse() const noexcept { return nullptr; }

  // Overwrites y. `in` is untrusted, down to every byte. After an error the caller must discard y.
  virtual Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const = 0;

  // Whether decode() takes the payload of n elements, without decoding it; for codecs whose
  // payloads others may decode, as devices do.
  virtual Status check(Span<const std::uint8_t> in, const Call& call, std::size_t n) const {
    (void)in, (void)call, (void)n;
    return {Code::kSpec, "only this codec's decoder can check its payloads"};
  }

  // acc += weight * decode(in), one rounding for the product and one for the sum, in index order.
  // After an error acc is unchanged.
  virtual Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                            Span<float> acc) const = 0;

  // Prepares the payload of n elements for decoding in pieces, which add the same numbers as
  // decode_add. Leaves `opened` as it is if the codec decodes whole tensors only.
  virtual Status open(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                      OpenPayload* opened) const {
    (void)in, (void)call, (void)n, (void)opened;
    return {};
  }
};

}  // namespace gradcomp
