#include "codecs/adaptive_plan.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "codecs/adaptive_polar.hpp"
#include "coding/rans.hpp"
#include "core/bytes.hpp"
#include "core/thread_pool.hpp"
#include "kernels/kernels.hpp"
#include "wire/frame.hpp"

namespace gradcomp {
namespace {

// The least magnitude that is not made 0, by class: half a step more than what it gains, at
// kBitWorth, against the bits that the usual table of the class takes more for it.
constexpr float kThresholds[kClasses] = {1.17f, 1.12f, 0.99f, 0.89f,  0.84f, 0.79f, 0.76f, 0.74f,
                                         0.71f, 0.66f, 0.64f, 0.585f, 0.53f, 0.5f,  0.5f,  0.5f};
constexpr float kBias = 0.41f;

// Elements of a tensor that rank and first step are chosen by, about.
constexpr std::size_t kSample = std::size_t{1} << 15;

// Of tensors with longer rows, vectors above all, so many runs of elements are taken, and no pairs.
constexpr std::size_t kLongRow = std::size_t{1} << 16;
constexpr std::size_t kRuns = 16;

constexpr std::size_t kRanks[] = {0, 1, 2, 4, 8, 16};

// Off the rate asked for by no more than this, and so often tried.
constexpr double kTolerance = 0.02;
constexpr int kMaxPasses = 12;

// How often ranks are chosen.
constexpr int kRounds = 7;
constexpr float kSettled = 0.04f;  // a change of step that changes no rank, about
// Where the factors turn out to be larger than expected, their step is made so much larger.
constexpr float kCoarser = 1.25f;
constexpr int kMaxCoarser = 6;

// Beyond these, squares of elements could leave the range of float32.
constexpr float kLargest = 0x1p60f;
constexpr float kSmallest = 0x1p-100f;

// A bucket has so many bytes besides the frames' own, however few elements it has.
constexpr double kLeastBytes = 32;

constexpr double kExcessBits = 5;  // of a top magnitude, about

std::uint64_t count_tops(const std::uint64_t* counts) {
  std::uint64_t tops = 0;
  for (std::size_t c = 0; c < kClasses; ++c) {
    const std::uint64_t* const of = counts + c * kClassSymbols;
    tops += of[2 * kTopMagnitude - 1] + of[2 * kTopMagnitude];
  }
  return tops;
}

double few_excesses(const std::uint64_t* counts) {
  return kExcessBits * static_cast<double>(count_tops(counts));
}

// Of so many elements one may have an excess that is not looked at.
constexpr std::uint64_t kFewTops = 1024;

void add_counts(const std::uint8_t* symbols, std::size_t n, std::uint64_t* counts) {
  std::uint32_t found[256];
  count_symbols({symbols, n}, found);
  for (std::size_t s = 0; s < kSymbolCounts; ++s) counts[s] += found[s];
}

// The squared error in squares of the step.
double error_of(const float* x, const std::uint8_t* symbols, std::size_t n, float step) {
  const float inverse = 1 / step;
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const float size = std::fabs(x[i]) * inverse;
    const unsigned magnitude = (symbols[i] % kClassSymbols + 1u) / 2;
    const float level = magnitude < kTopMagnitude ? static_cast<float>(magnitude)
                                                  : std::max(std::floor(size + kBias), 7.0f);
    sum += static_cast<double>((size - level) * (size - level));
  }
  return sum;
}

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
      step *= std::min(std::max(std::pow(value / target, 0.8), 0.25), 4.0);
      continue;
    }
    // Between them, by their logarithms; every third time in the middle, as one of the two may stay
    // far away.
    const double part = std::log(low_value / target) / std::log(low_value / high_value);
    const double within = pass % 3 == 2 ? 0.5 : std::min(std::max(part, 0.05), 0.95);
    step = low * std::pow(high / low, within);
  }
  return {static_cast<float>(best), best_value, static_cast<float>(low)};
}

}  // namespace

