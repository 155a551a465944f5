#include "codecs/adaptive/search.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "base/bytes.hpp"
#include "base/logarithm.hpp"
#include "codec/frame_layout.hpp"
#include "codecs/adaptive/lattice_groups.hpp"
#include "codecs/adaptive/learned_basis.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kRestSlot = RateControl::kSymbolSlot + 1;
constexpr std::size_t kTurnedSlot = kRestSlot + 1;

// Elements of a tensor that rank and first step are chosen by, about.
constexpr std::size_t kSample = std::size_t{1} << 15;

// Of tensors with longer rows, vectors above all, so many runs of elements are taken, and no pairs.
constexpr std::size_t kLongRow = std::size_t{1} << 16;
constexpr std::size_t kRuns = 16;

constexpr std::size_t kRanks[] = {0, 1, 2, 4, 8, 16};

// Off the rate asked for by no more than this, and so often tried.
constexpr double kTolerance = 0.02;
constexpr int kMaxPasses = 12;

// How often ranks are chosen, where nothing is carried from the last step.
constexpr int kRounds = 7;
// Where the last step's are taken over, each tensor's are tried again every so many steps.
constexpr std::size_t kRankPeriod = 16;
// The same where a basis is kept, which becomes better from step to step.
constexpr std::size_t kLearningPeriod = 4;
// How often pairs are taken out anew where their factors' steps turn out not to suit the rest.
constexpr int kRetakes = 3;
// Off what samples should promise.
constexpr double kPromise = 0.004;
constexpr float kSettled = 0.04f;  // a change of step that changes no rank, about
// Where the factors turn out to be larger than expected, their step is made so much larger.
constexpr float kCoarser = 1.25f;
constexpr int kMaxCoarser = 6;

// Beyond these, squares of elements could leave the range of float32.
constexpr float kLargest = 0x1p60f;
constexpr float kSmallest = 0x1p-100f;

// A bucket has so many bytes besides the frames' own, however few elements it has.
constexpr double kLeastBytes = 32;

struct Found {
  float step;
  double value;       // of the function there
  float too_low = 0;  // the largest step known to be too small, 0: none
};

// Where a function that is positive and falls with the step becomes `target`, given a first step.
Found find_step(double step, double least, double target, double tolerance, int passes,
                const std::function<double(float)>& fn) {
  double low = 0, low_value = 0;    // steps too small, 0: none yet
  double high = 0, high_value = 0;  // and too large
  double best = 0, best_value = 0, best_miss = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < passes; ++pass) {
    step = std::max(step, least);
    const double value = fn(static_cast<float>(step));
    const double miss = std::fabs(value / target - 1);
    if (miss < best_miss) {
      best_miss = miss;
      best = step;
      best_value = value;
    }
    if (miss <= tolerance) break;
    if (value > target) {
      low = step;
      low_value = value;
    } else {
      high = step;
      high_value = value;
      if (step <= least) break;
    }
    if (low == 0 || high == 0) {
      // Where nothing is left, or far too much, the bounds hold anyway.
      const double off = std::min(std::max(value / target, 0.125), 8.0);
      step *= std::min(std::max(portable_exp2(0.8 * portable_log2(off)), 0.25), 4.0);
      continue;
    }
    // Between them, by their logarithms; every third time in the middle, as one of the two may stay
    // far away.
    const double part = portable_log2(low_value / target) / portable_log2(low_value / high_value);
    const double within = pass % 3 == 2 ? 0.5 : std::min(std::max(part, 0.05), 0.95);
    step = low * portable_exp2(within * portable_log2(high / low));
  }
  return {static_cast<float>(best), best_value, static_cast<float>(low)};
}

}  // namespace

