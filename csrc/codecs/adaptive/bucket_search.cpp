#include "codecs/adaptive/bucket_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "codecs/adaptive/group_coder.hpp"
#include "codecs/adaptive/scratch_slots.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Tolerance of the rate and of an error, and calls of a search that quantizes all elements.
constexpr double kTolerance = 0.02;
constexpr double kErrorTolerance = 0.05;
constexpr int kMaxPasses = 12;
// Calls of a search on samples, and its tolerance in begin(), first and with ranks, and in
// resume().
constexpr int kSamplePasses = 8;
constexpr double kFirstTolerance = 0.01;
constexpr double kRankTolerance = 0.005;
constexpr double kPromiseTolerance = 0.004;

// begin() chooses ranks at most so often, and until the step changes by less than this, which
// rarely changes a rank.
constexpr int kRounds = 7;
constexpr float kSettled = 0.04f;
// resume() takes the low-rank parts out again at most so often, while their factors' step does not
// suit the rest.
constexpr int kRetakes = 3;
// Where the factors take more bytes than expected, their step grows by this factor, at most so
// often.
constexpr float kCoarser = 1.25f;
constexpr int kMaxCoarser = 6;

// Without low-rank parts outside of [1 / kLargest, kLargest]: squares of elements could leave the
// range of float32.
constexpr float kLargest = 0x1p60f;
constexpr float kLeastStep = 0x1p-100f;

// A step that takes less than this part of the bytes asked leaves room for send_part().
constexpr double kUnused = 0.9;
// A step that leaves more than 1 / kFar of the error wanted gives way to a finer one.
constexpr double kFar = 0.5;
// First guess of bytes, or of the error, by the step where the last training step's is near.
constexpr double kCarriedSlope = 1.5;
// First guess of the error by the step; it falls more slowly than with the square, as the dead zone
// holds most elements.
constexpr double kErrorSlope = 1.2;
constexpr double kMostValue = 1e30;

// step=energy: of a tensor's step, in steps of the bucket, and its inverse.
constexpr double kMostMultiple = 32;

// Bytes by the step: at high rates each halving of the step takes a bit more for each element; at
// low ones there is less left outside of the dead zone.
double first_slope(double target, double elements) {
  return std::min(std::max(elements / (8 * target), 1.0), 4.0);
}

Status out_of_memory() { return capacity_error("out of memory while encoding"); }

}  // namespace

template <typename Fn>
void BucketSearch::for_candidates(const Fn& fn) {
  for_tensors(
      candidates_.size(), [&](std::size_t i) { return candidates_[i].shape().size(); },
      [&](std::size_t i) { fn(candidates_[i]); });
}

template <typename Fn>
Status BucketSearch::try_candidates(const Fn& fn) {
  std::vector<Status> statuses(candidates_.size());
  for_candidates([&](Candidate& one) { statuses[index_of(one)] = fn(one); });
  for (const Status& status : statuses) GRADCOMP_TRY(status);
  return {};
}

template <typename Fn>
double BucketSearch::sum_of(const Fn& fn) {
  std::vector<double> terms(candidates_.size());
  for_candidates([&](Candidate& one) { terms[index_of(one)] = fn(one); });
  return std::accumulate(terms.begin(), terms.end(), 0.0);
}

double SearchGoal::value(double bytes, double squared_error, bool zero) const {
  if (error <= 0) return bytes;
  double value = squared_error > 0 ? std::min(error / squared_error, kMostValue) : kMostValue;
  if (zero) value = std::min(value, 1.0);
  // A search for an error stops further below its target than one for bytes may.
  if (least > 0) value = std::min(value, bytes / (least * (1 + kErrorTolerance - kTolerance)));
  return std::max(value, bytes / most);
}

void BucketSearch::add(TensorPlan* plan, const BucketTensor* tensor, float largest, double energy) {
  const MatrixShape& shape = plan->quantized.shape();
  candidates_.push_back({&options_, plan, tensor, largest, energy,
                         LearnedBasis::of(tensor->basis, shape.rows, shape.cols)});
}

