// Decoding in pieces, so that several payloads are added while a piece of their sum is in the
// cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

#include "base/chunks.hpp"
#include "base/span.hpp"

namespace gradcomp {

// A checked payload. It refers to the payload's bytes and to the scratch of the call that opened
// it.
struct OpenPayload {
  // Pieces begin at multiples of it, at most kChunk; 0: the codec decodes whole tensors only.
  std::size_t unit = 0;
  // Adds weight * value to `count` elements from element `begin` on, which are at acc[0], acc[1],
  // ...
  std::function<void(std::size_t begin, std::size_t count, float weight, float* acc)> add;

  // Elements of a piece: they fit the first cache, unless a unit does not.
  std::size_t piece() const { return std::max(kPiece / unit * unit, unit); }

  static constexpr std::size_t kPiece = 8192;
};

// acc += weight * decoded payload, on all threads.
inline void add_opened(const OpenPayload& payload, float weight, Span<float> acc) {
  for_blocks(acc.size(), payload.piece(), [&](std::size_t, std::size_t begin, std::size_t count) {
    payload.add(begin, count, weight, acc.data() + begin);
  });
}

}  // namespace gradcomp
