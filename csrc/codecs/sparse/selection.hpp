// Finding the elements of large magnitude. Magnitudes compare as the integers of their bit
// patterns, so NaN is above Inf and Inf above all finite values; of equal ones the lower index
// comes first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"

namespace gradcomp {

// What a sparsifier keeps, in ascending order of index.
struct Selection {
  Span<const std::uint32_t> indices;
  Span<const float> values;
};

// Scratch slots that finding a selection may take, from slot 0 on.
inline constexpr std::size_t kSelectionSlots = 4;

// Elements that reach a threshold, in ascending order of index.
struct Candidates {
  float* values = nullptr;
  std::uint32_t* indices = nullptr;
  std::uint32_t* work = nullptr;  // as large as the two; kLargest only
  std::size_t size = 0;
  bool more = false;  // more than `cap` elements reach the threshold

  // The first `count` of them.
  Selection first(std::size_t count) const { return {{indices, count}, {values, count}}; }
};

// What happens when more than `cap` elements reach the threshold.
enum class Excess {
  kLargest,  // the k largest are among the candidates found, and some others; cap >= 2 k
  kFirst,    // the first k are the first k candidates found; cap >= k
};

// A threshold that a little more than k of all elements of the tensors should reach with their
// magnitude bits, from a deterministic sample. A bad guess costs time, never exactness.
std::uint32_t guess_threshold(Span<const Span<const float>> tensors, std::size_t k);

// Finds the elements whose magnitude bits are `threshold` or more, all of them unless there are
// more than `cap`. The result lives in the call's scratch memory.
Status find_candidates(Span<const float> x, std::uint32_t threshold, std::size_t k, std::size_t cap,
                       Excess excess, const Call& call, Candidates* found);

// Keeps the k largest candidates, 1 <= k <= size. Returns the smallest magnitude bits kept.
std::uint32_t keep_largest(Candidates* candidates, std::size_t k);

// The k elements of largest magnitude, k <= x.size(); at least 1 unless x is empty.
Status select_largest(Span<const float> x, std::size_t k, const Call& call, Selection* kept);

// How many elements have each sign bit.
struct SignCounts {
  std::size_t positive = 0;
  std::size_t negative = 0;
};

// Of the elements with each sign bit the k of largest magnitude. There must be so many that are not
// 0; zeros are never kept.
Status select_largest_by_sign(Span<const float> x, const SignCounts& k, const Call& call,
                              Selection* kept);

// The k-th largest of some numbers below 2^31, and how many equal to it are among the k largest.
struct Rank {
  std::uint32_t number;
  std::size_t ties;
};

// 1 <= k <= n. Leaves the numbers in disorder.
Rank kth_largest(std::uint32_t* numbers, std::size_t n, std::size_t k);

}  // namespace gradcomp
