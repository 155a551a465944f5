// Working memory for each thread, carved from one scratch buffer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/chunks.hpp"
#include "codec/codec.hpp"

namespace gradcomp {

// Hands out parts of a thread's memory. With nullptr it only counts how much they take.
class Carver {
 public:
  explicit Carver(std::uint8_t* memory) : memory_(memory) {}

  template <typename T>
  T* take(std::size_t count) {
    std::uint8_t* const here = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(here);
  }
  std::size_t used() const { return used_; }

 private:
  std::uint8_t* memory_;
  std::size_t used_ = 0;
};

// Calls fn(index, space) for index < count, on all threads. Each thread has its own
// Space(carver, args...), in scratch slot 0.
template <typename Space, typename Fn, typename... Args>
Status for_each_with_space(std::size_t count, const Call& call, const Fn& fn, const Args&... args) {
  const std::size_t parts = part_count(count);
  Carver sizes(nullptr);
  const Space unused(sizes, args...);
  const Span<std::uint8_t> memory = call.scratch->get<std::uint8_t>(0, parts * sizes.used());
  if (memory.empty()) return capacity_error("out of memory while coding blocks");
  for_parts(count, parts, [&](std::size_t part, std::size_t begin, std::size_t end) {
    Carver carver(memory.data() + part * sizes.used());
    Space space(carver, args...);
    for (std::size_t index = begin; index < end; ++index) fn(index, space);
  });
  return {};
}

}  // namespace gradcomp