Shape2 Shape2::of(std::size_t n, std::size_t cols) {
  if (cols < 2 || cols >= n || n % cols != 0) return {1, n};
  return {n / cols, cols};
}

std::size_t Shape2::band_rows() const { return std::max<std::size_t>(1, kBandElements / cols); }

std::uint64_t Plan::pack() const {
  return float_bits(step) | std::uint64_t{float_bits(factor_step) >> 16} << 32 |
         std::uint64_t{rank} << 48 | std::uint64_t{groups} << 56;
}

Plan Plan::unpack(std::uint64_t share) {
  return {bits_float(static_cast<std::uint32_t>(share)),
          bits_float(static_cast<std::uint32_t>(share >> 32 & 0xFFFF) << 16),
          static_cast<std::uint8_t>(share >> 48 & 0xFF), static_cast<std::uint8_t>(share >> 56)};
}

DeadZone dead_zone(float step) {
  DeadZone zone{1 / step, kBias, {}};
  std::copy(kThresholds, kThresholds + kClasses, zone.threshold);
  return zone;
}

DeadZone whole_numbers() {
  DeadZone zone{1, 0.5f, {}};
  std::fill(zone.threshold, zone.threshold + kClasses, 0.5f);
  return zone;
}

Status Quantized::take_out(const Basis& basis, std::size_t rank, float factor_step) {
  make_low_rank(basis, rank, x_, shape_.rows, factor_step, &low_rank_);
  std::fill(factor_counts_, factor_counts_ + kSymbolCounts, std::uint64_t{0});
  if (rank == 0) return {};
  rest_.resize(shape_.size());
  subtract_low_rank(low_rank_, x_, shape_.rows, rest_.data());
  std::vector<std::uint8_t> symbols;
  for (const SymbolMatrix& matrix : factor_symbols(&symbols)) {
    add_counts(matrix.symbols, matrix.size(), factor_counts_);
  }
  return {};
}

std::vector<SymbolMatrix> Quantized::factor_symbols(std::vector<std::uint8_t>* symbols) const {
  const Factor& v = low_rank_.v;
  const Factor& p = low_rank_.p;
  if (low_rank_.rank == 0) return {};
  symbols->resize(v.high.size() + p.high.size());
  const std::vector<SymbolMatrix> matrices = {
      {v.high.data(), symbols->data(), v.rank, v.size},
      {p.high.data(), symbols->data() + v.high.size(), p.rank, p.size}};
  std::vector<std::int16_t> columns;
  for (const SymbolMatrix& matrix : matrices) classify(matrix, whole_numbers(), &columns);
  return matrices;
}

Counted Quantized::quantize(float step, std::uint8_t* symbols) const {
  const DeadZone zone = dead_zone(step);
  const std::size_t bands = shape_.bands();
  std::vector<std::uint64_t> found(bands * kSymbolCounts, 0);
  // Bands are what threads share.
  const std::size_t ranges = range_count(shape_.size()) == 1 ? 1 : bands;
  struct Context {
    const Quantized* self;
    const DeadZone* zone;
    std::uint8_t* symbols;
    std::uint64_t* found;
    std::size_t bands, ranges;
  } context{this, &zone, symbols, found.data(), bands, ranges};
  run_tasks(
      ranges,
      [](void* opaque, std::size_t range) {
        const Context& c = *static_cast<Context*>(opaque);
        std::vector<std::int16_t> columns;
        const Shape2& shape = c.self->shape_;
        for (std::size_t b = c.bands * range / c.ranges; b < c.bands * (range + 1) / c.ranges;
             ++b) {
          const std::size_t first = b * shape.band_rows();
          const std::size_t rows = std::min(shape.band_rows(), shape.rows - first);
          const std::size_t at = first * shape.cols;
          const SymbolMatrix band{c.self->rest() + at, c.symbols + at, rows, shape.cols};
          classify(band, *c.zone, &columns);
          add_counts(band.symbols, band.size(), c.found + b * kSymbolCounts);
        }
      },
      &context);
  Counted counted;
  counted.step = step;
  for (std::size_t i = 0; i < found.size(); ++i) counted.counts[i % kSymbolCounts] += found[i];
  const SymbolMatrix all{rest(), symbols, shape_.rows, shape_.cols};
  counted.excess = count_tops(counted.counts) * kFewTops <= shape_.size()
                       ? few_excesses(counted.counts)
                       : static_cast<double>(excess_bits(all, zone));
  return counted;
}

