// Some rows of a matrix and the directions in which they are largest: the encoder chooses the rank
// from them.
#pragma once

#include <cstddef>
#include <vector>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

struct SampledRows {
  std::size_t rows = 0;  // number of rows sampled
  std::size_t cols = 0;
  Span<const float> x;  // rows x cols: evenly spaced rows, or the whole matrix where it is
  // The same number of other rows, by which directions are judged, as they fit the rows from which
  // they were computed too well. Empty if x has all rows, or nothing is judged.
  Span<const float> others;
  const float* test() const { return others.empty() ? x.data() : others.data(); }

  std::size_t rank = 0;         // number of directions
  std::vector<float> v;         // rank x cols, orthonormal: right singular vectors of x
  std::vector<double> squares;  // squared singular values, descending
};

// Copies `taken` evenly spaced rows; the first one is row at * rows / (2 * taken). `at`: 0 or 1.
void take_rows(const float* x, std::size_t rows, std::size_t cols, std::size_t taken,
               std::size_t at, float* to);

// The number of rows in a sample of about so many elements: all rows, or less than half of them.
std::size_t sampled_rows(std::size_t rows, std::size_t cols, std::size_t elements);

// Where subspace iteration begins.
enum class Start {
  kRandom,   // two iterations from random vectors, the same ones each time
  kRowSums,  // one from sums of rows: as good with two fifths of the products
};

// What sample_rows() finds.
struct Sampling {
  std::size_t elements = 0;  // of the sample, about
  std::size_t rank = 0;      // directions, at most
  Start start = Start::kRandom;
  bool judged = true;     // whether the number of directions that are used is chosen by the sample
  float* room = nullptr;  // for two copies of sampled_rows(), unless these are all rows
};

// Samples rows, and finds directions in them.
Status sample_rows(const float* x, std::size_t rows, std::size_t cols, const Sampling& sampling,
                   Scratch& scratch, SampledRows* sampled);

}  // namespace gradcomp
