#include "polar/list_coder.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.hpp"
#include "kernels/polar.hpp"
#include "polar/block_coder.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kCodes = kLanes / kPaths;  // codes searched at once

// Penalty of paths that do not exist yet: more than any sum of penalties.
constexpr std::int32_t kNever = std::int32_t{1} << 26;
static_assert((std::size_t{127} << 16) < kNever, "blocks have at most 2^16 rows");

// Search in 8 codes at once: lane 8 c + p is path p of code c. Paths are sorted by penalty, the sum
// of the |LLR| that they contradict.
class ListEncoder {
 public:
  explicit ListEncoder(std::int8_t* work) : kernels_(*kernels().polar), work_(work) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      penalties_[lane] = lane % kPaths == 0 ? 0 : kNever;
    }
  }

  // Fills `bits` with the words of all paths. Returns true if paths have moved: lane i then
  // continues the former lane from[i].
  bool encode(std::size_t node, std::size_t count, std::int8_t* llr, std::uint64_t* bits,
              std::uint8_t* from) {
    switch (tree_[node]) {
      case SubtreeKind::kFrozen:
        std::fill(bits, bits + count, std::uint64_t{0});
        contradict(llr, bits, count);
        return false;
      case SubtreeKind::kRepetition:
        return fork(llr, bits, count, from);
      case SubtreeKind::kParity:
        kernels_.decide_parity(llr, bits, count);
        contradict(llr, bits, count);
        return false;
      case SubtreeKind::kFree:
        if (count == 1) return fork(llr, bits, count, from);
        kernels_.decide(llr, bits, count);
        return false;
      case SubtreeKind::kSplit:
        break;
    }
    const std::size_t half = count / 2;
    // The rest of `work` is for the halves of this half.
    std::int8_t* const inner = work_ + kLanes * half;
    if (tree_[2 * node] == SubtreeKind::kFrozen) {
      if (forked_) {
        kernels_.check(llr, inner, half);
        std::fill(bits, bits + half, std::uint64_t{0});
        contradict(inner, bits, half);
      }
      kernels_.add_frozen(llr, inner, half);
      const bool moved = encode(2 * node + 1, half, inner, bits + half, from);
      std::memcpy(bits, bits + half, 8 * half);
      return moved;
    }
    kernels_.check(llr, inner, half);
    const bool first = encode(2 * node, half, inner, bits, from);
    if (first) kernels_.move_llr(from, llr, count);
    kernels_.add(llr, bits, inner, half);
    std::uint8_t later[kLanes];
    const bool second = encode(2 * node + 1, half, inner, bits + half, later);
    if (second) {
      kernels_.move_bits(later, bits, half);
      if (first) {
        for (std::uint8_t& lane : later) lane = from[lane];
      }
      std::memcpy(from, later, kLanes);
    }
    kernels_.xor_words(bits, bits + half, half);
    return first || second;
  }

  void run(const SubtreeKind* tree, std::size_t rows, std::int8_t* llr, std::uint64_t* bits) {
    tree_ = tree;
    std::uint8_t from[kLanes];
    encode(1, rows, llr, bits, from);
  }

 private:
  void contradict(const std::int8_t* llr, const std::uint64_t* bits, std::size_t count) {
    // Before the first fork there is nothing to compare.
    if (forked_) kernels_.penalties(llr, bits, penalties_, count);
  }

  // All bits of a path become 0 or 1. Of both continuations of all paths, the best survive.
  bool fork(const std::int8_t* llr, std::uint64_t* bits, std::size_t count, std::uint8_t* from) {
    forked_ = true;
    std::int32_t zeros[kLanes], ones[kLanes];
    std::memcpy(zeros, penalties_, sizeof zeros);
    std::memcpy(ones, penalties_, sizeof ones);
    std::fill(bits, bits + count, ~std::uint64_t{0});
    kernels_.penalties(llr, bits, ones, count);
    std::fill(bits, bits + count, std::uint64_t{0});
    kernels_.penalties(llr, bits, zeros, count);
    constexpr std::size_t kBoth = 2 * kPaths;
    std::int32_t keys[kBoth][kCodes];
    std::int32_t ranks[kBoth][kCodes] = {};
    for (std::size_t i = 0; i < kBoth; ++i) {
      const std::int32_t* const penalties = i % 2 == 0 ? zeros : ones;
      for (std::size_t c = 0; c < kCodes; ++c) keys[i][c] = penalties[kPaths * c + i / 2];
    }
    for (std::size_t i = 1; i < kBoth; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        for (std::size_t c = 0; c < kCodes; ++c) {
          const std::int32_t behind = keys[j][c] <= keys[i][c] ? 1 : 0;
          ranks[i][c] += behind;
          ranks[j][c] += 1 - behind;
        }
      }
    }
    std::uint64_t word = 0;
    for (std::size_t c = 0; c < kCodes; ++c) {
      std::int32_t sorted[kBoth];
      std::uint8_t sources[kBoth];
      for (std::size_t i = 0; i < kBoth; ++i) {
        sorted[ranks[i][c]] = keys[i][c];
        sources[ranks[i][c]] = static_cast<std::uint8_t>(i);
      }
      for (std::size_t p = 0; p < kPaths; ++p) {
        const std::size_t lane = kPaths * c + p;
        penalties_[lane] = sorted[p];
        from[lane] = static_cast<std::uint8_t>(kPaths * c + sources[p] / 2);
        word |= std::uint64_t{sources[p] % 2u} << lane;
      }
    }
    std::fill(bits, bits + count, word);
    return true;
  }

  const PolarKernels& kernels_;
  const SubtreeKind* tree_ = nullptr;
  std::int8_t* work_;  // the LLRs of a node of `count` rows are in [count, 2 count)
  std::int32_t penalties_[kLanes];
  bool forked_ = false;
};

}  // namespace

void polar_list_encode(const SubtreeKind* tree, unsigned log2, const std::int8_t* llr,
                       const ListSpace& space, std::uint64_t* bits, std::uint8_t* out) {
  const std::size_t rows = std::size_t{1} << log2;
  std::fill(bits, bits + rows, std::uint64_t{0});
  for (std::size_t first = 0; first < kLanes; first += kCodes) {
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t c = 0; c < kCodes; ++c) {
        std::memset(space.llr + kLanes * row + kPaths * c, llr[kLanes * row + first + c], kPaths);
      }
    }
    ListEncoder(space.work).run(tree, rows, space.llr, space.bits);
    for (std::size_t row = 0; row < rows; ++row) {
      // Packs the bits of the best paths, 8 apart: no two products share a bit.
      constexpr std::uint64_t kBest = 0x0101010101010101, kGather = 0x0102040810204080;
      bits[row] |= ((space.bits[row] & kBest) * kGather >> 56) << first;
    }
  }
  std::memcpy(space.bits, bits, 8 * rows);
  polar_words(tree, log2, space.bits, out);
}

}  // namespace gradcomp