double Quantized::finish(const Counted& counted, AdaptiveTables* tables) const {
  std::uint64_t zeros = 0;
  for (std::size_t c = 0; c < kClasses; ++c) zeros += counted.counts[c * kClassSymbols];
  if (zeros == shape_.size() && low_rank_.rank == 0) return 1;
  std::uint64_t counts[kSymbolCounts];
  for (std::size_t s = 0; s < kSymbolCounts; ++s) counts[s] = counted.counts[s] + factor_counts_[s];
  *tables = AdaptiveTables::best(counts);
  const std::size_t low = low_rank_.p.low_bits() + low_rank_.v.low_bits();
  const double bits = tables->bits(counts) + counted.excess + few_excesses(factor_counts_) +
                      static_cast<double>(low);
  const double coded =
      bits / 8 + static_cast<double>(kAdaptiveHead + factor_fields(low_rank_.rank));
  const auto streams = static_cast<double>(shape_.bands());
  return coded + 4 * (streams - 1) + 3 * streams * static_cast<double>(lanes(coded));
}

std::size_t Quantized::lanes(double bytes) const {
  const double each = bytes / static_cast<double>(shape_.bands());
  return each > 6000 ? 32 : each > 1500 ? 8 : each > 400 ? 2 : 1;
}

// A tensor's rank, and what its sample is then.
struct Choice {
  std::size_t rank = 0;
  float factor_step = 0;
  double factor_bytes = 0;  // of the whole tensor
  Quantized sample{nullptr, {}};
};

struct RateControl::Candidate {
  explicit Candidate(const float* x, const Shape2& shape) : whole(x, shape) {}

  Quantized whole;
  Basis basis;
  double scale = 1;  // elements of the tensor for each of the sample
  Choice choice;
  std::vector<std::uint8_t> symbols;

