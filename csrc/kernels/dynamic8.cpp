#include "kernels/dynamic8.hpp"

namespace gradcomp {
namespace {

// Adds the line through (x0, y0) and (x1, y1).
void add_line(Dynamic8* map, int at, double x0, double y0, double x1, double y1) {
  const double slope = (y1 - y0) / (x1 - x0);
  map->slopes[at] = 65536 * slope;
  map->intercepts[at] = 65536 * (y0 - slope * x0);
}

void add_lines(Dynamic8* map) {
  // Border between level - 1 and level.
  const auto border = [&](int level) {
    return (static_cast<double>(map->values[126 + level]) +
            static_cast<double>(map->values[127 + level])) /
           2;
  };
  // Decade 0 has one level; its line crosses the line of decade 1 within it.
  add_line(map, 0, border(1), 1, 1e-6, 2);
  double start = 1e-6;
  for (int i = 1; i < 7; ++i, start *= 10) {
    const int first = 1 << i;
    add_line(map, 2 * i - 1, border(first), first, start + 9 * start / first, first + 1);
    add_line(map, 2 * i, start, first, 10 * start, 2 * first);
  }
  add_line(map, Dynamic8Lines::kTop, border(128), 128, 1, 128.5);
}

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

  std::uint8_t reached = 0;
  for (std::uint32_t cell = 0; cell < Dynamic8::kCells; ++cell) {
    const std::uint32_t key = (Dynamic8::kFirstCell + cell) << Dynamic8::kCellShift;
    while (reached < 128 && key > map.borders[reached]) ++reached;
    map.first_levels[cell] = reached;
  }
  add_lines(&map);
  return map;
}

}  // namespace

Dynamic8Lines Dynamic8::lines(float largest) const noexcept {
  Dynamic8Lines lines;
  for (int k = 0; k < Dynamic8Lines::kLines; ++k) {
    lines.slopes[k] = static_cast<float>(slopes[k] / static_cast<double>(largest));
    lines.intercepts[k] = static_cast<float>(intercepts[k]);
  }
  return lines;
}

const Dynamic8& dynamic8() noexcept {
  static const Dynamic8 map = make_map();
  return map;
}

}  // namespace gradcomp
