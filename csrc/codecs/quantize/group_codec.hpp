// Base class for quantizers with one or two scales per group of elements, with or without a
// rotation.
//
// Payload: the float32 scales of each group, then the coded levels. After a rotation, groups are
// defined by coding/rotation.hpp; otherwise they are runs of kGroup elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"
#include "codec/stage.hpp"
#include "coding/levels.hpp"
#include "coding/rotation.hpp"

namespace gradcomp {

class GroupCodec : public Codec {
 public:
  static constexpr std::size_t kGroup = 512;
  static constexpr std::size_t kMaxScales = 2;

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
  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const final;

 protected:
  // Tensors of fewer than `min_numel` elements are sent as float32.
  GroupCodec(unsigned bits, bool rotated, std::size_t min_numel, LevelCoder coder,
             std::size_t scales = 1)
      : bits_(bits), rotated_(rotated), min_numel_(min_numel), coder_(coder), scales_(scales) {}

  // Up to this scale, no sum of the inverse rotation overflows.
  static constexpr float kMaxRotatedScale = 0x1p100f;

  unsigned bits() const noexcept { return bits_; }
  bool rotated() const noexcept { return rotated_; }
  const LevelCoder& coder() const noexcept { return coder_; }

 private:
  // Writes n symbols below 2^bits and the group's scales; `first` is the index of the group's first
  // element. The scales are NaN if an element is not finite, or if a scale of a rotated group would
  // exceed kMaxRotatedScale.
  virtual void quantize(const float* v, std::size_t n, std::size_t first, const Call& call,
                        std::uint8_t* symbols, float* scales) const = 0;
  // Writes the 2^bits values of the symbols of a group.
  virtual void values(const float* scales, float* table) const = 0;

  // The code of n symbols, which follows the scales.
  virtual std::size_t max_code(std::size_t n) const noexcept { return coder_.max_bytes(n, bits_); }
  virtual Status encode_symbols(Span<const std::uint8_t> symbols, const Call& call,
                                std::uint8_t* out, std::size_t* written) const;
  virtual Status decode_symbols(Span<const std::uint8_t> in, const Call& call,
                                Span<std::uint8_t> symbols) const;
  // Whether decode_symbols() takes n symbols; for codes of fixed size.
  virtual Status check_code(Span<const std::uint8_t> in, std::size_t n) const;

  std::size_t groups(std::size_t n) const noexcept;
  std::size_t scale_bytes(std::size_t groups) const noexcept { return 4 * scales_ * groups; }
  // Decodes `count` elements of a group, without the inverse rotation.
  void decode_group(const std::uint8_t* scales, const std::uint8_t* symbols, std::size_t count,
                    float* v) const;
  // Whether the inverse rotation of values with these scales is finite.
  bool usable(const std::uint8_t* scales) const;
  // Decodes a tile of a rotation, of one or two groups; `scales` has the scales of all groups.
  void decode_tile(const Rotation& rotation, std::size_t tile, const std::uint8_t* scales,
                   const std::uint8_t* symbols, float* v) const;
  // Finds the coded levels, which follow the scales.
  Status find_levels(Span<const std::uint8_t> in, std::size_t n,
                     Span<const std::uint8_t>* levels) const;
  Status unpack(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                Span<std::uint8_t>* symbols) const;
  // Calls sink(begin, values, count) for runs of decoded elements, on all threads. place(begin,
  // buffer) returns their destination.
  template <typename Place, typename Sink>
  void expand(const std::uint8_t* scales, Span<const std::uint8_t> symbols, const Call& call,
              const Place& place, const Sink& sink) const;

  unsigned bits_;
  bool rotated_;
  std::size_t min_numel_;
  LevelCoder coder_;
  std::size_t scales_;  // of a group
};

}  // namespace gradcomp