  // Bits of the sample's rest.
  double sample_bits(const Quantized& sample, float step) {
    const Counted counted = sample.quantize(step, symbols.data());
    return AdaptiveTables::best(counted.counts).bits(counted.counts) + counted.excess;
  }
  double bytes(float step) {
    return scale * sample_bits(choice.sample, step) / 8 + choice.factor_bytes;
  }
  // The squared error of the last step of which bytes were asked for.
  double error(float step) const {
    const Quantized& sample = choice.sample;
    return scale * static_cast<double>(step) * static_cast<double>(step) *
           error_of(sample.rest(), symbols.data(), sample.shape().size(), step);
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

Status RateControl::basis(const float* x, const Shape2& shape, Scratch& scratch,
                          Basis* basis) const {
  return find_basis(x, shape.rows, shape.cols, max_rank(shape), kSample, scratch, basis);
}

std::vector<std::size_t> RateControl::ranks(const Candidate& candidate, bool first) const {
  if (rank_ != kAuto) return {candidate.basis.rank};
  std::vector<std::size_t> found;
  for (const std::size_t rank : kRanks) {
    const std::size_t now = candidate.choice.rank;
    if (first || (rank >= now / 2 && rank <= std::max<std::size_t>(1, 2 * now))) {
      found.push_back(rank);
    }
  }
  return found;
}

void RateControl::choose_rank(Candidate* candidate, const std::vector<std::size_t>& ranks,
                              float step) const {
  const Basis& basis = candidate->basis;
  const Shape2 shape{basis.rows, basis.cols};
  const float factor_step = short_float(static_cast<double>(step));
  double least = std::numeric_limits<double>::infinity();
  int worse = 0;
  for (const std::size_t rank : ranks) {
    if (rank > basis.rank || worse == 2) break;
    Quantized sample(basis.test().data(), shape);
    if (!sample.take_out(basis, rank, factor_step).ok()) break;
    // What the factors take: those for rows stand for more rows than there are here.
    double factors = 8 * static_cast<double>(factor_fields(rank));
    std::vector<std::uint8_t> symbols;
    const LowRank& low_rank = sample.low_rank();
    const std::vector<SymbolMatrix> matrices = sample.factor_symbols(&symbols);
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      std::uint64_t counts[kSymbolCounts] = {};
      add_counts(matrices[i].symbols, matrices[i].size(), counts);
      const double low = static_cast<double>((i == 0 ? low_rank.v : low_rank.p).low_bits());
      factors += (i == 0 ? 1 : candidate->scale) *
                 (AdaptiveTables::best(counts).bits(counts) + few_excesses(counts) + low);
    }
    const double bits = candidate->sample_bits(sample, step);
    const double error = error_of(sample.rest(), candidate->symbols.data(), shape.size(), step);
    const double cost = candidate->scale * (error + kBitWorth * bits) + kBitWorth * factors;
    if (cost < least) {
      least = cost;
      worse = 0;
      candidate->choice = {rank, factor_step, factors / 8, std::move(sample)};
    } else {
      ++worse;
    }
  }
}

Status RateControl::find(Span<const BucketTensor> tensors, Scratch& scratch, Plan* plans,
                         Quantized* alone, Counted* last) const {
  std::vector<Candidate> candidates;
  std::vector<std::size_t> of;  // which tensor each of them is
  double elements = 0;
  double fixed = 0;  // bytes that do not depend on the step, frames included
  double squares = 0;
  float largest = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t n = tensors[i].x.size();
    elements += static_cast<double>(n);
    fixed += static_cast<double>(kFrameHeader + 4);
    plans[i] = Plan{};
    if (n < kMinAdaptive) {
      fixed += 4 * static_cast<double>(n);
      continue;
    }
    const std::uint32_t bits = kernels().max_magnitude(tensors[i].x.data(), n);
    if (bits >= kInfBits) plans[i].step = std::numeric_limits<float>::quiet_NaN();
    if (bits >= kInfBits || bits_float(bits) < kSmallest) {
      fixed += 1;
      continue;
    }
    largest = std::max(largest, bits_float(bits));
    squares += kernels().sum_squares(tensors[i].x.data(), n);
    candidates.emplace_back(tensors[i].x.data(), Shape2::of(n, tensors[i].cols));
    of.push_back(i);
  }
  if (candidates.empty()) return {};
  const double asked = rate_ * elements / 8;
  const double target = std::max({asked - fixed, asked / 2, kLeastBytes});
  // So that no magnitude is beyond those that can be coded.
  const double least = std::max(static_cast<double>(largest) / (kMaxLevel - 2), 0x1p-100);
  const bool ranked = largest <= kLargest && largest >= 1 / kLargest;

