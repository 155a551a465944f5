#include "polar/subtree_kind.hpp"

namespace gradcomp {
namespace {

SubtreeKind join(SubtreeKind left, SubtreeKind right, unsigned log2) {
  if (left == SubtreeKind::kFrozen) {
    if (right == SubtreeKind::kFrozen) return SubtreeKind::kFrozen;
    const bool repeats =
        right == SubtreeKind::kRepetition || (log2 == 1 && right == SubtreeKind::kFree);
    if (repeats && log2 <= kMaxRepetitionLog2) return SubtreeKind::kRepetition;
  } else if (right == SubtreeKind::kFree) {
    if (left == SubtreeKind::kFree) return SubtreeKind::kFree;
    // A repetition of two is a parity check of two.
    const bool checks =
        left == SubtreeKind::kParity || (log2 == 2 && left == SubtreeKind::kRepetition);
    if (checks && log2 <= kMaxParityLog2) return SubtreeKind::kParity;
  }
  return SubtreeKind::kSplit;
}

// Kind of the parent of any two children of a level.
class Joins {
 public:
  explicit Joins(unsigned log2) {
    for (unsigned left = 0; left < kKinds; ++left) {
      for (unsigned right = 0; right < kKinds; ++right) {
        table_[kStride * left + right] =
            join(static_cast<SubtreeKind>(left), static_cast<SubtreeKind>(right), log2);
      }
    }
  }

  SubtreeKind operator()(SubtreeKind left, SubtreeKind right) const {
    return table_[kStride * static_cast<unsigned>(left) + static_cast<unsigned>(right)];
  }

 private:
  static constexpr unsigned kKinds = static_cast<unsigned>(SubtreeKind::kSplit) + 1;
  static constexpr unsigned kStride = 8;
  SubtreeKind table_[kStride * kStride];
};

}  // namespace

void find_subtree_kinds(const std::uint16_t* ranks, unsigned log2, std::size_t count,
                        SubtreeKind* tree) {
  const std::size_t n = std::size_t{1} << log2;
  tree[0] = SubtreeKind::kSplit;  // never read
  for (std::size_t i = 0; i < n; ++i) {
    tree[n + i] = ranks[i] < count ? SubtreeKind::kFree : SubtreeKind::kFrozen;
  }
  for (unsigned level = 1; level <= log2; ++level) {
    const std::size_t first = n >> level;
    const Joins joined(level);
    for (std::size_t i = first; i < 2 * first; ++i) {
      tree[i] = joined(tree[2 * i], tree[2 * i + 1]);
    }
  }
}

}  // namespace gradcomp
