#include "polar/construction.hpp"

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>

#include "base/rng.hpp"
#include "polar/boxplus.hpp"
#include "polar/uniform.hpp"

namespace gradcomp::polar_code {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Applies one polarisation step after the other, in the order of successive cancellation:
// neighbours first.
template <typename T, typename Worse, typename Better>
void polarise(std::vector<T>* values, const Worse& worse, const Better& better) {
  T* const x = values->data();
  for (std::size_t half = 1; half < values->size(); half *= 2) {
    for (std::size_t block = 0; block < values->size(); block += 2 * half) {
      for (std::size_t i = block; i < block + half; ++i) {
        const T a = x[i], b = x[i + half];
        x[i] = worse(a, b);
        x[i + half] = better(a, b);
      }
    }
  }
}

template <typename T>
std::vector<T> channels(const Code& code, T shortened, T transmitted) {
  std::vector<T> values(code.mother(), shortened);
  for (std::uint32_t i : code.kept) values[i] = transmitted;
  return values;
}

// Es/N0 of a code symbol.
double symbol_snr(const Code& code, const Design& design) {
  return std::pow(10.0, design.snr_db / 10) * static_cast<double>(code.message) /
         static_cast<double>(code.length);
}

// Erasure probabilities in units of 2^-63: the same on every machine.
std::vector<std::uint64_t> erasure_probabilities(const Code& code) {
  const auto erased = static_cast<std::uint64_t>((Uint128{code.length - code.message} << 63) /
                                                 std::max<std::size_t>(code.length, 1));
  std::vector<std::uint64_t> z = channels<std::uint64_t>(code, 0, erased);
  const auto product = [](std::uint64_t a, std::uint64_t b) {
    return static_cast<std::uint64_t>((Uint128{a} * b) >> 63);
  };
  polarise(&z, [&](std::uint64_t a, std::uint64_t b) { return a + (b - product(a, b)); }, product);
  return z;
}

// ln z. All mother positions count as transmitted, and the logarithm of the sum is computed as in
// mcba1n/polar-codes, so that the sets agree. Digits are lost near ln z = 0.
std::vector<double> log_bhattacharyya(const Code& code, const Design& design) {
  std::vector<double> z(code.mother(), -symbol_snr(code, design));
  polarise(
      &z,
      [](double a, double b) {
        const double high = std::max(a, b), low = std::min(a, b);
        const double sum = high + std::log(1 + std::exp(low - high));
        return sum + std::log(1 - std::exp(a + b - sum));
      },
      [](double a, double b) { return a + b; });
  return z;
}

// ln phi(x) of Chung, Richardson, Urbanke, "Analysis of Sum-Product Decoding of LDPC Codes Using a
// Gaussian Approximation", IEEE Trans. Inf. Theory 47(2), 2001, eq. (9) and the bounds of Lemma 1,
// with the polynomial of Ha, Kim, McLaughlin, "Rate-Compatible Puncturing of LDPC Codes", IEEE
// Trans. Inf. Theory 50(11), 2004, for small x. Beyond 10 the smaller of two curves, so that it
// never jumps.
constexpr double kSmallX = 0.867861, kLargeX = 10;

double middle_curve(double x) { return 0.0218 - 0.4527 * std::pow(x, 0.86); }
double large_curve(double x) {
  return 0.5 * std::log(kPi / x) + std::log(1 - 10 / (7 * x)) - x / 4;
}

double log_phi(double x) {
  if (x < kSmallX) return (0.0564 * x - 0.4856) * x;
  const double middle = middle_curve(x);
  return x < kLargeX ? middle : std::min(middle, large_curve(x));
}

double inverse_log_phi(double y) {
  if (y > log_phi(kSmallX)) {
    return (0.4856 - std::sqrt(0.4856 * 0.4856 + 4 * 0.0564 * y)) / (2 * 0.0564);
  }
  const double middle = std::pow((0.0218 - y) / 0.4527, 1 / 0.86);
  if (middle < kLargeX) return middle;
  double x = std::max(kLargeX, -4 * y);  // Newton's method on a nearly straight line
  for (int i = 0; i < 12; ++i) {
    const double slope = -0.5 / x + 10 / (x * (7 * x - 10)) - 0.25;
    x = std::max(kLargeX, x - (large_curve(x) - y) / slope);
  }
  return std::min(middle, x);
}

// Mean LLRs, assuming that every LLR is Gaussian; Trifonov, "Efficient Design and Decoding of Polar
// Codes", IEEE Trans. Commun. 60(11), 2012, section III.
std::vector<double> mean_llrs(const Code& code, const Design& design) {
  std::vector<double> mean = channels<double>(code, kCertain, 4 * symbol_snr(code, design));
  polarise(
      &mean,
      [](double a, double b) {
        const double least = std::min(a, b), most = std::max(a, b);
        if (most >= kCertain || least <= 0) return least;
        const double high = log_phi(least), low = log_phi(most);
        // phi = 1 - (1 - phi_a)(1 - phi_b)
        return inverse_log_phi(
            std::min(0.0, high + std::log1p(-std::exp(low - high) * std::expm1(high))));
      },
      [](double a, double b) { return std::min(kCertain, a + b); });
  return mean;
}

// Two Gaussian numbers by the method of Box and Muller.
void gaussian_pair(Stream* stream, double* first, double* second) {
  const double radius = std::sqrt(-2 * std::log(unit_interval(stream->next())));
  const double angle = 2 * kPi * unit_interval(stream->next());
  *first = radius * std::cos(angle);
  *second = radius * std::sin(angle);
}

// Probability that a decision is wrong if all before it are right: the mean of 1 / (1 + e^|L|) over
// transmissions of the zero word. The channel is symmetric, so the zero word stands for all words.
// Counting errors would need many more trials.
std::vector<double> error_probabilities(const Code& code, const Design& design) {
  const double mean = 4 * symbol_snr(code, design), deviation = std::sqrt(2 * mean);
  std::vector<double> errors(code.mother(), 0.0), llr;
  for (std::uint32_t trial = 0; trial < design.trials; ++trial) {
    Stream stream(derive_stream(design.seed, trial, 0));
    llr.assign(code.mother(), kCertain);
    double spare = 0;
    for (std::size_t i = 0; i < code.length; ++i) {
      double noise = spare;
      if (i % 2 == 0) gaussian_pair(&stream, &noise, &spare);
      llr[code.kept[i]] = mean + deviation * noise;
    }
    polarise(&llr, &ExactRule::combine, [](double a, double b) { return a + b; });
    for (std::size_t i = 0; i < llr.size(); ++i) errors[i] += 1 / (1 + std::exp(std::fabs(llr[i])));
  }
  for (double& error : errors) error /= design.trials;
  return errors;
}

// Fills `reliability`; returns the positions, most reliable first.
std::vector<std::uint32_t> rank_positions(const Design& design, Code* code) {
  std::vector<double>& value = code->reliability;
  const auto less = [&](std::uint32_t a, std::uint32_t b) { return value[a] < value[b]; };
  const auto greater = [&](std::uint32_t a, std::uint32_t b) { return value[a] > value[b]; };
  std::vector<std::uint32_t> order(code->mother());
  // Of equally reliable positions, later decisions know more ...
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[order.size() - 1 - i] = static_cast<std::uint32_t>(reverse_bits(i, code->log2));
  }
  switch (design.construction) {
    case Construction::kBec: {
      const std::vector<std::uint64_t> erased = erasure_probabilities(*code);
      for (std::uint64_t z : erased) value.push_back(static_cast<double>(z) * 0x1p-63);
      std::stable_sort(order.begin(), order.end(),
                       [&](std::uint32_t a, std::uint32_t b) { return erased[a] < erased[b]; });
      break;
    }
    case Construction::kBhattacharyya:
      value = log_bhattacharyya(*code, design);
      std::iota(order.begin(), order.end(), 0u);  // ... but not in the code that it reproduces
      std::stable_sort(order.begin(), order.end(), less);
      break;
    case Construction::kGaussian:
      value = mean_llrs(*code, design);
      std::stable_sort(order.begin(), order.end(), greater);
      break;
    case Construction::kMonteCarlo:
      value = error_probabilities(*code, design);
      std::stable_sort(order.begin(), order.end(), less);
      break;
  }
  return order;
}

