// Decoding in pieces: several payloads are added while a piece of their sum is in the cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

namespace gradcomp {

// A checked payload. It refers to the bytes and to the scratch of the call that opened it.
struct OpenPayload {
  // Pieces begin at multiples of it, at most kChunk; 0: the codec decodes whole tensors only.
  std::size_t unit = 0;
  // acc[i] += weight * element begin + i, for i < count
  std::function<void(std::size_t begin, std::size_t count, float weight, float* acc)> add;

  // Elements of a piece: they fit the first cache, unless a unit does not.
  std::size_t piece() const { return std::max(kPiece / unit * unit, unit); }

  static constexpr std::size_t kPiece = 8192;
};

}  // namespace gradcomp
