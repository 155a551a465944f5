// Selection of the elements of large magnitude. Magnitudes compare as integers of their bit
// patterns: NaN is above Inf, and Inf above all finite values. Ties go to the lower index.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"
#include "codec/kept_codec.hpp"

namespace gradcomp {

// Elements that a sparsifier keeps, in ascending order of index.
using Selection = KeptParts;

// Number of scratch slots, from slot 0 on, that a selection may use.
inline constexpr std::size_t kSelectionSlots = 4;

// Elements that reach a threshold, in ascending order of index.
struct Candidates {
  float* values = nullptr;
  std::uint32_t* indices = nullptr;
  std::uint32_t* work = nullptr;  // as large as `values` and `indices`; kLargest only
  std::size_t size = 0;
  bool more = false;  // more than `cap` elements reach the threshold

  // The first `count` candidates.
  Selection first(std::size_t count) const { return {{indices, count}, {values, count}}; }
};

// Policy if more than `cap` elements reach the threshold.
enum class Excess {
  kLargest,  // candidates include the k largest elements, and some others; cap >= 2 k
  kFirst,    // the first k candidates are the first k elements that reach it; cap >= k
};

// Estimates, from a deterministic sample, a threshold that slightly more than k elements of the
// tensors reach with their magnitude bits. A bad guess costs time, but the selection stays exact.
std::uint32_t guess_threshold(Span<const Span<const float>> tensors, std::size_t k);

// Finds the elements with magnitude bits >= `threshold`: all of them, unless there are more than
// `cap`. The result is in the call's scratch memory.
Status find_candidates(Span<const float> x, std::uint32_t threshold, std::size_t k, std::size_t cap,
                       Excess excess, const Call& call, Candidates* found);

// Keeps the k largest candidates, 1 <= k <= size. Returns the smallest magnitude bits kept.
std::uint32_t keep_largest(Candidates* candidates, std::size_t k);

// Selects the k elements of largest magnitude, k <= x.size(); k >= 1 unless x is empty.
Status select_largest(Span<const float> x, std::size_t k, const Call& call, Selection* kept);

// Numbers of elements by sign bit.
struct SignCounts {
  std::size_t positive = 0;
  std::size_t negative = 0;
};

// Selects, for each sign bit, its k elements of largest magnitude. At least one k must not be 0;
// zeros are never kept.
Status select_largest_by_sign(Span<const float> x, const SignCounts& k, const Call& call,
                              Selection* kept);

// The k-th largest of some numbers below 2^31, and the count of its equals among the k largest.
struct Rank {
  std::uint32_t number;
  std::size_t ties;
};

// Reorders the numbers. 1 <= k <= n.
Rank kth_largest(std::uint32_t* numbers, std::size_t n, std::size_t k);

}  // namespace gradcomp