Status check(std::size_t length, std::size_t message, const Design& design) {
  if (length < 1 || length > std::size_t{1} << kMaxLog2) {
    return argument_error("N is " + std::to_string(length) +
                          "; it must be from 1 to 1048576: split longer data into blocks");
  }
  if (message > length) {
    return argument_error("K is " + std::to_string(message) + "; it must be from 0 to N = " +
                          std::to_string(length) + ", as K/N is the rate");
  }
  if (!(design.snr_db >= -50 && design.snr_db <= 50)) {
    return argument_error("design_snr_db is " + std::to_string(design.snr_db) +
                          "; it must be from -50 to 50 decibels, such as 5.0");
  }
  if (design.trials < 1 || design.trials > 1000000) {
    return argument_error("trials is " + std::to_string(design.trials) +
                          "; it must be from 1 to 1000000, such as 1000");
  }
  return {};
}

void build(const Design& design, Code* code) {
  while (code->mother() < code->length) ++code->log2;
  const std::size_t mother = code->mother();
  // Bit-reversal shortening: the last decisions are frozen, and their positions are then 0 in every
  // codeword. Niu, Chen, Lin, "Beyond Turbo Codes: Rate-Compatible Punctured Polar Codes", ICC
  // 2013, for the order; Wang, Liu, "A Novel Puncturing Scheme for Polar Codes", 2014, for
  // shortening.
  std::vector<std::uint8_t> shortened(mother, 0);
  for (std::size_t i = code->length; i < mother; ++i) shortened[reverse_bits(i, code->log2)] = 1;
  for (std::size_t i = 0; i < mother; ++i) {
    if (shortened[i] == 0) code->kept.push_back(static_cast<std::uint32_t>(i));
  }
  std::vector<std::uint32_t> last;
  for (std::uint32_t i : rank_positions(design, code)) {
    if (shortened[i] != 0) {
      last.push_back(i);
    } else if (code->information.size() < code->message) {
      code->information.push_back(i);
    } else {
      code->frozen.push_back(i);
    }
  }
  std::sort(code->information.begin(), code->information.end());
  code->frozen.insert(code->frozen.end(), last.begin(), last.end());
  code->informative.assign(mother + 1, 0);
  for (std::uint32_t i : code->information) code->informative[reverse_bits(i, code->log2) + 1] = 1;
  std::partial_sum(code->informative.begin(), code->informative.end(), code->informative.begin());
}

}  // namespace

Status make_code(std::size_t length, std::size_t message, const Design& design, Code* code) {
  GRADCOMP_TRY(check(length, message, design));
  try {
    *code = Code();
    code->length = length;
    code->message = message;
    build(design, code);
  } catch (const std::bad_alloc&) {
    return capacity_error("memory ran out");
  }
  return {};
}

}  // namespace gradcomp::polar_code
