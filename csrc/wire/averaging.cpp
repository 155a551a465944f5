#include "wire/averaging.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/chunks.hpp"

namespace gradcomp {

void median_factors(Span<const double> norms, Span<double> factors) {
  std::vector<double> sorted(norms.begin(), norms.end());
  std::sort(sorted.begin(), sorted.end(), [](double a, double b) {
    return std::isnan(a) || std::isnan(b) ? !std::isnan(a) && std::isnan(b) : a < b;
  });
  for (std::size_t i = 0; i < norms.size(); ++i) {
    const double median = sorted[(sorted.size() - 1) / 2];
    factors[i] = norms[i] > median ? median / norms[i] : 1.0;
  }
}

void divide_by_counts(Span<const std::uint16_t> counts, Span<float> acc) {
  // Most counts of sparse frames are 0 or 1: four of them are looked at together.
  constexpr std::size_t kTogether = 4;
  constexpr std::uint64_t kAboveOne = 0xfffefffefffefffe;
  for_ranges(acc.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; i += kTogether) {
      const std::size_t last = std::min(i + kTogether, end);
      std::uint64_t four = 0;
      std::memcpy(&four, counts.data() + i, sizeof(std::uint16_t) * (last - i));
      if ((four & kAboveOne) == 0) continue;
      for (std::size_t j = i; j < last; ++j) {
        if (counts[j] > 1) acc[j] /= static_cast<float>(counts[j]);
      }
    }
  });
}

}  // namespace gradcomp
