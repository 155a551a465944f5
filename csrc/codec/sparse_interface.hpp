// Interface of codecs whose payloads carry some of the elements. Codec::sparse() returns it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "base/status.hpp"
#include "codec/codec.hpp"

namespace gradcomp {

// An interface next to Codec, so that codecs may derive from any other base class, too.
class SparseInterface {
 public:
  // Codec::decode_add, and counts[i] += 1 at the elements that the payload carries, whatever their
  // values. After an error acc and the counts are unchanged.
  virtual Status decode_add_count(Span<const std::uint8_t> in, const Call& call, float weight,
                                  Span<float> acc, Span<std::uint16_t> counts) const = 0;

  // Sum of the squares of n decoded elements. Reads values alone: it may accept a payload that
  // Codec::decode refuses.
  virtual Status sum_squares(Span<const std::uint8_t> in, const Call& call, std::size_t n,
                             double* sum) const = 0;

  // y = 0 at the elements that the payload carries, whatever their values; for codecs whose
  // payloads have indices (Symbols::kIndices).
  virtual Status zero_sent(Span<const std::uint8_t> in, const Call& call, Span<float> y) const {
    (void)in, (void)call, (void)y;
    return {Code::kSpec, "this codec's payloads do not say which elements they carry"};
  }

 protected:
  ~SparseInterface() = default;
};

}  // namespace gradcomp
