#include "polar/sc_decoder.hpp"

#include <cmath>
#include <cstring>

#include "base/rng.hpp"
#include "polar/blocks.hpp"
#include "polar/boxplus.hpp"
#include "polar/encoder.hpp"
#include "polar/llrs.hpp"
#include "polar/uniform.hpp"

namespace gradcomp::polar_code {
namespace {

// Decisions for one block; all arrays are in decision order.
class ScDecoder {
 public:
  explicit ScDecoder(const Code& code)
      : code_(&code), llrs_(2 * code.mother()), inputs_(code.mother()), outputs_(code.mother()) {}

  double* channel() { return level(code_->log2); }
  const std::vector<std::uint8_t>& inputs() const { return inputs_; }
  const std::vector<std::uint8_t>& outputs() const { return outputs_; }

  // decide(llr) is called for information positions. seen: receives the LLR of every decision at
  // its natural index, or null.
  template <typename Rule, typename Decide>
  void run(Decide& decide, double* seen) {
    seen_ = seen;
    node<Rule>(code_->log2, 0, decide);
  }

 private:
  double* level(unsigned log2) { return &llrs_[std::size_t{1} << log2]; }

  template <typename Rule, typename Decide>
  void node(unsigned log2, std::size_t begin, Decide& decide) {
    const std::size_t size = std::size_t{1} << log2;
    const bool informative = code_->any_information(begin, begin + size);
    if (!informative && seen_ == nullptr) {
      std::memset(&inputs_[begin], 0, size);
      std::memset(&outputs_[begin], 0, size);
      return;
    }
    if (log2 == 0) {
      const double llr = *level(0);
      if (seen_ != nullptr) seen_[reverse_bits(begin, code_->log2)] = llr;
      inputs_[begin] = informative && decide(llr);
      outputs_[begin] = inputs_[begin];
      return;
    }
    const std::size_t half = size / 2;
    const double* const a = level(log2);
    const double* const b = a + half;
    double* const child = level(log2 - 1);
    std::uint8_t* const left = &outputs_[begin];
    const std::uint8_t* const right = left + half;
    for (std::size_t i = 0; i < half; ++i) child[i] = Rule::combine(a[i], b[i]);
    node<Rule>(log2 - 1, begin, decide);
    for (std::size_t i = 0; i < half; ++i) child[i] = left[i] != 0 ? b[i] - a[i] : b[i] + a[i];
    node<Rule>(log2 - 1, begin + half, decide);
    for (std::size_t i = 0; i < half; ++i) left[i] ^= right[i];
  }

  const Code* code_;
  std::vector<double> llrs_;  // level l in [2^l, 2^(l+1))
  std::vector<std::uint8_t> inputs_, outputs_;
  double* seen_ = nullptr;
};

void store_message(const Code& code, const std::vector<std::uint8_t>& bits,
                   std::uint8_t* message) noexcept {
  for (std::size_t i = 0; i < code.message; ++i) {
    message[i] = bits[reverse_bits(code.information[i], code.log2)];
  }
}

double* row(Span<double> rows, std::size_t block, std::size_t width) noexcept {
  return rows.empty() ? nullptr : rows.data() + block * width;
}

struct HardDecision {
  bool operator()(double llr) const noexcept { return llr < 0; }
};

template <typename NextUniform>
struct RandomDecision {
  NextUniform next;
  bool operator()(double llr) noexcept { return next() <= 1 / (1 + std::exp(llr)); }
};

template <typename NextUniform>
RandomDecision<NextUniform> random_decision(NextUniform next) {
  return {next};
}

Status check_rows(const Code& code, std::size_t blocks, std::size_t source, std::size_t messages,
                  std::size_t seen) {
  if (source == blocks * code.length && messages == blocks * code.message &&
      (seen == 0 || seen == blocks * code.mother())) {
    return {};
  }
  return argument_error("the arrays do not hold the same number of blocks");
}

template <typename Rule>
Status decode_with(const Code& code, Span<const double> llrs, bool systematic,
                   Span<std::uint8_t> messages, Span<double> seen) {
  return for_blocks(llrs.size() / code.length, [&] {
    return [&, decoder = ScDecoder(code)](std::size_t block) mutable {
      load_channel(code, llrs.data() + block * code.length, decoder.channel());
      HardDecision decide;
      decoder.run<Rule>(decide, row(seen, block, code.mother()));
      store_message(code, systematic ? decoder.outputs() : decoder.inputs(),
                    messages.data() + block * code.message);
    };
  });
}

template <typename Rule>
Status compress_with(const Code& code, Span<const std::uint8_t> source,
                     const CompressOptions& options, Span<std::uint8_t> messages,
                     Span<double> seen) {
  return for_blocks(source.size() / code.length, [&] {
    return [&, decoder = ScDecoder(code)](std::size_t block) mutable {
      double* const channel = decoder.channel();
      std::fill(channel, channel + code.mother(), options.shortened_llr);
      const std::uint8_t* const bits = source.data() + block * code.length;
      for (std::size_t i = 0; i < code.length; ++i) {
        channel[reverse_bits(code.kept[i], code.log2)] = bits[i] != 0 ? -options.llr : options.llr;
      }
      double* const to = row(seen, block, code.mother());
      switch (options.rounding) {
        case Rounding::kDeterministic: {
          HardDecision decide;
          decoder.run<Rule>(decide, to);
          break;
        }
        case Rounding::kSeeded: {
          Stream stream(derive_stream(options.seed, block, 0));
          auto decide = random_decision([&stream] { return unit_interval(stream.next()); });
          decoder.run<Rule>(decide, to);
          break;
        }
        case Rounding::kGiven: {
          auto decide =
              random_decision([next = options.uniforms.data() + block * code.message]() mutable {
                return *next++;
              });
          decoder.run<Rule>(decide, to);
          break;
        }
      }
      store_message(code, decoder.inputs(), messages.data() + block * code.message);
    };
  });
}

}  // namespace

Status sc_decode(const Code& code, Span<const double> llrs, const DecodeOptions& options,
                 Span<std::uint8_t> messages, Span<double> decision_llrs) {
  GRADCOMP_TRY(check_rows(code, llrs.size() / code.length, llrs.size(), messages.size(),
                          decision_llrs.size()));
  GRADCOMP_TRY(check_llrs(llrs));
  return options.min_sum
             ? decode_with<MinSumRule>(code, llrs, options.systematic, messages, decision_llrs)
             : decode_with<ExactRule>(code, llrs, options.systematic, messages, decision_llrs);
}

Status sc_compress(const Code& code, Span<const std::uint8_t> source,
                   const CompressOptions& options, Span<std::uint8_t> messages,
                   Span<double> decision_llrs) {
  GRADCOMP_TRY(check_rows(code, source.size() / code.length, source.size(), messages.size(),
                          decision_llrs.size()));
  if (options.rounding == Rounding::kGiven && options.uniforms.size() != messages.size()) {
    return argument_error("there are " + std::to_string(options.uniforms.size()) +
                          " uniforms; there must be one for each of the " +
                          std::to_string(messages.size()) + " message bits");
  }
  GRADCOMP_TRY(check_bits(source));
  return options.min_sum ? compress_with<MinSumRule>(code, source, options, messages, decision_llrs)
                         : compress_with<ExactRule>(code, source, options, messages, decision_llrs);
}

}  // namespace gradcomp::polar_code
