// Moves of the marked ones of 8 lanes to the first lanes, and back.
#pragma once

#include <cstdint>

namespace gradcomp {

// By the mask of the marked lanes: eight indices of one byte each. Indices without a source have
// the uppermost bit, for which a shuffle of bytes gives 0.
struct Moves {
  Moves() {
    for (unsigned mask = 0; mask < 256; ++mask) {
      std::uint64_t gather = kNone;
      std::uint64_t scatter = kNone;
      unsigned count = 0;
      for (unsigned lane = 0; lane < 8; ++lane) {
        if ((mask >> lane & 1) == 0) continue;
        gather ^= (std::uint64_t{lane} ^ 0x80) << 8 * count;
        scatter ^= (std::uint64_t{count} ^ 0x80) << 8 * lane;
        ++count;
      }
      compress[mask] = gather;
      expand[mask] = scatter;
    }
  }

  static constexpr std::uint64_t kNone = 0x8080808080808080u;
  std::uint64_t compress[256];
  std::uint64_t expand[256];
};

inline const Moves& moves() {
  static const Moves all;
  return all;
}

}  // namespace gradcomp
