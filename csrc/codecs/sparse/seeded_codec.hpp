// Base class for sparsifiers with a choice that depends only on the call's stream: no index is
// sent, and ranks with the same stream send the same elements.
//
// Payload: the k values in ascending order of index.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"
#include "codec/kept_codec.hpp"
#include "codec/sparse_interface.hpp"
#include "codec/stage.hpp"
#include "codecs/sparse/keep.hpp"
#include "coding/values.hpp"

namespace gradcomp {

class SeededCodec : public Codec, public KeptCodec, public SparseInterface {
 public:
  // Reads the parameters of seeded_params().
  explicit SeededCodec(const Params& params);

  Caps caps() const noexcept final;
  std::size_t max_encoded_size(std::size_t n) const noexcept final;
  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const final;
  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const final;
  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const final;

  const SparseInterface* sparse() const noexcept final { return this; }
  Status decode_add_count(Span<const std::uint8_t> in, const Call& call, float weight,
                          Span<float> acc, Span<std::uint16_t> counts) const final;
  Status sum_squares(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                     double* sum) const final;

  Status pack(const KeptParts& kept, std::size_t n, Span<std::uint8_t> out,
              std::size_t* written) const final;
  Status unpack(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                KeptParts* kept) const final;

 private:
  struct Kept {
    Span<std::uint32_t> indices;
    Span<float> values;
  };

  // Chooses indices.size() of n indices, ascending. May use scratch slots 0 and 1, and write one
  // index beyond the end.
  virtual Status choose(std::size_t n, const Call& call, Span<std::uint32_t> indices) const = 0;

  Status choose_kept(std::size_t n, const Call& call, Kept* kept) const;

  Keep keep_;
  ValueType value_type_;
  bool unbiased_;
};

std::vector<ParamInfo> seeded_params();
const char* refuse_seeded(const Params& params, const StageInfo* memory);

}  // namespace gradcomp
