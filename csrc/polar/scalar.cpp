#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/polar.hpp"
#include "polar/lattice.hpp"
#include "polar/quantize.hpp"

namespace gradcomp {
namespace {

int limited(int llr) { return std::min(std::max(llr, -127), 127); }

float quantize(const float* x, const std::uint64_t* mask, float scale, std::int8_t* llr,
               std::size_t n) {
  float partial[16] = {};
  return finish_quantize(x, mask, scale, llr, 0, n, partial);
}

void check(const std::int8_t* llr, std::int8_t* out, std::size_t count) {
  for (std::size_t i = 0; i < kLanes * count; ++i) {
    const int a = llr[i];
    const int b = llr[kLanes * count + i];
    out[i] = static_cast<std::int8_t>(std::max(std::min(a, b), -std::max(a, b)));
  }
}

void add(const std::int8_t* llr, const std::uint64_t* bits, std::int8_t* out, std::size_t count) {
  for (std::size_t i = 0; i < kLanes * count; ++i) {
    const int a = llr[i];
    const int b = llr[kLanes * count + i];
    const bool set = (bits[i / kLanes] >> (i % kLanes) & 1) != 0;
    out[i] = static_cast<std::int8_t>(limited(set ? b - a : b + a));
  }
}

void add_frozen(const std::int8_t* llr, std::int8_t* out, std::size_t count) {
  for (std::size_t i = 0; i < kLanes * count; ++i) {
    out[i] = static_cast<std::int8_t>(limited(llr[i] + llr[kLanes * count + i]));
  }
}

void decide(const std::int8_t* llr, std::uint64_t* bits, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t word = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      word |= std::uint64_t{llr[kLanes * i + lane] < 0} << lane;
    }
    bits[i] = word;
  }
}

void decide_repetition(const std::int8_t* llr, std::uint64_t* bits, std::size_t count) {
  std::uint64_t word = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    int sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += llr[kLanes * i + lane];
    word |= std::uint64_t{sum < 0} << lane;
  }
  std::fill(bits, bits + count, word);
}

void decide_parity(const std::int8_t* llr, std::uint64_t* bits, std::size_t count) {
  decide(llr, bits, count);
  std::uint64_t odd = 0;
  for (std::size_t i = 0; i < count; ++i) odd ^= bits[i];
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if ((odd >> lane & 1) == 0) continue;
    std::size_t least = 0;
    for (std::size_t i = 1; i < count; ++i) {
      if (std::abs(llr[kLanes * i + lane]) < std::abs(llr[kLanes * least + lane])) least = i;
    }
    bits[least] ^= std::uint64_t{1} << lane;
  }
}

void xor_words(std::uint64_t* a, const std::uint64_t* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] ^= b[i];
}

std::int32_t agreement(const std::int8_t* llr, const std::uint64_t* bits, std::size_t count) {
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < kLanes * count; ++i) {
    sum += (bits[i / kLanes] >> (i % kLanes) & 1) != 0 ? -llr[i] : llr[i];
  }
  return sum;
}

void penalties(const std::int8_t* llr, const std::uint64_t* bits, std::int32_t* sums,
               std::size_t count) {
  for (std::size_t i = 0; i < kLanes * count; ++i) {
    const bool set = (bits[i / kLanes] >> (i % kLanes) & 1) != 0;
    sums[i % kLanes] += std::max(0, set ? int{llr[i]} : -llr[i]);
  }
}

void move_llr(const std::uint8_t* from, std::int8_t* llr, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::int8_t row[kLanes];
    std::memcpy(row, llr + kLanes * i, kLanes);
    for (std::size_t lane = 0; lane < kLanes; ++lane) llr[kLanes * i + lane] = row[from[lane]];
  }
}

void move_bits(const std::uint8_t* from, std::uint64_t* bits, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t word = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      word |= (bits[i] >> from[lane] & 1) << lane;
    }
    bits[i] = word;
  }
}

std::uint32_t lattice_places(const float* x, const std::uint64_t* mask, float scale,
                             const LatticeRule& rule, std::int16_t* places, std::int8_t* llr,
                             std::size_t n) {
  return finish_places(x, mask, scale, rule, places, llr, n, 0);
}

LatticeSums lattice_indices(const std::int16_t* places, const std::uint64_t* bits,
                            const LatticeRule& rule, std::uint8_t* indices, std::size_t n) {
  return finish_indices(places, bits, rule, indices, n);
}

void lattice_points(const std::uint8_t* indices, const std::uint64_t* bits, float scale, float* y,
                    std::size_t n) {
  finish_points(indices, bits, scale, y, n);
}

}  // namespace

const PolarKernels kScalarPolarKernels = {
    quantize,       check,           add,           add_frozen, decide,   decide_repetition,
    decide_parity,  xor_words,       agreement,     penalties,  move_llr, move_bits,
    lattice_places, lattice_indices, lattice_points};

}  // namespace gradcomp
