// Working memory that outlives a call: a codec asks for buffers by slot, and later calls of the
// same size reuse them. Not thread-safe: one Scratch per thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdlib>

#include "base/span.hpp"

namespace gradcomp {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    for (Slot& slot : slots_) std::free(slot.data);
  }

  // An uninitialised buffer of `count` T, aligned to 64 bytes; empty when memory ran out. It stays
  // valid until the next get() of the same slot.
  template <typename T>
  Span<T> get(std::size_t slot_index, std::size_t count) noexcept {
    Slot& slot = slots_[slot_index];
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (bytes > slot.bytes) {
      std::free(slot.data);
      slot.data = std::aligned_alloc(64, bytes);
      slot.bytes = slot.data == nullptr ? 0 : bytes;
      if (slot.data == nullptr) return {};
    }
    return {static_cast<T*>(slot.data), count};
  }

  // A codec and its parts must not share slots: selection uses the first ones, coding the others.
  static constexpr std::size_t kSlots = 9;

 private:
  struct Slot {
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  std::array<Slot, kSlots> slots_{};
};

// Scratch of the calling thread.
inline Scratch& thread_scratch() noexcept {
  thread_local Scratch scratch;
  return scratch;
}

}  // namespace gradcomp