Carried Carried::from(Span<const float> numbers) {
  if (numbers.size() != kNumbers) return {};
  return {numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
}

void Carried::store(Span<float> numbers) const {
  const float all[kNumbers] = {step, factor_step, rank, due, gain};
  if (numbers.size() == kNumbers) std::copy(all, all + kNumbers, numbers.data());
}

std::size_t Carried::pairs() const { return static_cast<std::size_t>(rank < 0 ? -1 - rank : rank); }

bool Carried::usable() const {
  const auto within = [](float x, float least, float most) { return x >= least && x <= most; };
  return within(step, 0x1p-20f, 0x1p20f) && within(factor_step, 0x1p-10f, 0x1p10f) &&
         within(rank, -1 - static_cast<float>(kMaxAdaptiveRank), kMaxAdaptiveRank) &&
         within(due, 0, kRankPeriod) && within(gain, 0.25f, 4);
}

struct Choice {
  std::size_t rank = 0;
  float factor_step = 0;
};

struct RateControl::Candidate {
  Plan* plan;
  const BucketTensor* tensor;
  bool points;         // whether a byte says that there are none
  SharedBasis shared;  // none where it has nothing for this step
  Carried carried = Carried::from({tensor->carried.data(), tensor->carried.size()});
  bool turned = false;
  Basis basis = {};
  double scale = 1;  // elements of the tensor for each of the sample
  Choice choice = {};
  // What the sample is then.
  double factor_bytes = 0;  // of the whole tensor
  std::vector<float> rest = {};
  Quantized sample{nullptr, {}};
  std::vector<std::uint8_t> symbols = {};

  const Shape2& shape() const { return plan->quantized.shape(); }
  // Whether the sample is all of the tensor.
  bool complete() const { return basis.x.size() == shape().size(); }
  // Steps from one choice of the rank to the next.
  std::size_t period() const { return tensor->basis.empty() ? kRankPeriod : kLearningPeriod; }

  // The matrix as it is seen from the basis. Returns its largest magnitude, or 0 where that leaves
  // the range of float32, which a damaged basis may do: then the plan stays what it was.
  float turn_to(float* room, Plan* turned_plan) const {
    std::copy(tensor->x.begin(), tensor->x.end(), room);
    turn(shared, room);
    const std::uint32_t largest = kernels().max_magnitude(room, tensor->x.size());
    if (largest >= kInfBits) return 0;
    turned_plan->quantized = Quantized(room, shape(), true);
    turned_plan->basis = shared.check;
    return bits_float(largest);
  }
  // Bits of a sample's rest.
  double sample_bits(const Quantized& of, float step) {
    const Counted counted = of.quantize(step, symbols.data());
    return AdaptiveTables::best(counted.counts).bits(counted.counts) + counted.excess;
  }
  double sample_bytes(float step) { return scale * sample_bits(sample, step) / 8 + factor_bytes; }
  // The squared error of the last step of which bytes were asked for.
  double error(float step) const {
    return scale * static_cast<double>(step) * static_cast<double>(step) *
           error_of(sample.rest(), symbols.data(), sample.shape().size(), step);
  }

  void quantize(float step) {
    if (plan->counted.step != step) plan->counted = plan->quantized.quantize(step, plan->symbols);
  }
  // All elements as levels.
  double bytes(float step) {
    quantize(step);
    AdaptiveTables tables;
    const double bytes = plan->quantized.finish(plan->counted, &tables);
    return points && bytes != 1 ? bytes + 1 : bytes;
  }
  // Makes the sample one of what is left of the whole tensor.
  void sample_rest() {
    if (complete()) return;
    if (choice.rank != 0) {
      take_rows(plan->quantized.rest(), shape().rows, shape().cols, basis.rows, 1, &rest);
    }
    sample =
        Quantized(choice.rank == 0 ? basis.test().data() : rest.data(), {basis.rows, basis.cols});
    factor_bytes = plan->quantized.factor_bytes();
  }
};

struct RateControl::Bucket {
  std::vector<Candidate> candidates;
  double elements = 0;  // those of tensors that are no candidates, too
  double target = 0;    // bytes
  double least = 0;     // step
  bool ranked = true;   // whether pairs are possible
  float step = 0;       // to begin with

  double sample_bytes(float at) {
    double sum = 0;
    for (Candidate& one : candidates) sum += one.sample_bytes(at);
    return sum;
  }
  double bytes(float at) {
    double sum = 0;
    for (Candidate& one : candidates) sum += one.bytes(at);
    return sum;
  }
  // As bytes(), where so many groups may be of points; finds the squared error, too.
  double bytes_with_points(float at, std::uint8_t groups, double* error) {
    double sum = 0;
    *error = 0;
    for (Candidate& one : candidates) {
      one.quantize(at);
      const Plan& plan = *one.plan;
      const GroupCoder coder(plan.quantized, plan.counted, plan.symbols, groups);
      sum += coder.bytes();
      *error += coder.error() * static_cast<double>(at) * static_cast<double>(at);
    }
    return sum;
  }
  // By samples of what is left, where they are not all of it anyway.
  double promised_bytes(float at) {
    double sum = 0;
    for (Candidate& one : candidates) sum += one.complete() ? one.bytes(at) : one.sample_bytes(at);
    return sum;
  }
  // The elements' root mean square, by samples.
  double scale() const {
    double sum = 0;
    for (const Candidate& one : candidates) {
      sum += one.scale * kernels().sum_squares(one.basis.x.data(), one.basis.x.size());
    }
    return std::sqrt(sum / elements);
  }
  bool any_pairs() const {
    return std::any_of(candidates.begin(), candidates.end(),
                       [](const Candidate& one) { return one.choice.rank != 0; });
  }
  bool carries() const {
    return std::any_of(candidates.begin(), candidates.end(),
                       [](const Candidate& one) { return !one.tensor->carried.empty(); });
  }
};

// Evenly spaced runs of n elements, as one row.
void take_runs(const float* x, std::size_t n, Basis* basis) {
  const std::size_t each = kSample / kRuns;
  basis->rows = 1;
  basis->cols = each * kRuns;
  basis->x.resize(basis->cols);
  for (std::size_t run = 0; run < kRuns; ++run) {
    const float* const from = x + run * (n - each) / (kRuns - 1);
    std::copy(from, from + each, basis->x.begin() + static_cast<std::ptrdiff_t>(run * each));
  }
}

std::size_t RateControl::max_rank(const Shape2& shape) const {
  const std::size_t most = std::min(shape.rows, shape.cols) / 2;
  return std::min(most, rank_ == kAuto ? kMaxAdaptiveRank : static_cast<std::size_t>(rank_));
}

std::vector<std::size_t> RateControl::ranks(const Candidate& candidate, bool first) const {
  const std::size_t most = candidate.basis.rank;
  if (rank_ != kAuto) return {most};
  std::vector<std::size_t> found;
  for (const std::size_t rank : kRanks) {
    if (rank > most) break;
    const std::size_t now = candidate.choice.rank;
    if (first || (rank >= now / 2 && rank <= std::max<std::size_t>(1, 2 * now))) {
      found.push_back(rank);
    }
  }
  return found;
}

Status RateControl::sample(Candidate* candidate, std::size_t rank, Scratch& scratch) const {
  const Shape2& shape = candidate->shape();
  const float* const x = candidate->plan->quantized.x();
  Basis& basis = candidate->basis;
  if (shape.cols > kLongRow && (rank == 0 || rank_ == kAuto)) {
    take_runs(x, shape.size(), &basis);
  } else {
    // The first rows of a turned matrix are those of the directions that are kept, unlike the rest;
    // so all of it is looked at.
    const std::size_t sample = candidate->plan->quantized.turned() ? shape.size() : kSample;
    GRADCOMP_TRY(find_basis(x, shape.rows, shape.cols, rank, sample, scratch, &basis));
  }
  const std::size_t taken = basis.x.size();
  candidate->scale = static_cast<double>(shape.size()) / static_cast<double>(taken);
  candidate->sample = Quantized(basis.test().data(), {basis.rows, basis.cols});
  candidate->symbols.resize(taken);
  return {};
}

double RateControl::choose_rank(Candidate* candidate, bool first, float step) const {
  const Basis& basis = candidate->basis;
  const Shape2 shape{basis.rows, basis.cols};
  const float factor_step = short_float(static_cast<double>(step));
  double least = std::numeric_limits<double>::infinity();
  double before = std::numeric_limits<double>::infinity();
  int worse = 0;
  for (const std::size_t rank : ranks(*candidate, first)) {
    if (worse == 2) break;
    Quantized sample(basis.test().data(), shape);
    std::vector<float> rest(rank == 0 ? 0 : shape.size());
    sample.take_out(basis, rank, factor_step, rest.data());
    // What the factors take: those for rows stand for more rows than there are here.
    double factors = 8 * static_cast<double>(factor_fields(rank));
    std::vector<std::uint8_t> symbols;
    const LowRank& low_rank = sample.low_rank();
    for (const SymbolMatrix& matrix : sample.factor_symbols(&symbols)) {
      std::uint64_t counts[kSymbolCounts] = {};
      add_counts(matrix.symbols, matrix.size(), counts);
      const bool of_rows = matrix.x == low_rank.p.high.data();
      const double low = static_cast<double>((of_rows ? low_rank.p : low_rank.v).low_bits());
      factors += (of_rows ? candidate->scale : 1) *
                 (AdaptiveTables::best(counts).bits(counts) + few_excesses(counts) + low);
    }
    const double bits = candidate->sample_bits(sample, step);
    const double error = error_of(sample.rest(), candidate->symbols.data(), shape.size(), step);
    const double cost = candidate->scale * (error + kBitWorth * bits) + kBitWorth * factors;
    worse = cost < before ? 0 : worse + 1;
    before = std::min(before, cost);
    if (cost >= least) continue;
    least = cost;
    candidate->choice = {rank, factor_step};
    candidate->factor_bytes = factors / 8;
    candidate->rest = std::move(rest);
    candidate->sample = std::move(sample);
  }
  return least;
}

Status RateControl::compare_turned(Candidate* candidate, double cost, float step,
                                   Scratch& scratch) const {
  if (candidate->shared.rank == 0) return {};
  std::vector<float> room;
  Plan plan;
  Candidate other{&plan, candidate->tensor, points_, candidate->shared};
  other.turned = !candidate->turned;
  plan.quantized = Quantized(candidate->tensor->x.data(), candidate->shape());
  if (other.turned) {
    room.resize(other.shape().size());
    if (other.turn_to(room.data(), &plan) == 0) return {};
  }
  GRADCOMP_TRY(sample(&other, max_rank(other.shape()), scratch));
  if (choose_rank(&other, true, step) >= cost) return {};
  candidate->turned = other.turned;
  candidate->choice = other.choice;
  return {};
}

Status RateControl::begin(Bucket* bucket, Scratch& scratch) const {
  std::vector<Candidate>& candidates = bucket->candidates;
  const double least = bucket->least;
  const double target = bucket->target;
  bool may_have_rank = false;
  double squares = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Candidate& one = candidates[i];
    squares += kernels().sum_squares(one.plan->quantized.x(), one.shape().size());
    one.choice = {};
    one.factor_bytes = 0;
    GRADCOMP_TRY(sample(&one, bucket->ranked ? max_rank(one.shape()) : 0, scratch));
    may_have_rank = may_have_rank || one.basis.rank != 0;
    // Not all in one step, later; but soon where a basis begins.
    const bool begins = !one.tensor->basis.empty() && one.shared.rank == 0;
    one.carried.due = static_cast<float>(begins ? 1 : 1 + i % one.period());
  }
  const auto sampled = [&](float step) { return bucket->sample_bytes(step); };
  // Infinite where that takes too many bytes: those of the factors alone may.
  const auto error = [&](float step) {
    double sum =
        sampled(step) > (1 + kTolerance) * target ? std::numeric_limits<double>::infinity() : 0;
    for (const Candidate& one : candidates) sum += one.error(step);
    return sum;
  };
  float step =
      find_step(std::sqrt(squares / bucket->elements), least, target, 0.05, 8, sampled).step;
  if (may_have_rank) {
    // Which ranks pay depends on the step, and the other way round: several are tried.
    double least_error = rank_ == kAuto ? error(step) : std::numeric_limits<double>::infinity();
    std::vector<Choice> best(candidates.size());
    for (std::size_t i = 0; i < best.size(); ++i) best[i] = candidates[i].choice;
    float trial = step;
    bool first = true;
    for (int round = 0; round < kRounds; ++round) {
      for (Candidate& one : candidates) choose_rank(&one, first, trial);
      first = false;
      const float solved =
          find_step(static_cast<double>(trial), least, target, 0.02, 8, sampled).step;
      const double now = error(solved);
      const bool affordable = std::isfinite(now);
      if (now < least_error) {
        least_error = now;
        step = solved;
        for (std::size_t i = 0; i < best.size(); ++i) best[i] = candidates[i].choice;
      } else if (affordable) {
        break;
      }
      if (affordable && std::fabs(solved / trial - 1) < kSettled) break;
      trial = affordable ? solved : trial * kCoarser;
    }
    for (std::size_t i = 0; i < best.size(); ++i) candidates[i].choice = best[i];
  }
  bucket->step = step;
  return {};
}

