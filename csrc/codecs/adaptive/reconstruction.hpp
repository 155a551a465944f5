// The elements that a payload stands for: the decoder makes them from what it reads, and the
// encoder from what it has written, for error feedback.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"
#include "codecs/adaptive/learned_basis.hpp"
#include "codecs/adaptive/matrix_shape.hpp"

namespace gradcomp {

// An element of which the table does not have the value.
struct Exception {
  std::size_t at;
  float value;
};

struct Reconstruction {
  MatrixShape shape;
  float constant = 0;  // of all elements, where there are no codes
  // A byte for each element: its lower `bits`, 4 or 8, are a place in the table.
  const std::uint8_t* codes = nullptr;
  unsigned bits = 4;
  float table[256] = {};
  std::vector<Exception> exceptions = {};  // in ascending order
  // The low-rank part that is added: p of `rank` vectors of rows, v of columns.
  std::size_t rank = 0;
  const float* p = nullptr;
  const float* v = nullptr;
  LearnedBasis basis = {};  // of a turned matrix

  // Makes all elements.
  void fill(float* y) const;
  // acc += weight * elements. If there is room for them, `decoded` gets the elements, too. Fails
  // only before it has changed any of acc.
  Status add(float weight, Span<float> decoded, Scratch& scratch, Span<float> acc) const;

 private:
  // Whether elements depend on all others, so that fill() must make all of them at once.
  bool turned() const { return basis.rank != 0; }
  // Makes the elements [begin, end) of a matrix that is not turned: whole rows where there is a
  // low-rank part.
  void fill(std::size_t begin, std::size_t end, float* y) const;
  // Replaces the exceptions of [begin, end).
  void patch(std::size_t begin, std::size_t end, float* y) const;
  // Calls fn(begin, end) for pieces that make up all elements, on all threads.
  template <typename Fn>
  void for_pieces(const Fn& fn) const;
};

}  // namespace gradcomp
