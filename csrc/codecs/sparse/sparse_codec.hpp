// Base class for sparsifiers that send indices: payload and decoding. An index stands for a unit:
// one element, or a chunk of consecutive elements; the tensor's last chunk may be shorter.
//
// Payload: u32 count of units, u8 index coding, u8 value type, u16 shortfall of elements in the
// last kept unit, the coded indices, the values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"
#include "codec/kept_codec.hpp"
#include "codec/sparse_interface.hpp"
#include "codec/stage.hpp"
#include "codecs/sparse/selection.hpp"
#include "coding/indices.hpp"
#include "coding/values.hpp"

namespace gradcomp {

class SparseCodec : public Codec, public KeptCodec, public SparseInterface {
 public:
  // Reads the parameter `values` and the coder stage. A unit has 1 to kMaxUnit elements.
  explicit SparseCodec(const Recipe& recipe, std::size_t unit = 1);
  // Reads the coder stage; units are elements.
  SparseCodec(const Recipe& recipe, ValueType values);

  Caps caps() const noexcept override;
  std::size_t max_encoded_size(std::size_t n) const noexcept final;
  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const final;
  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const final;
  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const final;
  Status open(Span<const std::uint8_t> in, const Call& call, std::size_t n,
              OpenPayload* opened) const final;

  const SparseInterface* sparse() const noexcept final { return this; }
  Status decode_add_count(Span<const std::uint8_t> in, const Call& call, float weight,
                          Span<float> acc, Span<std::uint16_t> counts) const final;
  Status sum_squares(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                     double* sum) const final;
  Status zero_sent(Span<const std::uint8_t> in, const Call& call, Span<float> y) const final;

  Status pack(const KeptParts& kept, std::size_t n, Span<std::uint8_t> out,
              std::size_t* written) const final;
  Status unpack(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                KeptParts* kept) const final;

 private:
  // Least and greatest number of units kept of n.
  virtual std::size_t min_kept(std::size_t n) const noexcept = 0;
  virtual std::size_t max_kept(std::size_t n) const noexcept = 0;
  // Selects the units to keep, and the values of all their elements. May use scratch slots 0 to
  // kSelectionSlots - 1, and leave the result there.
  virtual Status select(Span<const float> x, const Call& call, Selection* kept) const = 0;

  std::size_t units(std::size_t n) const { return (n + unit_ - 1) / unit_; }
  // Number of elements that the last unit of n elements is short of a full unit.
  std::size_t last_short(std::size_t n) const { return units(n) * unit_ - n; }
  std::size_t write(const KeptParts& kept, std::size_t n, std::uint8_t* out) const;

  IndexCoder coder_;
  ValueType value_type_;
  std::size_t unit_;
};

inline constexpr std::size_t kMaxUnit = 65536;  // the shortfall must fit its u16 field

inline ParamInfo values_param() {
  return choice_param("values", "fp32", "fp32|fp16|bf16|int8|sign|means|2bit",
                      "wire type of kept values; int8 has a shared step, sign a shared magnitude "
                      "(their mean), means "
                      "one mean for each sign, 2bit the means of four bins");
}

}  // namespace gradcomp
