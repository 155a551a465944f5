#include "codecs/adaptive/carried_state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "codecs/adaptive/low_rank.hpp"

namespace gradcomp {

CarriedState CarriedState::from(Span<const float> numbers) {
  if (numbers.size() < kNumbers) return {};
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
}

void CarriedState::store(Span<float> numbers) const {
  const float all[kNumbers] = {step, factor_step, rank, due, gain};
  if (numbers.size() >= kNumbers) std::copy(all, all + kNumbers, numbers.data());
}

std::size_t CarriedState::pairs() const {
  return static_cast<std::size_t>(turned() ? -1 - rank : rank);
}

bool CarriedState::usable() const {
  const auto within = [](float x, float least, float most) { return x >= least && x <= most; };
  return within(step, 0x1p-20f, 0x1p20f) && within(factor_step, 0x1p-10f, 0x1p10f) &&
         within(rank, -1 - static_cast<float>(kMaxAdaptiveRank), kMaxAdaptiveRank) &&
         within(due, 0, kRankPeriod) && within(gain, 0.25f, 4);
}

double EnergyMean::next(double energy, std::size_t elements, Span<float> carried) {
  if (carried.size() != CarriedState::kNumbers + kNumbers) return energy;
  float* const numbers = carried.data() + CarriedState::kNumbers;
  EnergyMean mean{numbers[0], numbers[1]};
  const auto count = static_cast<double>(elements);
  const bool usable = mean.square >= 0 && mean.square <= std::numeric_limits<float>::max() &&
                      mean.weight > 0 && mean.weight <= 1;
  if (!usable) mean = {};
  const auto square = static_cast<float>(energy / count);
  if (std::isfinite(square)) {
    const float most = mean.weight > 0 ? kMostSquare * mean.square / mean.weight : square;
    mean.square += kWeight * (std::min(square, most) - mean.square);
    mean.weight += kWeight * (1 - mean.weight);
    numbers[0] = mean.square;
    numbers[1] = mean.weight;
  }
  const double found = count * static_cast<double>(mean.square / mean.weight);
  return mean.weight > 0 && found > 0 ? found : energy;
}

}  // namespace gradcomp