Status RateControl::turn_all(Bucket* bucket, float* largest, Scratch& scratch) {
  std::size_t all = 0;
  for (const Candidate& one : bucket->candidates) all += one.turned ? one.shape().size() : 0;
  if (all == 0) return {};
  const Span<float> rooms = scratch.get<float>(kTurnedSlot, all);
  if (rooms.empty()) return capacity_error("out of memory while encoding");
  float* room = rooms.data();
  for (Candidate& one : bucket->candidates) {
    if (!one.turned) continue;
    const float found = one.turn_to(room, one.plan);
    one.turned = found > 0;
    *largest = std::max(*largest, found);
    room += one.shape().size();
  }
  return {};
}

Status RateControl::take_out(Bucket* bucket, Scratch& scratch) {
  std::size_t all = 0;
  std::size_t ranked = 0;
  for (const Candidate& one : bucket->candidates) {
    all += one.shape().size();
    ranked += one.choice.rank == 0 ? 0 : one.shape().size();
  }
  const Span<std::uint8_t> symbols = scratch.get<std::uint8_t>(kSymbolSlot, all);
  const Span<float> rests = scratch.get<float>(kRestSlot, ranked + 1);
  if (symbols.empty() || rests.empty()) return capacity_error("out of memory while encoding");
  std::uint8_t* symbol = symbols.data();
  float* rest = rests.data();
  for (Candidate& one : bucket->candidates) {
    Plan& plan = *one.plan;
    plan.symbols = symbol;
    plan.counted = {};
    plan.quantized.take_out(one.basis, one.choice.rank, one.choice.factor_step, rest);
    symbol += one.shape().size();
    if (one.choice.rank != 0) rest += one.shape().size();
    if (!one.tensor->carried.empty()) one.sample_rest();
  }
  return {};
}