Status BucketSearch::run(const SearchGoal& goal, Scratch& scratch) {
  goal_ = goal;
  slope_ = goal.error > 0 ? kErrorSlope : first_slope(goal.most, elements_);
  float largest = 0;
  for (const Candidate& one : candidates_) largest = std::max(largest, one.largest);
  ranked_ = largest <= kLargest && largest >= 1 / kLargest;
  if (!ranked_) {
    for (Candidate& one : candidates_) one.learned = {};
  }
  bool resumed = resumable();
  // Frames of first steps are promised to stay as they are.
  grouped_ = resumed && !options_.points;
  for (Candidate& one : candidates_) {
    one.turned = resumed ? one.carried.turned() : one.learned.rank != 0;
  }
  GRADCOMP_TRY(turn_all(scratch));
  GRADCOMP_TRY(give_room(scratch));
  set_multiples();
  GRADCOMP_TRY(resumed ? resume(scratch) : begin());
  StepSearch found{};
  GRADCOMP_TRY(settle(&resumed, &found, scratch));
  bool part = false;
  GRADCOMP_TRY(send_part(&found, &part, scratch));
  for (Candidate& one : candidates_) one.plan->step = found.step * one.multiple;
  if (part) {
    for (Candidate& one : candidates_) {
      one.plan->groups = 0;
      CarriedState{}.store(one.tensor->carried);
    }
  } else if (any_carried()) {
    GRADCOMP_TRY(store(resumed, found));
  }
  // After store(), as the next training step begins from levels.
  if (options_.points && !part) place_points(found);
  return {};
}

bool BucketSearch::resumable() const {
  const auto usable = [&](const Candidate& one) {
    if (!one.carried.usable() || (one.carried.turned() && one.learned.rank == 0)) return false;
    return options_.rank == SearchOptions::kAuto ||
           one.carried.pairs() == options_.max_rank(one.shape());
  };
  return ranked_ && std::all_of(candidates_.begin(), candidates_.end(), usable);
}

Status BucketSearch::turn_all(Scratch& scratch) {
  std::size_t all = 0;
  for (const Candidate& one : candidates_) all += one.turned ? one.shape().size() : 0;
  if (all == 0) return {};
  const Span<float> buffer = scratch.get<float>(kTurnedSlot, all);
  if (buffer.empty()) return out_of_memory();
  float* out = buffer.data();
  for (Candidate& one : candidates_) {
    if (!one.turned) continue;
    const float largest = one.turn_to(out, one.plan);
    one.turned = largest > 0;
    one.largest = std::max(one.largest, largest);
    out += one.shape().size();
  }
  return {};
}

Status BucketSearch::give_room(Scratch& scratch) {
  std::size_t all = 1;
  for (const Candidate& one : candidates_) all += one.room();
  const Span<float> buffer = scratch.get<float>(kSampleSlot, all);
  if (buffer.empty()) return out_of_memory();
  float* room = buffer.data();
  for (Candidate& one : candidates_) {
    one.sample_room = room;
    room += one.room();
  }
  return {};
}

Status BucketSearch::begin() {
  const double squares = sum_of([](const Candidate& one) {
    return kernels().sum_squares(one.plan->quantized.x(), one.shape().size());
  });
  GRADCOMP_TRY(try_candidates([&](Candidate& one) {
    one.choice = {};
    one.factor_bytes = 0;
    // Spreads the trials of ranks over the period, but tries again soon where a basis is still to
    // be learned.
    const bool learns = !one.tensor->basis.empty() && one.learned.rank == 0;
    one.carried.due = static_cast<float>(learns ? 1 : 1 + index_of(one) % one.period());
    // Frames of first steps are promised to stay as they are.
    return one.take_sample(ranked_ ? options_.max_rank(one.shape()) : 0, Start::kRandom, true);
  }));
  step_ = find_step(std::sqrt(squares / elements_), least_step_, goal_.target(), kFirstTolerance,
                    kSamplePasses, &slope_, [&](float step) { return sample_value(step); })
              .step;
  if (std::any_of(candidates_.begin(), candidates_.end(),
                  [](const Candidate& one) { return one.rows.rank != 0; })) {
    choose_ranks();
  }
  return {};
}

