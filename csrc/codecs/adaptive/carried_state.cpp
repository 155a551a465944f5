#include "codecs/adaptive/carried_state.hpp"

#include <algorithm>

#include "codecs/adaptive/low_rank.hpp"

namespace gradcomp {

CarriedState CarriedState::from(Span<const float> numbers) {
  if (numbers.size() != kNumbers) return {};
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
}

void CarriedState::store(Span<float> numbers) const {
  const float all[kNumbers] = {step, factor_step, rank, due, gain};
  if (numbers.size() == kNumbers) std::copy(all, all + kNumbers, numbers.data());
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

}  // namespace gradcomp
