// Packing of numbers of 2 or 4 bits at the ends of runs, shared by all levels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gradcomp {

inline void finish_pack(const std::uint8_t* numbers, unsigned width, std::uint8_t* packed,
                        std::size_t n, std::uint32_t* counts) {
  const std::size_t each = 8 / width;
  for (std::size_t i = 0; i < n; ++i) {
    if (numbers[i] != 0) ++counts[numbers[i]];
  }
  for (std::size_t i = 0; i < n; i += each) {
    unsigned byte = 0;
    for (std::size_t j = i; j < std::min(i + each, n); ++j) {
      byte |= unsigned{numbers[j]} << width * (j - i);
    }
    packed[i / each] = static_cast<std::uint8_t>(byte);
  }
}

inline void finish_unpack(const std::uint8_t* packed, unsigned width, std::uint8_t* numbers,
                          std::size_t n) {
  const std::size_t each = 8 / width;
  for (std::size_t i = 0; i < n; ++i) {
    const unsigned byte = packed[i / each];
    numbers[i] = static_cast<std::uint8_t>(byte >> width * (i % each) & ((1u << width) - 1));
  }
}

}  // namespace gradcomp
