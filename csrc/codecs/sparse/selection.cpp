#include "codecs/sparse/selection.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

std::uint32_t magnitude(float x) { return float_bits(x) & kMagnitudeMask; }

// The same for elements of one sign; 0 for the others.
std::uint32_t positive_magnitude(float x) { return std::signbit(x) ? 0 : magnitude(x); }
std::uint32_t negative_magnitude(float x) { return std::signbit(x) ? magnitude(x) : 0; }

// See the header; size_of(x) is compared with the threshold.
template <typename SizeOf>
std::uint32_t guess(Span<const Span<const float>> tensors, std::size_t k, const SizeOf& size_of) {
  constexpr std::size_t kRun = 16;  // one cache line of floats per sampled place
  constexpr std::size_t kMaxRuns = 4096;
  std::size_t n = 0;
  for (const Span<const float>& x : tensors) n += x.size();
  if (n < std::size_t{1} << 15 || k > n / 4) return 0;
  std::size_t runs = 256 * n / k / kRun;  // about 256 sampled elements reach the threshold
  runs = std::min(std::max<std::size_t>(runs, 512), std::min(kMaxRuns, n / (8 * kRun)));
  const std::size_t stride = n / runs;
  std::vector<std::uint32_t> sample;
  sample.reserve(runs * kRun);
  std::size_t next = 0;  // next position in the current tensor
  for (const Span<const float>& x : tensors) {
    for (; next < x.size() && runs > 0; next += stride, --runs) {
      const std::size_t end = std::min(next + kRun, x.size());
      for (std::size_t i = next; i < end; ++i) sample.push_back(size_of(x[i]));
    }
    next -= std::min(next, x.size());
  }
  const double hits =
      static_cast<double>(sample.size()) * static_cast<double>(k) / static_cast<double>(n);
  const auto rank = static_cast<std::size_t>(hits + 4.0 * std::sqrt(hits) + 8.0);
  if (rank > sample.size()) return 0;
  return kth_largest(sample.data(), sample.size(), rank).number;
}

// Appends the candidates in x[begin, end) to `part`, which holds up to `cap` of them.
void scan(const float* x, std::size_t begin, std::size_t end, std::uint32_t threshold,
          std::size_t k, std::size_t cap, Excess excess, Candidates* part) {
  const std::size_t capacity = cap + kCollectSlack;
  while (begin < end) {
    std::size_t taken = 0;
    part->size += kernels().collect(x + begin, end - begin, static_cast<std::uint32_t>(begin),
                                    threshold, part->values + part->size,
                                    part->indices + part->size, capacity - part->size, &taken);
    begin += taken;
    if (begin == end) return;
    part->more = true;
    if (excess == Excess::kFirst) return;
    // k candidates with lower indices reach the smallest kept magnitude, so a later element must
    // exceed it.
    threshold = keep_largest(part, k) + 1;
  }
}

Status out_of_memory(std::size_t indices) {
  return capacity_error("out of memory: " + std::to_string(indices) + " indices");
}

Status select_all(Span<const float> x, const Call& call, Selection* kept) {
  Span<std::uint32_t> all = call.scratch->get<std::uint32_t>(0, x.size() + 1);
  if (all.empty()) return out_of_memory(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) all[i] = static_cast<std::uint32_t>(i);
  *kept = {{all.data(), x.size()}, x};
  return {};
}

}  // namespace

std::uint32_t guess_threshold(Span<const Span<const float>> tensors, std::size_t k) {
  return guess(tensors, k, magnitude);
}

Rank kth_largest(std::uint32_t* numbers, std::size_t n, std::size_t k) {
  // Radix selection: count the numbers in equal bins, then go on with the bin of the k-th largest.
  constexpr unsigned kBinBits = 11;
  std::uint32_t low = kMagnitudeMask;
  std::uint32_t high = 0;
  for (std::size_t i = 0; i < n; ++i) {
    low = std::min(low, numbers[i]);
    high = std::max(high, numbers[i]);
  }
  for (;;) {
    const unsigned bits = high == low ? 0 : 32 - static_cast<unsigned>(__builtin_clz(high - low));
    const unsigned shift = bits > kBinBits ? bits - kBinBits : 0;
    std::uint32_t counts[std::size_t{1} << kBinBits] = {};
    for (std::size_t i = 0; i < n; ++i) ++counts[(numbers[i] - low) >> shift];
    std::uint32_t bin = (high - low) >> shift;
    for (; counts[bin] < k; --bin) k -= counts[bin];
    if (shift == 0) return {low + bin, k};
    std::size_t left = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t number = numbers[i];
      numbers[left] = number;
      left += (number - low) >> shift == bin ? 1 : 0;
    }
    n = left;
    low += bin << shift;
    high = low + ((1u << shift) - 1);
  }
}

std::uint32_t keep_largest(Candidates* candidates, std::size_t k) {
  float* const values = candidates->values;
  std::uint32_t* const indices = candidates->indices;
  const std::size_t n = candidates->size;
  for (std::size_t i = 0; i < n; ++i) candidates->work[i] = magnitude(values[i]);
  const Rank least = kth_largest(candidates->work, n, k);
  // No branch here: its outcome would be nearly random.
  std::size_t ties = least.ties;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = magnitude(values[i]);
    values[kept] = values[i];
    indices[kept] = indices[i];
    kept += bits > least.number ? 1 : 0;
    if (bits == least.number && ties > 0) {  // either rare or always true
      --ties;
      ++kept;
    }
  }
  candidates->size = kept;
  return least.number;
}

