// Construction of polar codes: the choice of the positions that carry information. A code of any
// length is a mother code of the next power of two, shortened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "polar/transform.hpp"

namespace gradcomp::polar_code {

enum class Construction {
  kBec,            // erasure recursion in fixed point, erasure probability 1 - K/N
  kBhattacharyya,  // bound on the AWGN channel, in the logarithmic domain
  kGaussian,       // Gaussian approximation of density evolution, AWGN channel
  kMonteCarlo,     // genie-aided successive cancellation, AWGN channel
};

// Indices below are natural: element i of the transform's input and output. Decisions are made in
// bit-reversed order, reverse_bits(0), reverse_bits(1), ...
struct Code {
  std::size_t length = 0;                  // N
  std::size_t message = 0;                 // K
  unsigned log2 = 0;                       // of the mother code's length
  std::vector<std::uint32_t> kept;         // N positions that are transmitted, ascending
  std::vector<std::uint32_t> information;  // K of the kept ones, ascending
  std::vector<std::uint32_t> frozen;       // the others, most reliable first, shortened ones last
  std::vector<double> reliability;         // of each position; its meaning depends on Construction
  // Number of information positions among the first i in decision order; mother length + 1 entries.
  std::vector<std::uint32_t> informative;

  std::size_t mother() const noexcept { return std::size_t{1} << log2; }
  bool any_information(std::size_t begin, std::size_t end) const noexcept {
    return informative[begin] != informative[end];
  }
};

struct Design {
  Construction construction = Construction::kBec;
  double snr_db = 5;            // design Eb/N0 of all constructions except kBec
  std::uint64_t seed = 0;       // of kMonteCarlo
  std::uint32_t trials = 1000;  // of kMonteCarlo
};

// 1 <= length <= 2^20, message <= length, -50 <= snr_db <= 50, 1 <= trials <= 10^6.
Status make_code(std::size_t length, std::size_t message, const Design& design, Code* code);

}  // namespace gradcomp::polar_code
