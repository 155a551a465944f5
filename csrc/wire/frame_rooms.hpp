// Memory for frames that several threads write at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

// Each frame's room begins where the rooms before it end; afterwards frames are moved together.
class FrameRooms {
 public:
  // Fails if `out` has less than the sum of `largest`, the upper bounds of the frames' bytes.
  Status open(Span<std::uint8_t> out, Span<const std::size_t> largest);
  Span<std::uint8_t> operator[](std::size_t frame) const noexcept { return rooms_[frame]; }
  // Closes the gaps between frames of these sizes. Fails with the first status that is not ok.
  Status close(Span<const Status> statuses, Span<const std::size_t> sizes) const;

 private:
  std::vector<Span<std::uint8_t>> rooms_;
};

}  // namespace gradcomp
