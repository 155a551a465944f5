#include "kernels/dynamic8.hpp"

namespace gradcomp {
namespace {

Dynamic8 make_map() {
  Dynamic8 map{};
  // Decade i from 10^(i - 7) to 10^(i - 6) is cut into 2^i equal parts; their middles are values.
  // Numerator and denominator are exact float32, so the quotient is rounded once.
  std::size_t level = 1;
  float tens = 1e7f;  // 10^(7 - i)
  for (int i = 0; i < 7; ++i, tens /= 10.0f) {
    const int parts = 1 << i;
    for (int j = 0; j < parts; ++j, ++level) {
      const float value =
          static_cast<float>(2 * parts + 9 * (2 * j + 1)) / (tens * static_cast<float>(2 * parts));
      map.values[127 + level] = value;
      map.values[127 - level] = -value;
    }
  }
  map.values[127] = 0.0f;
  map.values[255] = 1.0f;

  for (std::size_t m = 0; m < 128; ++m) {
    const double middle =
        (static_cast<double>(map.values[127 + m]) + static_cast<double>(map.values[128 + m])) / 2;
    std::uint32_t bits = float_bits(static_cast<float>(middle));
    if (static_cast<double>(bits_float(bits)) > middle) --bits;
    map.borders[m] = 2 * bits + (static_cast<double>(bits_float(bits)) == middle ? 0 : 1);
  }
  map.borders[128] = ~std::uint32_t{0};
  for (std::uint32_t depth = 0; depth < 7; ++depth) {
    for (std::uint32_t path = 0; path < 1u << depth; ++path) {
      std::uint32_t level = 0;  // the lowest one beyond the border
      for (std::uint32_t d = 0; d < depth; ++d) level |= (path >> d & 1) << (6 - d);
      level |= 1u << (6 - depth);
      map.paths[(1u << depth) - 1 + path] = map.borders[level - 1];
    }
  }

  std::uint8_t reached = 0;
  for (std::uint32_t cell = 0; cell < Dynamic8::kCells; ++cell) {
    const std::uint32_t key = (Dynamic8::kFirstCell + cell) << Dynamic8::kCellShift;
    while (reached < 128 && key > map.borders[reached]) ++reached;
    map.first_levels[cell] = reached;
  }
  return map;
}

}  // namespace

const Dynamic8& dynamic8() noexcept {
  static const Dynamic8 map = make_map();
  return map;
}

}  // namespace gradcomp
