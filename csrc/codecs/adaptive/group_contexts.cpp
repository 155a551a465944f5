#include "codecs/adaptive/group_contexts.hpp"

#include <cmath>
#include <cstring>

#include "base/bytes.hpp"
#include "kernels/coding.hpp"

namespace gradcomp {
namespace {

#define GRADCOMP_LEVEL
#include "coding/contexts_loops.hpp"

// The magnitude that a point adds to the means, by its index, with kMeanBits fractional bits.
// Levels and points of the same elements have about the same means.
constexpr int mean_of(int index) { return index == 0 ? 200 : 800 + 3200 * index; }

}  // namespace

unsigned group_class(const Contexts& contexts, std::size_t at, std::size_t count) {
  std::int32_t sum = 0;
  for (std::size_t k = 0; k < count; ++k) sum += contexts.columns[at + k];
  std::int16_t mean[kGroup] = {};
  mean[0] = static_cast<std::int16_t>(sum / static_cast<std::int32_t>(count));
  std::uint8_t classes[kGroup];
  find_classes({mean, contexts.row, contexts.shift}, 0, classes);
  return classes[0];
}

void find_element_classes(const Contexts& contexts, std::size_t at, std::uint8_t* classes) {
  find_classes(contexts, at, classes);
}

void add_points(Contexts& contexts, std::size_t at, std::size_t count,
                const std::uint8_t* indices) {
  std::int16_t* const means = contexts.columns + at;
  std::int32_t sum = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const int magnitude = mean_of(indices[k]);
    sum += magnitude;
    means[k] = static_cast<std::int16_t>(means[k] + ((magnitude - means[k]) >> contexts.shift));
  }
  contexts.row += (sum / static_cast<std::int32_t>(count) - contexts.row) >> kRowShift;
}

}  // namespace gradcomp
