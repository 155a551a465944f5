// Lossless coding of the gaps between kept elements of blocks, close to the entropy of a random
// choice. docs/wire-format.md#gap-coding is the norm.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "coding/rans.hpp"

namespace gradcomp {

inline constexpr std::size_t kGapBlock = 4096;  // gaps are below it

class GapCoder {
 public:
  // For gaps of blocks of kGapBlock elements of which `kept`, 1 to kGapBlock, are kept. Others cost
  // more bits, but are valid.
  explicit GapCoder(std::size_t kept);

  // Upper bound of the size in bytes of `count` gaps.
  static std::size_t max_bytes(std::size_t count) noexcept;
  // `symbols` is working memory of as many bytes as there are gaps.
  std::size_t encode(Span<const std::uint32_t> gaps, Span<std::uint8_t> symbols,
                     std::uint8_t* out) const;
  // False unless `in` is exactly the code of so many gaps.
  bool decode(Span<const std::uint8_t> in, Span<std::uint8_t> symbols,
              Span<std::uint32_t> gaps) const;

 private:
  Frequencies frequencies_;
};

}  // namespace gradcomp
