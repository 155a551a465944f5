// The slots of the Scratch that adaptive uses. Orthonormalization has separate slots, below these.
#pragma once

#include <cstddef>

namespace gradcomp {

// Encoder: symbols of all tensors, their rest without the low-rank part, turned matrices, the part
// of the rest that is sent, samples of tensors, and symbols of groups that have any.
inline constexpr std::size_t kSymbolSlot = 2;
inline constexpr std::size_t kRestSlot = 3;
inline constexpr std::size_t kTurnedSlot = 4;
inline constexpr std::size_t kPartSlot = 5;
inline constexpr std::size_t kSampleSlot = 7;
inline constexpr std::size_t kPackedSlot = 8;

// Decoder: levels of all elements, and the elements of a turned matrix.
inline constexpr std::size_t kLevelSlot = 2;
inline constexpr std::size_t kDecodedSlot = 3;
// Of the thread's own scratch: the stream that it reads.
inline constexpr std::size_t kStreamSlot = 6;

}  // namespace gradcomp
