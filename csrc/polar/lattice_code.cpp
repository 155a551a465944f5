#include "polar/lattice_code.hpp"

#include <cstdint>

#include "polar/bec_order.hpp"

namespace gradcomp {
namespace {

constexpr std::uint32_t kErasure = 35u << 25;  // of 2^31, as of 64 inputs 35 are frozen

}  // namespace

std::vector<SubtreeKind> lattice_tree(unsigned log2, std::size_t rows) {
  std::vector<SubtreeKind> tree(std::size_t{2} << log2);
  find_subtree_kinds(bec_ranks(log2, kErasure, rows).data(), log2, lattice_words(rows),
                     tree.data());
  return tree;
}

}  // namespace gradcomp