void BucketSearch::choose_ranks() {
  const auto first_step = static_cast<double>(step_);
  // The error; with a wanted error plus what its bytes are worth. Infinite where even that step
  // takes too many bytes, as factors alone may.
  const auto cost = [&](float step) {
    sample_value(step);
    if (overspent()) return std::numeric_limits<double>::infinity();
    const double bytes_worth =
        goal_.error > 0 ? 8 * kBitWorth * bytes_ * first_step * first_step : 0;
    // In squares of each tensor's step.
    const double error = sum_of([&](const Candidate& one) {
      const auto multiple = static_cast<double>(one.multiple);
      return one.sample_error(step * one.multiple) / (multiple * multiple);
    });
    return error + bytes_worth;
  };
  // The best ranks depend on the step, and the step on the ranks, so both are chosen in turn.
  double least_cost =
      options_.rank == SearchOptions::kAuto ? cost(step_) : std::numeric_limits<double>::infinity();
  std::vector<RankChoice> best(candidates_.size());
  for (std::size_t i = 0; i < best.size(); ++i) best[i] = candidates_[i].choice;
  float trial = step_;
  float finer = 0, coarser = 0;  // trials too fine and too coarse for the rest, the last ones
  bool first = true;
  for (int round = 0; round < kRounds; ++round) {
    for_candidates([&](Candidate& one) { one.choose_rank(first, trial * one.multiple); });
    first = false;
    const float solved =
        find_step(static_cast<double>(trial), least_step_, goal_.target(), kRankTolerance,
                  kSamplePasses, &slope_, [&](float step) { return sample_value(step); })
            .step;
    const double now = cost(solved);
    const bool affordable = std::isfinite(now);
    if (now < least_cost) {
      least_cost = now;
      step_ = solved;
      for (std::size_t i = 0; i < best.size(); ++i) best[i] = candidates_[i].choice;
    }
    if (affordable && std::fabs(solved / trial - 1) < kSettled) break;
    // A finer step makes more pairs, which leave less for the rest.
    (!affordable || solved > trial ? finer : coarser) = trial;
    if (finer > 0 && coarser > 0) {
      trial = std::sqrt(finer * coarser);
    } else {
      trial = affordable ? std::sqrt(trial * solved) : trial * kCoarser;
    }
  }
  for (std::size_t i = 0; i < best.size(); ++i) candidates_[i].choice = best[i];
}

Status BucketSearch::resume(Scratch& scratch) {
  GRADCOMP_TRY(try_candidates([&](Candidate& one) {
    const std::size_t most = options_.max_rank(one.shape());
    one.choice.rank = std::min(most, one.carried.pairs());
    const bool tried = one.carried.due <= 1;
    return one.take_sample(tried ? most_tried(one) : one.choice.rank, Start::kRowSums, tried);
  }));
  slope_ = kCarriedSlope;
  const CarriedState& carried = candidates_.front().carried;
  const double promise = goal_.target() / static_cast<double>(carried.gain);
  const auto carried_step = static_cast<double>(carried.step);
  auto step = static_cast<float>(std::max(carried_step * unit(), least_step_));
  for (int round = 0;; ++round) {
    for (Candidate& one : candidates_) {
      const float own = step * one.multiple;
      one.choice.factor_step = short_float(static_cast<double>(own * one.carried.factor_step));
    }
    GRADCOMP_TRY(take_out(scratch));
    step_ = find_step(static_cast<double>(step), least_step_, promise, kPromiseTolerance,
                      kSamplePasses, &slope_, [&](float at) { return sample_value(at); })
                .step;
    const float change = std::max(step_, step) / std::min(step_, step);
    if (round == kRetakes || change < kCoarser || !any_pairs()) return {};
    // Finer factors make a coarser rest, and the other way round: the next step is the mean of
    // both.
    step = static_cast<float>(std::sqrt(static_cast<double>(step * step_)));
  }
}

std::size_t BucketSearch::most_tried(const Candidate& one) const {
  const std::size_t most = options_.max_rank(one.shape());
  return one.choice.rank == 0 ? most : std::min(most, 2 * one.choice.rank);
}

Status BucketSearch::take_out(Scratch& scratch) {
  std::size_t all = 0;
  std::size_t ranked = 0;
  // Where the symbols and the rest of each tensor begin.
  std::vector<std::size_t> symbols_at;
  std::vector<std::size_t> rest_at;
  for (const Candidate& one : candidates_) {
    symbols_at.push_back(all);
    rest_at.push_back(ranked);
    all += one.shape().size();
    ranked += one.choice.rank == 0 ? 0 : one.shape().size();
  }
  const Span<std::uint8_t> symbol_buffer = scratch.get<std::uint8_t>(kSymbolSlot, all);
  const Span<std::uint8_t> packed_buffer =
      scratch.get<std::uint8_t>(kPackedSlot, grouped_ ? all : 1);
  const Span<float> rest_buffer = scratch.get<float>(kRestSlot, ranked + 1);
  if (symbol_buffer.empty() || packed_buffer.empty() || rest_buffer.empty()) {
    return out_of_memory();
  }
  for_candidates([&](Candidate& one) {
    const std::size_t at = symbols_at[index_of(one)];
    one.take_out(rest_buffer.data() + rest_at[index_of(one)], symbol_buffer.data() + at,
                 grouped_ ? packed_buffer.data() + at : nullptr);
  });
  return {};
}