  // By samples: rank and first step.
  std::size_t longest = 0;
  bool may_have_rank = false;
  for (Candidate& one : candidates) {
    const Shape2& shape = one.whole.shape();
    const std::size_t rank = ranked ? max_rank(shape) : 0;
    if (shape.cols > kLongRow && (rank == 0 || rank_ == kAuto)) {
      take_runs(one.whole.rest(), shape.size(), &one.basis);
    } else {
      GRADCOMP_TRY(
          find_basis(one.whole.rest(), shape.rows, shape.cols, rank, kSample, scratch, &one.basis));
    }
    may_have_rank = may_have_rank || one.basis.rank != 0;
    const std::size_t taken = one.basis.x.size();
    one.scale = static_cast<double>(shape.size()) / static_cast<double>(taken);
    one.choice.sample = Quantized(one.basis.test().data(), {one.basis.rows, one.basis.cols});
    one.symbols.resize(taken);
    longest = std::max(longest, shape.size());
  }
  const auto sampled = [&](float step) {
    double sum = 0;
    for (Candidate& one : candidates) sum += one.bytes(step);
    return sum;
  };
  // Infinite where that takes too many bytes: those of the factors alone may.
  const auto error = [&](float step) {
    double sum =
        sampled(step) > (1 + kTolerance) * target ? std::numeric_limits<double>::infinity() : 0;
    for (const Candidate& one : candidates) sum += one.error(step);
    return sum;
  };
  float step = find_step(std::sqrt(squares / elements), least, target, 0.05, 8, sampled).step;
  if (may_have_rank) {
    // Which ranks pay depends on the step, and the other way round: several are tried.
    double least_error = rank_ == kAuto ? error(step) : std::numeric_limits<double>::infinity();
    std::vector<Choice> best(candidates.size());
    for (std::size_t i = 0; i < best.size(); ++i) best[i] = candidates[i].choice;
    float trial = step;
    bool first = true;
    for (int round = 0; round < kRounds; ++round) {
      for (Candidate& one : candidates) choose_rank(&one, ranks(one, first), trial);
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
    for (std::size_t i = 0; i < best.size(); ++i) candidates[i].choice = std::move(best[i]);
  }

  // The whole tensors.
  const Span<std::uint8_t> symbols = scratch.get<std::uint8_t>(kSymbolSlot, longest);
  if (symbols.empty()) return capacity_error("out of memory while encoding");
  std::uint8_t groups = 0;
  double left = 0;  // with `points`: the squared error of the last step that was tried
  const auto bytes = [&](float trial) {
    double total = 0;
    left = 0;
    for (const Candidate& one : candidates) {
      const Counted counted = one.whole.quantize(trial, symbols.data());
      if (points_) {
        const GroupCoder coder(one.whole, counted, symbols.data(), groups);
        total += coder.bytes();
        left += coder.error() * static_cast<double>(trial) * static_cast<double>(trial);
      } else {
        AdaptiveTables tables;
        total += one.whole.finish(counted, &tables);
      }
      if (last != nullptr) *last = counted;
    }
    return total;
  };
  Found found{step, 0};
  for (int attempt = 0; attempt <= kMaxCoarser; ++attempt) {
    bool any = false;
    for (Candidate& one : candidates) {
      if (attempt != 0) {
        one.choice.factor_step =
            short_float(static_cast<double>(one.choice.factor_step * kCoarser));
      }
      any = any || one.choice.rank != 0;
      GRADCOMP_TRY(one.whole.take_out(one.basis, one.choice.rank, one.choice.factor_step));
    }
    found = find_step(static_cast<double>(step), least, target, kTolerance, kMaxPasses, bytes);
    if (!any || found.value <= (1 + kTolerance) * target) break;
  }
  if (points_) {
    // So far without points. With them the step becomes smaller, for less error.
    bytes(found.step);
    const Found levels = found;
    const auto cost = [&] {
      const auto squared = static_cast<double>(levels.step) * static_cast<double>(levels.step);
      return left + 8 * kBitWorth * squared * found.value;
    };
    const auto missed = [&] { return std::fabs(found.value / target - 1) > kTolerance; };
    const double without = cost();
    groups = kAllGroups;
    found =
        find_step(static_cast<double>(levels.step), least, target, kTolerance, kMaxPasses, bytes);
    if (found.too_low > 0 && missed()) {
      // Many groups change from levels to points at once: then only some of them do.
      found.step = found.too_low;
      for (int fewest = 1, most = kAllGroups; fewest < most && missed();) {
        groups = static_cast<std::uint8_t>((fewest + most) / 2);
        found.value = bytes(found.step);
        (found.value < target ? fewest : most) = groups + (found.value < target ? 1 : 0);
      }
    }
    if (missed() || cost() > without) {
      found = levels;
      groups = 0;
    }
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Choice& choice = candidates[i].choice;
    plans[of[i]] = {found.step, choice.factor_step, static_cast<std::uint8_t>(choice.rank), groups};
  }
  if (alone != nullptr) *alone = std::move(candidates.front().whole);
  return {};
}

}  // namespace gradcomp
