// Successive cancellation: Arikan, "Channel Polarization", IEEE Trans. Inf. Theory 55(7), 2009,
// section VIII, with LLRs. A channel decoder; on bits of a source it is the lossy compressor of
// Korada, Urbanke, "Polar Codes are Optimal for Lossy Source Coding", IEEE Trans. Inf. Theory
// 56(4), 2010. Frozen bits are 0.
#pragma once

#include "base/span.hpp"
#include "polar/construction.hpp"

namespace gradcomp::polar_code {

struct DecodeOptions {
  bool min_sum = false;     // approximate the check-node rule
  bool systematic = false;  // messages are read from the codeword, not from the transform's input
};

// llrs: [blocks, N], ln P(0) / P(1), limited to +-1e30; NaN is an error. messages: [blocks, K].
// decision_llrs: [blocks, mother], or empty: the LLR of each decision.
Status sc_decode(const Code& code, Span<const double> llrs, const DecodeOptions& options,
                 Span<std::uint8_t> messages, Span<double> decision_llrs);

enum class Rounding { kDeterministic, kSeeded, kGiven };

struct CompressOptions {
  double llr = 1;            // LLR magnitude of a source bit; at least 0
  double shortened_llr = 1;  // LLR magnitude of a shortened position, whose bit is always 0
  bool min_sum = false;
  Rounding rounding = Rounding::kDeterministic;
  std::uint64_t seed = 0;       // kSeeded: draws of block b are those of stream (seed, b, 0)
  Span<const double> uniforms;  // kGiven: [blocks, K] in decision order
};

// source: [blocks, N] bits of one byte each. A message bit is 1 if the LLR is negative; with
// randomised rounding, it is 1 with probability 1 / (1 + e^L).
Status sc_compress(const Code& code, Span<const std::uint8_t> source,
                   const CompressOptions& options, Span<std::uint8_t> messages,
                   Span<double> decision_llrs);

}  // namespace gradcomp::polar_code
