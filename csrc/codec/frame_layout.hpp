// Sizes of a frame's parts in bytes, docs/wire-format.md#frame. Codecs with a target rate count
// them.
#pragma once

#include <cstddef>

namespace gradcomp {

inline constexpr std::size_t kFrameHeader = 24;
inline constexpr std::size_t kFrameStream = 8;  // of seeded codecs only
inline constexpr std::size_t kFrameCrc = 4;
inline constexpr std::size_t kFrameBytes = kFrameHeader + kFrameCrc;

}  // namespace gradcomp