bool RateControl::resumes(const Bucket& bucket) const {
  const auto usable = [&](const Candidate& one) {
    if (!one.carried.usable() || (one.carried.rank < 0 && one.shared.rank == 0)) return false;
    return rank_ == kAuto || one.carried.pairs() == max_rank(one.shape());
  };
  return bucket.ranked && std::all_of(bucket.candidates.begin(), bucket.candidates.end(), usable);
}

Status RateControl::resume(Bucket* bucket, Scratch& scratch) const {
  for (Candidate& one : bucket->candidates) {
    const std::size_t most = max_rank(one.shape());
    one.choice.rank = std::min(most, one.carried.pairs());
    const bool tried = one.carried.due <= 1;
    // With more directions than pairs, those of the pairs are found better.
    const std::size_t directions = std::min(most, 2 * one.choice.rank);
    GRADCOMP_TRY(sample(&one, tried ? most : directions, scratch));
  }
  const auto in_scales = static_cast<double>(bucket->candidates.front().carried.step);
  const double promise =
      bucket->target / static_cast<double>(bucket->candidates.front().carried.gain);
  float step = static_cast<float>(std::max(in_scales * bucket->scale(), bucket->least));
  for (int round = 0;; ++round) {
    for (Candidate& one : bucket->candidates) {
      one.choice.factor_step = short_float(static_cast<double>(step * one.carried.factor_step));
    }
    GRADCOMP_TRY(take_out(bucket, scratch));
    const float found =
        find_step(static_cast<double>(step), bucket->least, promise, kPromise, 8, [&](float at) {
          return bucket->promised_bytes(at);
        }).step;
    bucket->step = found;
    const float change = std::max(found, step) / std::min(found, step);
    if (round == kRetakes || change < kCoarser || !bucket->any_pairs()) return {};
    // The finer the factors are, the coarser is the rest: both go by a step in between.
    step = static_cast<float>(std::sqrt(static_cast<double>(step * found)));
  }
}

