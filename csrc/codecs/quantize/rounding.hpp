// Random words for codecs with stochastic rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {

// Elements per piece: they and their rounding words fit the L1 cache.
inline constexpr std::size_t kRoundingPiece = 1280;

// Calls fn(done, words, count) for pieces of the n elements at x; a piece begins at x[done].
// `words` are the rounding words of its elements. x[0] is element `first` of the tensor.
template <typename Fn>
void for_rounding(const float* x, std::size_t n, std::size_t first, const Call& call,
                  const Fn& fn) {
  alignas(64) std::uint32_t words[kRoundingPiece + kRoundingStep];
  for (std::size_t done = 0; done < n; done += kRoundingPiece) {
    const std::size_t count = n - done < kRoundingPiece ? n - done : kRoundingPiece;
    const std::size_t skip = (first + done) % kRoundingStep;
    kernels().rounding_words(call.stream, first + done - skip, words, skip + count,
                             x + done + count);
    fn(done, words + skip, count);
  }
}

}  // namespace gradcomp
