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

}  // namespace

void make_nodes(const std::uint16_t* ranks, unsigned log2, std::size_t count, Node* nodes) {
  const std::size_t n = std::size_t{1} << log2;
  nodes[0] = Node::kSplit;  // never read
  for (std::size_t i = 0; i < n; ++i) {
    nodes[n + i] = ranks[i] < count ? Node::kFree : Node::kFrozen;
  }
  for (unsigned level = 1; level <= log2; ++level) {
    const std::size_t first = n >> level;
    for (std::size_t i = first; i < 2 * first; ++i) {
      nodes[i] = join(nodes[2 * i], nodes[2 * i + 1], level);
    }
  }
}

}  // namespace gradcomp
