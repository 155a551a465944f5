#include "codecs/adaptive/candidate.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/bytes.hpp"
#include "codecs/adaptive/payload.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Elements of a sample, about.
constexpr std::size_t kSample = std::size_t{1} << 15;

// Of tensors with longer rows, mostly vectors, the sample is so many runs of elements, which have
// no low-rank part.
constexpr std::size_t kLongRow = std::size_t{1} << 16;
constexpr std::size_t kRuns = 16;

// The bytes of the rest are estimated from one in so many of a tensor's rows, but from kFewestRows
// or more, as the contexts of the first rows know little.
constexpr std::size_t kRowsApart = 8;
constexpr std::size_t kFewestRows = 16;

constexpr std::size_t kRanks[] = {0, 1, 2, 4, 8, 16};

// CarriedState::kRankPeriod of a tensor with a learned basis, and where it is sent as seen from it.
constexpr std::size_t kLearningPeriod = 4;
constexpr std::size_t kTurnedPeriod = 8;

// Evenly spaced runs of n elements, as a single row, in `room`.
void take_runs(const float* x, std::size_t n, float* room, SampledRows* sampled) {
  constexpr std::size_t kEach = kSample / kRuns;
  sampled->rows = 1;
  sampled->cols = kSample;
  sampled->others = {};
  sampled->x = {room, kSample};
  for (std::size_t run = 0; run < kRuns; ++run) {
    const float* const from = x + run * (n - kEach) / (kRuns - 1);
    std::copy(from, from + kEach, room + run * kEach);
  }
}

}  // namespace

std::size_t SearchOptions::max_rank(const MatrixShape& shape) const {
  const std::size_t most = std::min(shape.rows, shape.cols) / 2;
  return std::min(most, rank == kAuto ? kMaxAdaptiveRank : static_cast<std::size_t>(rank));
}

std::size_t Candidate::period() const {
  if (tensor->basis.empty()) return CarriedState::kRankPeriod;
  return turned ? kTurnedPeriod : kLearningPeriod;
}

std::size_t Candidate::wanted() const {
  // The first rows of a turned matrix are those of the learned directions and unlike all others, so
  // all rows are taken.
  return plan->quantized.turned() ? shape().size() : kSample;
}

std::size_t Candidate::room() const {
  const std::size_t taken = sampled_rows(shape().rows, shape().cols, wanted());
  const std::size_t copied = taken < shape().rows ? 2 * taken : 0;
  const std::size_t runs = shape().cols > kLongRow ? kSample : 0;
  return runs + (copied + rest_rows(taken)) * shape().cols;
}

std::size_t Candidate::rest_rows(std::size_t taken) const {
  // All rows of a turned matrix are needed, see wanted().
  if (plan->quantized.turned() || taken <= kFewestRows) return 0;
  return std::min(taken, std::max(kFewestRows, shape().rows / kRowsApart));
}

Status Candidate::take_sample(std::size_t rank, Start start, bool judged) {
  const float* const x = plan->quantized.x();
  if (shape().cols > kLongRow && (rank == 0 || options->rank == SearchOptions::kAuto)) {
    take_runs(x, shape().size(), sample_room, &rows);
  } else {
    const Sampling sampling{wanted(), rank, start, judged, sample_room};
    GRADCOMP_TRY(sample_rows(x, shape().rows, shape().cols, sampling, thread_scratch(), &rows));
  }
  const std::size_t taken = rows.x.size();
  scale = sample_scale = static_cast<double>(shape().size()) / static_cast<double>(taken);
  sample = Quantized(rows.test(), {rows.rows, rows.cols});
  symbols.resize(taken);
  return {};
}

std::vector<std::size_t> Candidate::ranks(bool all) const {
  const std::size_t most = rows.rank;
  if (options->rank != SearchOptions::kAuto) return {most};
  std::vector<std::size_t> found;
  for (const std::size_t rank : kRanks) {
    if (rank > most) break;
    const std::size_t now = choice.rank;
    if (all || (rank >= now / 2 && rank <= std::max<std::size_t>(1, 2 * now))) {
      found.push_back(rank);
    }
  }
  return found;
}