Status BucketSearch::settle(bool* resumed, StepSearch* found, Scratch& scratch) {
  for (int coarser = 0; coarser <= kMaxCoarser;) {
    if (!*resumed) GRADCOMP_TRY(take_out(scratch));
    *found = full_search();
    if (!any_pairs() || !overspent()) break;
    if (*resumed) {
      *resumed = false;
      GRADCOMP_TRY(begin());
      continue;
    }
    ++coarser;
    for (Candidate& one : candidates_) {
      one.choice.factor_step = short_float(static_cast<double>(one.choice.factor_step * kCoarser));
    }
  }
  if (!any_pairs() || !all_zero()) return {};
  // Pairs that took all bytes and were rounded to 0.
  *resumed = false;
  for (Candidate& one : candidates_) one.choice.rank = 0;
  GRADCOMP_TRY(take_out(scratch));
  *found = full_search();
  return {};
}

StepSearch BucketSearch::full_search() {
  const double tolerance = goal_.error > 0 ? kErrorTolerance : kTolerance;
  const StepSearch found =
      find_step(static_cast<double>(step_), least_step_, goal_.target(), tolerance, kMaxPasses,
                &slope_, [&](float step) { return value(step); });
  // The last pass may have been another step's.
  bytes_ = goal_.error > 0 ? bytes(found.step) : found.value;
  return found;
}

Status BucketSearch::send_part(StepSearch* found, bool* part, Scratch& scratch) {
  *part = false;
  if (!(found->too_low > 0)) return {};
  if (goal_.error > 0) {
    if (found->value >= kFar) return {};
    found->value = value(found->too_low);
    found->step = found->too_low;
    if (!overspent()) return {};
  } else if (found->value >= kUnused * goal_.most) {
    return {};
  }
  *part = true;
  std::size_t all = 0;
  std::vector<const float*> rests;
  for (const Candidate& one : candidates_) {
    rests.push_back(one.plan->quantized.rest());
    all += one.shape().size();
  }
  const Span<float> buffer = scratch.get<float>(kPartSlot, all);
  if (buffer.empty()) return out_of_memory();
  const auto bytes_of_first = [&](std::size_t count) {
    float* to = buffer.data();
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      TensorPlan& plan = *candidates_[i].plan;
      const std::size_t size = plan.quantized.shape().size();
      const std::size_t kept = std::min(count, size);
      std::copy(rests[i], rests[i] + kept, to);
      std::fill(to + kept, to + size, 0.0f);
      plan.quantized.set_rest(to);
      plan.counted = {};
      count -= kept;
      to += size;
    }
    return bytes(found->step);
  };
  found->step = found->too_low;
  std::size_t fits = 0;
  for (std::size_t too_many = all; too_many - fits > 1;) {
    const std::size_t middle = fits + (too_many - fits) / 2;
    (bytes_of_first(middle) <= goal_.most ? fits : too_many) = middle;
  }
  found->value = bytes_of_first(fits);
  return {};
}

Status BucketSearch::store(bool resumed, const StepSearch& found) {
  const double gain = found.value / sample_value(found.step);
  const auto step = static_cast<float>(static_cast<double>(found.step) / unit());
  return try_candidates([&](Candidate& one) -> Status {
    CarriedState& carried = one.carried;
    const float own = found.step * one.multiple;
    if (resumed && --carried.due < 1) {
      const double cost = one.choose_rank(one.choice.rank == 0, own);
      GRADCOMP_TRY(one.compare_turned(cost, own));
      carried.factor_step = 1;
      carried.due = static_cast<float>(one.period());
    }
    if (!resumed) {
      carried.factor_step = one.choice.rank == 0 ? 1 : one.choice.factor_step / own;
    }
    carried.step = step;
    const auto rank = static_cast<float>(one.choice.rank);
    carried.rank = one.turned ? -1 - rank : rank;
    carried.gain = static_cast<float>(gain);
    carried.store(one.tensor->carried);
    return {};
  });
}