void RateControl::place_points(Bucket* bucket, float level_step, double level_bytes) {
  std::uint8_t groups = 0;
  double left = 0;  // the squared error of the last step that was tried
  const auto bytes = [&](float step) { return bucket->bytes_with_points(step, groups, &left); };
  bytes(level_step);
  Found found{level_step, level_bytes};
  const auto cost = [&] {
    const auto squared = static_cast<double>(level_step) * static_cast<double>(level_step);
    return left + 8 * kBitWorth * squared * found.value;
  };
  const auto missed = [&] { return std::fabs(found.value / bucket->target - 1) > kTolerance; };
  const double without = cost();
  // With points the step becomes smaller, for less error.
  groups = kAllGroups;
  found = find_step(static_cast<double>(level_step), bucket->least, bucket->target, kTolerance,
                    kMaxPasses, bytes);
  if (found.too_low > 0 && missed()) {
    // Many groups change from levels to points at once: then only some of them do.
    found.step = found.too_low;
    for (int fewest = 1, most = kAllGroups; fewest < most && missed();) {
      groups = static_cast<std::uint8_t>((fewest + most) / 2);
      found.value = bytes(found.step);
      (found.value < bucket->target ? fewest : most) =
          groups + (found.value < bucket->target ? 1 : 0);
    }
  }
  if (missed() || cost() > without) {
    found.step = level_step;
    groups = 0;
  }
  for (Candidate& one : bucket->candidates) {
    one.plan->step = found.step;
    one.plan->groups = groups;
  }
}