double Candidate::choose_rank(bool all, float step) {
  const MatrixShape sample_shape{rows.rows, rows.cols};
  const float factor_step = short_float(static_cast<double>(step));
  double least = std::numeric_limits<double>::infinity();
  double before = std::numeric_limits<double>::infinity();
  int worse = 0;  // ranks in a row that cost more than the one before
  for (const std::size_t rank : ranks(all)) {
    if (worse == 2) break;
    Quantized trial(rows.test(), sample_shape);
    std::vector<float> trial_rest(rank == 0 ? 0 : sample_shape.size());
    trial.take_out(rows, rank, factor_step, trial_rest.data());
    // Bits of the factors. P of the whole tensor has `scale` times as many numbers as P of the
    // sample.
    double factors = 8 * static_cast<double>(factor_fields(rank));
    std::vector<std::uint8_t> of_factors;
    const LowRank& low_rank = trial.low_rank();
    for (const SymbolMatrix& matrix : trial.factor_symbols(&of_factors)) {
      std::uint64_t counts[kSymbols] = {};
      add_counts(matrix.symbols, matrix.size(), counts);
      const bool is_p = matrix.x == low_rank.p.high.data();
      const double low = static_cast<double>((is_p ? low_rank.p : low_rank.v).low_bits());
      factors += (is_p ? scale : 1) *
                 (FrequencyTables::best(counts).bits(counts) + few_excesses(counts) + low);
    }
    const double bits = sample_bits(trial, step);
    const double error = error_of(trial.rest(), symbols.data(), sample_shape.size(), step);
    const double cost = scale * (error + kBitWorth * bits) + kBitWorth * factors;
    worse = cost < before ? 0 : worse + 1;
    before = std::min(before, cost);
    if (cost >= least) continue;
    least = cost;
    choice = {rank, factor_step};
    factor_bytes = factors / 8;
    rest = std::move(trial_rest);
    sample = std::move(trial);
  }
  return least;
}

Status Candidate::compare_turned(double cost, float step) {
  if (learned.rank == 0) return {};
  std::vector<float> buffer;
  TensorPlan other_plan;
  Candidate other{options, &other_plan, tensor, largest, energy, learned};
  other.turned = !turned;
  other_plan.quantized = Quantized(tensor->x.data(), shape());
  if (other.turned) {
    buffer.resize(shape().size());
    if (other.turn_to(buffer.data(), &other_plan) == 0) return {};
  }
  std::vector<float> samples(other.room());
  other.sample_room = samples.data();
  GRADCOMP_TRY(other.take_sample(options->max_rank(shape()), Start::kRowSums, true));
  if (other.choose_rank(true, step) >= cost) return {};
  turned = other.turned;
  choice = other.choice;
  return {};
}

float Candidate::turn_to(float* out, TensorPlan* to) const {
  std::copy(tensor->x.begin(), tensor->x.end(), out);
  turn(learned, out);
  const std::uint32_t largest = kernels().max_magnitude(out, tensor->x.size());
  if (largest >= kInfBits) return 0;
  to->quantized = Quantized(out, shape(), true);
  to->basis = learned.check;
  return bits_float(largest);
}

void Candidate::take_out(float* rest_out, std::uint8_t* symbols_out, std::uint8_t* packed_out) {
  plan->symbols = symbols_out;
  plan->zero_groups.packed = packed_out;
  plan->counted = {};
  plan->quantized.take_out(rows, choice.rank, choice.factor_step, rest_out);
  if (!tensor->carried.empty()) sample_rest();
}

void Candidate::sample_rest() {
  factor_bytes = plan->quantized.factor_bytes();
  MatrixShape taken{rows.rows, rows.cols};
  const float* from = plan->quantized.rest();
  if (rows.cols != shape().cols) {
    from = rows.test();  // runs of a long row, which has no low-rank part
  } else if (const std::size_t few = rest_rows(rows.rows); few != 0) {
    taken.rows = few;
    // Past the copies of take_sample().
    float* const to = sample_room + (rows.rows < shape().rows ? 2 * rows.rows * rows.cols : 0);
    take_rows(from, shape().rows, shape().cols, few, 1, to);
    from = to;
  }
  sample = Quantized(from, taken);
  sample_scale = static_cast<double>(shape().size()) / static_cast<double>(taken.size());
}

double Candidate::sample_bits(const Quantized& of, float step) {
  const SymbolCounts counted = of.quantize(step, symbols.data());
  zero_levels = of.zero_levels(counted);
  return FrequencyTables::best(counted.counts).bits(counted.counts) + counted.excess;
}

double Candidate::sample_bytes(float step) {
  return sample_scale * sample_bits(sample, step) / 8 + factor_bytes;
}

double Candidate::sample_error(float step) const {
  return sample_scale * static_cast<double>(step) * static_cast<double>(step) *
         error_of(sample.rest(), symbols.data(), sample.shape().size(), step);
}

double Candidate::error(float step) const {
  const std::size_t bands = shape().bands();
  std::vector<double> errors(bands);
  shape().for_bands([&](std::size_t b) {
    const std::size_t at = shape().band_begin(b) * shape().cols;
    const std::size_t count = shape().rows_of_band(b) * shape().cols;
    errors[b] = error_of(plan->quantized.rest() + at, plan->symbols + at, count, step);
  });
  const double sum = std::accumulate(errors.begin(), errors.end(), 0.0);
  return static_cast<double>(step) * static_cast<double>(step) * sum;
}

double Candidate::bytes(float step) {
  plan->quantize(step);
  zero_levels = plan->quantized.zero_levels(plan->counted);
  FrequencyTables tables;
  FlagTable flags;
  const double bytes = plan->quantized.finish(plan->counted, &tables, &flags);
  // With coder=polar a byte says that there are no points.
  return options->points && bytes != 1 ? bytes + 1 : bytes;
}

}  // namespace gradcomp
