#include "codecs/adaptive/group_form.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "coding/rans.hpp"

namespace gradcomp {
namespace {

// GroupForm::points_of() by the distance of the class from `start` - 4, clamped to [-4, 4].
constexpr std::uint32_t kPointsOf[9] = {40, 200, 900, 3300, 8192, 13084, 15484, 16184, 16344};
constexpr int kFarthest = 4;

// GroupForm::centre() by the level of a class's table: the mean of normal elements, counted
// positive on the side that their half of the lattice has its point of index 0.
constexpr std::uint8_t kCentres[32] = {34, 34, 34, 34, 34, 34, 34, 34, 34, 34, 33,
                                       32, 31, 30, 28, 27, 26, 25, 24, 23, 22, 22,
                                       21, 21, 20, 20, 20, 20, 20, 19, 19, 19};
constexpr float kPart = 0x1p-6f;

}  // namespace

std::size_t GroupForm::write(std::uint8_t* out) const {
  out[0] = start;
  if (start == kNoPoints) return 1;
  out[1] = static_cast<std::uint8_t>((first + 8) | (other + 8) << 4);
  return 2 + indices.write(out + 2);
}

std::size_t GroupForm::read(Span<const std::uint8_t> in) {
  if (in.empty() || in[0] > kNoPoints) return 0;
  start = in[0];
  if (start == kNoPoints) return 1;
  if (in.size() < 2) return 0;
  first = static_cast<std::int8_t>((in[1] & 15) - 8);
  other = static_cast<std::int8_t>((in[1] >> 4) - 8);
  const std::size_t bytes = indices.read({in.data() + 2, in.size() - 2});
  return bytes == 0 ? 0 : 2 + bytes;
}

std::uint32_t GroupForm::points_of(unsigned group_class) const {
  const int distance = static_cast<int>(group_class) + kFarthest - start;
  return kPointsOf[std::min(std::max(distance, -kFarthest), kFarthest) + kFarthest];
}

int GroupForm::centre(unsigned level) { return kCentres[level]; }

void GroupForm::fill_values(float step, float* values) const {
  const auto put = [&](std::int8_t code, float size) {
    values[static_cast<std::uint8_t>(code)] = size;
    values[static_cast<std::uint8_t>(code + 1)] = -size;
  };
  const float distance = kSpacing * step;
  for (unsigned c = 0; c < kClasses; ++c) {
    const auto parts = static_cast<float>(centre(indices.level(c)) + first);
    put(first_point_code(c, false), parts * kPart * distance);
  }
  for (int index = 1; index <= static_cast<int>(kTopMagnitude); ++index) {
    put(other_point_code(index, false), value(step, index));
  }
}

float GroupForm::value(float step, std::int32_t index) const {
  const auto parts = static_cast<float>(64 * std::abs(index) + 32 + other);
  const float size = std::min(parts * kPart * (kSpacing * step), std::numeric_limits<float>::max());
  return index < 0 ? -size : size;
}

}  // namespace gradcomp
