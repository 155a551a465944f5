// Interface of codecs whose payloads are kept elements: others, such as a GPU, may choose them and
// add them up.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "base/status.hpp"
#include "codec/codec.hpp"

namespace gradcomp {

// Kept units of a tensor in ascending order, and the values of all their elements.
struct KeptParts {
  Span<const std::uint32_t> indices;
  Span<const float> values;
};

class KeptCodec {
 public:
  KeptCodec() = default;
  KeptCodec(const KeptCodec&) = delete;
  KeptCodec& operator=(const KeptCodec&) = delete;
  virtual ~KeptCodec() = default;

  // The payload of kept units of n elements; `out` has Codec::max_encoded_size(n). Codecs that send
  // no indices are given none. Fails if this codec could not have sent these units.
  virtual Status pack(const KeptParts& kept, std::size_t n, Span<std::uint8_t> out,
                      std::size_t* written) const = 0;
  // The units of a payload of n elements, in the call's scratch memory; with indices, even if they
  // follow from the call's stream. `in` is untrusted.
  virtual Status unpack(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                        KeptParts* kept) const = 0;
};

}  // namespace gradcomp