void BucketSearch::place_points(const StepSearch& levels) {
  std::uint8_t groups = 0;
  double error = 0;  // squared, at the last step that was tried
  const auto bytes = [&](float step) { return bytes_with_points(step, groups, &error); };
  bytes(levels.step);
  StepSearch found = levels;
  const auto cost = [&] {
    const auto squared = static_cast<double>(levels.step) * static_cast<double>(levels.step);
    return error + 8 * kBitWorth * squared * found.value;
  };
  const auto missed = [&] { return std::fabs(found.value / goal_.most - 1) > kTolerance; };
  const double without = cost();
  groups = kAllGroups;
  found = find_step(static_cast<double>(levels.step), least_step_, goal_.most, kTolerance,
                    kMaxPasses, &slope_, bytes);
  if (found.too_low > 0 && missed()) {
    // Many groups change from levels to points at the same step: then only some of them may.
    found.step = found.too_low;
    for (int fewest = 1, most = kAllGroups; fewest < most && missed();) {
      groups = static_cast<std::uint8_t>((fewest + most) / 2);
      found.value = bytes(found.step);
      const bool more = found.value < goal_.most;
      (more ? fewest : most) = groups + (more ? 1 : 0);
    }
  }
  if (missed() || cost() > without) {
    found.step = levels.step;
    groups = 0;
  }
  for (Candidate& one : candidates_) {
    one.plan->step = found.step * one.multiple;
    one.plan->groups = groups;
  }
}

bool BucketSearch::overspent() const { return bytes_ > (1 + kTolerance) * goal_.most; }

double BucketSearch::sample_value(float step) {
  bytes_ = sum_of([&](Candidate& one) { return one.sample_bytes(step * one.multiple); });
  return goal_.value(bytes_, goal_.error > 0 ? sample_error(step) : 0, zero_levels());
}

double BucketSearch::sample_error(float step) {
  return sum_of([&](const Candidate& one) { return one.sample_error(step * one.multiple); });
}

double BucketSearch::bytes(float step) {
  return sum_of([&](Candidate& one) { return one.bytes(step * one.multiple); });
}

double BucketSearch::value(float step) {
  bytes_ = bytes(step);
  const double error =
      goal_.error > 0 ? sum_of([&](const Candidate& one) { return one.error(step * one.multiple); })
                      : 0;
  return goal_.value(bytes_, error, zero_levels());
}

double BucketSearch::bytes_with_points(float step, std::uint8_t groups, double* error) {
  double sum = 0;
  *error = 0;
  for (Candidate& one : candidates_) {
    TensorPlan& plan = *one.plan;
    plan.quantize(step * one.multiple);
    const GroupCoder coder(plan.quantized, plan.counted, plan.symbols, groups);
    sum += coder.bytes();
    *error += coder.error() * static_cast<double>(step) * static_cast<double>(step);
  }
  return sum;
}

void BucketSearch::set_multiples() {
  double energy = 0;
  double elements = 0;
  for (const Candidate& one : candidates_) {
    energy += one.energy;
    elements += static_cast<double>(one.shape().size());
  }
  float largest = 0;  // in multiples
  for (Candidate& one : candidates_) {
    if (energy > 0) {
      const double ratio = one.energy / static_cast<double>(one.shape().size()) * elements / energy;
      const double multiple = std::sqrt(std::sqrt(ratio));
      one.multiple =
          static_cast<float>(std::min(std::max(multiple, 1 / kMostMultiple), kMostMultiple));
    }
    largest = std::max(largest, one.largest / one.multiple);
  }
  least_step_ =
      std::max(static_cast<double>(largest) / (kMaxLevel - 2), static_cast<double>(kLeastStep));
}

double BucketSearch::root_mean_square() {
  const double sum = sum_of([](const Candidate& one) {
    return one.scale * kernels().sum_squares(one.rows.x.data(), one.rows.x.size());
  });
  return std::sqrt(sum / elements_);
}

bool BucketSearch::zero_levels() const {
  return std::all_of(candidates_.begin(), candidates_.end(),
                     [](const Candidate& one) { return one.zero_levels; });
}

double BucketSearch::unit() {
  return goal_.error > 0 ? std::sqrt(goal_.error / elements_) : root_mean_square();
}

bool BucketSearch::all_zero() const {
  return std::all_of(candidates_.begin(), candidates_.end(), [](const Candidate& one) {
    return one.plan->quantized.all_zero(one.plan->counted);
  });
}

bool BucketSearch::any_pairs() const {
  return std::any_of(candidates_.begin(), candidates_.end(),
                     [](const Candidate& one) { return one.choice.rank != 0; });
}

bool BucketSearch::any_carried() const {
  return std::any_of(candidates_.begin(), candidates_.end(),
                     [](const Candidate& one) { return !one.tensor->carried.empty(); });
}

}  // namespace gradcomp
