#include "wire/frame_rooms.hpp"

#include <cstring>
#include <numeric>
#include <string>

namespace gradcomp {

Status FrameRooms::open(Span<std::uint8_t> out, Span<const std::size_t> largest) {
  const std::size_t needed = std::accumulate(largest.begin(), largest.end(), std::size_t{0});
  if (out.size() < needed) {
    return capacity_error("the output buffer has " + std::to_string(out.size()) +
                          " bytes; these frames may need " + std::to_string(needed));
  }
  rooms_.clear();
  std::uint8_t* begin = out.data();
  for (const std::size_t size : largest) {
    rooms_.push_back({begin, size});
    begin += size;
  }
  return {};
}

Status FrameRooms::close(Span<const Status> statuses, Span<const std::size_t> sizes) const {
  std::uint8_t* to = rooms_.empty() ? nullptr : rooms_.front().data();
  for (std::size_t i = 0; i < rooms_.size(); ++i) {
    GRADCOMP_TRY(statuses[i]);
    if (to != rooms_[i].data()) std::memmove(to, rooms_[i].data(), sizes[i]);
    to += sizes[i];
  }
  return {};
}

}  // namespace gradcomp