Status RateControl::find(Span<const BucketTensor> tensors, Scratch& scratch,
                         std::vector<Plan>* plans) const {
  plans->assign(tensors.size(), {});
  Bucket bucket;
  double fixed = 0;  // bytes that do not depend on the step, frames included
  float largest = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t n = tensors[i].x.size();
    Plan& plan = (*plans)[i];
    plan.quantized = Quantized(tensors[i].x.data(), Shape2::of(n, tensors[i].cols));
    bucket.elements += static_cast<double>(n);
    fixed += static_cast<double>(kFrameBytes);
    if (n < kMinAdaptive) {
      fixed += 4 * static_cast<double>(n);
      continue;
    }
    const std::uint32_t bits = kernels().max_magnitude(tensors[i].x.data(), n);
    if (bits >= kInfBits) plan.step = std::numeric_limits<float>::quiet_NaN();
    if (bits >= kInfBits || bits_float(bits) < kSmallest) {
      fixed += 1;
      continue;
    }
    largest = std::max(largest, bits_float(bits));
    const Shape2& shape = plan.quantized.shape();
    const SharedBasis shared = SharedBasis::of(tensors[i].basis, shape.rows, shape.cols);
    bucket.candidates.push_back({&plan, &tensors[i], points_, shared});
  }
  std::vector<Candidate>& candidates = bucket.candidates;
  if (candidates.empty()) return {};
  const double asked = rate_ * bucket.elements / 8;
  bucket.target = std::max({asked - fixed, asked / 2, kLeastBytes});
  bucket.ranked = largest <= kLargest && largest >= 1 / kLargest;
  if (!bucket.ranked) {
    for (Candidate& one : candidates) one.shared = {};
  }
  bool resumed = resumes(bucket);
  for (Candidate& one : candidates) {
    one.turned = resumed ? one.carried.rank < 0 : one.shared.rank != 0;
  }
  GRADCOMP_TRY(turn_all(&bucket, &largest, scratch));
  // So that no magnitude is beyond those that can be coded.
  bucket.least = std::max(static_cast<double>(largest) / (kMaxLevel - 2), 0x1p-100);

  GRADCOMP_TRY(resumed ? resume(&bucket, scratch) : begin(&bucket, scratch));
  Found found{};
  for (int coarser = 0; coarser <= kMaxCoarser;) {
    if (!resumed) GRADCOMP_TRY(take_out(&bucket, scratch));
    found = find_step(static_cast<double>(bucket.step), bucket.least, bucket.target, kTolerance,
                      kMaxPasses, [&](float step) { return bucket.bytes(step); });
    if (!bucket.any_pairs() || found.value <= (1 + kTolerance) * bucket.target) break;
    if (resumed) {
      resumed = false;
      GRADCOMP_TRY(begin(&bucket, scratch));
      continue;
    }
    ++coarser;
    for (Candidate& one : candidates) {
      one.choice.factor_step = short_float(static_cast<double>(one.choice.factor_step * kCoarser));
    }
  }
  for (Candidate& one : candidates) one.plan->step = found.step;
  if (bucket.carries()) {
    const double promised = bucket.promised_bytes(found.step);
    const auto step = static_cast<float>(static_cast<double>(found.step) / bucket.scale());
    for (Candidate& one : candidates) {
      Carried& carried = one.carried;
      if (resumed && --carried.due < 1) {
        const double cost = choose_rank(&one, true, found.step);
        GRADCOMP_TRY(compare_turned(&one, cost, found.step, scratch));
        carried.factor_step = 1;
        carried.due = static_cast<float>(one.period());
      }
      if (!resumed) {
        carried.factor_step = one.choice.rank == 0 ? 1 : one.choice.factor_step / found.step;
      }
      carried.step = step;
      const auto rank = static_cast<float>(one.choice.rank);
      carried.rank = one.turned ? -1 - rank : rank;
      carried.gain = static_cast<float>(found.value / promised);
      carried.store(one.tensor->carried);
    }
  }
  // Last, as the next step begins from levels.
  if (points_) place_points(&bucket, found.step, found.value);
  return {};
}

}  // namespace gradcomp
