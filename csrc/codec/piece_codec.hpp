// Base class for codecs that decode any range of elements.
#pragma once

#include "base/chunks.hpp"
#include "codec/codec.hpp"

namespace gradcomp {

class PieceCodec : public Codec {
 public:
  Status open(Span<const std::uint8_t> in, const Call& call, std::size_t n,
              OpenPayload* opened) const override = 0;

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const final {
    OpenPayload opened;
    GRADCOMP_TRY(open(in, call, acc.size(), &opened));
    for_blocks(acc.size(), opened.piece(), [&](std::size_t, std::size_t begin, std::size_t count) {
      opened.add(begin, count, weight, acc.data() + begin);
    });
    return {};
  }
};

}  // namespace gradcomp