Status find_candidates(Span<const float> x, std::uint32_t threshold, std::size_t k, std::size_t cap,
                       Excess excess, const Call& call, Candidates* found) {
  const std::size_t n = x.size();
  const std::size_t ranges = range_count(n);
  const std::size_t largest_range = ranges == 1 ? n : (n / kChunk / ranges + 2) * kChunk;
  cap = std::min(cap, largest_range);
  const std::size_t capacity = cap + kCollectSlack;
  const std::size_t work_capacity = excess == Excess::kLargest ? capacity : 1;
  Span<float> values = call.scratch->get<float>(0, ranges * capacity);
  Span<std::uint32_t> indices = call.scratch->get<std::uint32_t>(1, ranges * capacity);
  Span<std::uint32_t> work = call.scratch->get<std::uint32_t>(2, ranges * work_capacity);
  if (values.empty() || indices.empty() || work.empty()) {
    return capacity_error(
        "out of memory: choosing among " + std::to_string(n) + " elements needs " +
        std::to_string(4 * ranges * (2 * capacity + work_capacity)) + " bytes of working memory");
  }
  std::vector<Candidates> parts(ranges);
  for_ranges(n, ranges, [&](std::size_t range, std::size_t begin, std::size_t end) {
    Candidates& part = parts[range];
    part.values = values.data() + range * capacity;
    part.indices = indices.data() + range * capacity;
    part.work = work.data() + range * work_capacity;
    scan(x.data(), begin, end, threshold, k, cap, excess, &part);
  });
  *found = parts[0];
  for (std::size_t range = 1; range < ranges; ++range) {
    const Candidates& part = parts[range];
    std::memmove(found->values + found->size, part.values, 4 * part.size);
    std::memmove(found->indices + found->size, part.indices, 4 * part.size);
    found->size += part.size;
    found->more = found->more || part.more;
  }
  return {};
}

Status select_largest(Span<const float> x, std::size_t k, const Call& call, Selection* kept) {
  if (k == x.size()) return select_all(x, call, kept);
  // Twice k, so that a full buffer is halved at most every k elements: linear time at worst.
  const std::size_t cap = 2 * k + 4096;
  Candidates found;
  GRADCOMP_TRY(
      find_candidates(x, guess_threshold({&x, 1}, k), k, cap, Excess::kLargest, call, &found));
  // With fewer than k candidates, the guess was too high: now every element is a candidate.
  if (found.size < k) {
    GRADCOMP_TRY(find_candidates(x, 0, k, cap, Excess::kLargest, call, &found));
  }
  if (found.size > k) keep_largest(&found, k);
  *kept = found.first(k);
  return {};
}

Status select_largest_by_sign(Span<const float> x, const SignCounts& k, const Call& call,
                              Selection* kept) {
  const std::size_t n = x.size();
  std::uint32_t threshold = kMagnitudeMask;
  if (k.positive > 0) threshold = guess({&x, 1}, k.positive, positive_magnitude);
  if (k.negative > 0) {
    threshold = std::min(threshold, guess({&x, 1}, k.negative, negative_magnitude));
  }
  for (threshold = std::max(threshold, 1u);; threshold = 1) {  // 1: all but zeros
    Candidates found;
    GRADCOMP_TRY(find_candidates(x, threshold, 1, n, Excess::kFirst, call, &found));
    Span<std::uint32_t> work = call.scratch->get<std::uint32_t>(3, found.size + 1);
    if (work.empty()) return out_of_memory(found.size);
    // By sign bit: the smallest magnitude kept, and the number of elements equal to it that are
    // kept.
    Rank least[2] = {{0, 0}, {0, 0}};
    bool enough = true;
    for (std::uint32_t sign : {0u, 1u}) {
      const std::size_t wanted = sign == 0 ? k.positive : k.negative;
      std::size_t count = 0;
      for (std::size_t i = 0; i < found.size; ++i) {
        const std::uint32_t bits = float_bits(found.values[i]);
        work[count] = bits & kMagnitudeMask;
        count += bits >> 31 == sign ? 1 : 0;
      }
      enough = enough && count >= wanted;
      if (enough && wanted > 0) least[sign] = kth_largest(work.data(), count, wanted);
    }
    if (!enough && threshold > 1) continue;  // the guess was too high
    std::size_t size = 0;
    for (std::size_t i = 0; i < found.size; ++i) {
      const std::uint32_t bits = float_bits(found.values[i]);
      Rank& rank = least[bits >> 31];
      found.values[size] = found.values[i];
      found.indices[size] = found.indices[i];
      size += (bits & kMagnitudeMask) > rank.number ? 1 : 0;
      if ((bits & kMagnitudeMask) == rank.number && rank.ties > 0) {  // either rare or always true
        --rank.ties;
        ++size;
      }
    }
    *kept = found.first(size);
    return {};
  }
}

}  // namespace gradcomp
