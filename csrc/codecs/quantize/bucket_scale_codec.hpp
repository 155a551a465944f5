// Base class for codecs with one scale per bucket of elements. Payload: bucket after bucket, each
// an f32 scale and its codes; the last bucket may be shorter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/codec.hpp"
#include "codec/payload.hpp"
#include "codec/piece_codec.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {

inline constexpr std::size_t kScaleBytes = 4;

class BucketScaleCodec : public PieceCodec {
 public:
  explicit BucketScaleCodec(std::size_t bucket) : bucket_(bucket) {}

  Caps caps() const noexcept override {
    Caps caps;
    caps.fuses_feedback = true;
    return caps;
  }

  std::size_t max_encoded_size(std::size_t n) const noexcept final;
  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const final;
  Status check(Span<const std::uint8_t> in, const Call& call, std::size_t n) const final;
  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const final;
  Status open(Span<const std::uint8_t> in, const Call& call, std::size_t n,
              OpenPayload* opened) const final;

 private:
  virtual std::size_t code_bytes(std::size_t n) const noexcept = 0;
  // Quantizes n finite numbers and returns the scale. Their largest magnitude is `largest` > 0; the
  // first number is element `first` of the tensor.
  virtual float quantize(const float* x, float largest, const Call& call, std::size_t first,
                         std::uint8_t* codes, std::size_t n) const = 0;
  // Writes codes of n numbers that decode to 0.
  virtual void zeros(std::uint8_t* codes, std::size_t n) const = 0;
  // True if n codes are in range, and the bits beyond them are 0.
  virtual bool valid(const std::uint8_t* codes, std::size_t n) const = 0;
  virtual void expand(const std::uint8_t* codes, float scale, float* y, std::size_t n) const = 0;
  virtual void expand_add(const std::uint8_t* codes, float scale, float weight, float* acc,
                          std::size_t n) const = 0;

  std::size_t stride() const noexcept { return kScaleBytes + code_bytes(bucket_); }

  std::size_t bucket_;
};

}  // namespace gradcomp
