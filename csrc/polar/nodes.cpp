#include "polar/nodes.hpp"

namespace gradcomp {
namespace {

Node join(Node left, Node right, unsigned log2) {
  if (left == Node::kFrozen) {
    if (right == Node::kFrozen) return Node::kFrozen;
    const bool repeats = right == Node::kRepetition || (log2 == 1 && right == Node::kFree);
    if (repeats && log2 <= kMaxRepetitionLog2) return Node::kRepetition;
  } else if (right == Node::kFree) {
    if (left == Node::kFree) return Node::kFree;
    // A repetition of two is a parity check of two.
    const bool checks = left == Node::kParity || (log2 == 2 && left == Node::kRepetition);
    if (checks && log2 <= kMaxParityLog2) return Node::kParity;
  }
  return Node::kSplit;
}

// What any two children of a level join to.
class Joins {
 public:
  explicit Joins(unsigned log2) {
    for (unsigned left = 0; left < kKinds; ++left) {
      for (unsigned right = 0; right < kKinds; ++right) {
        table_[kStride * left + right] =
            join(static_cast<Node>(left), static_cast<Node>(right), log2);
      }
    }
  }

  Node operator()(Node left, Node right) const {
    return table_[kStride * static_cast<unsigned>(left) + static_cast<unsigned>(right)];
  }

 private:
  static constexpr unsigned kKinds = static_cast<unsigned>(Node::kSplit) + 1;
  static constexpr unsigned kStride = 8;
  Node table_[kStride * kStride];
};

}  // namespace

void make_nodes(const std::uint16_t* ranks, unsigned log2, std::size_t count, Node* nodes) {
  const std::size_t n = std::size_t{1} << log2;
  nodes[0] = Node::kSplit;  // never read
  for (std::size_t i = 0; i < n; ++i) {
    nodes[n + i] = ranks[i] < count ? Node::kFree : Node::kFrozen;
  }
  for (unsigned level = 1; level <= log2; ++level) {
    const std::size_t first = n >> level;
    const Joins joined(level);
    for (std::size_t i = first; i < 2 * first; ++i) {
      nodes[i] = joined(nodes[2 * i], nodes[2 * i + 1]);
    }
  }
}

}  // namespace gradcomp
