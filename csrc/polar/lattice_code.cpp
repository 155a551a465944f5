#include "polar/lattice_code.hpp"

#include <cstdint>

#include "polar/bec_order.hpp"

namespace gradcomp {
namespace {

constexpr std::uint32_t kErasure = 35u << 25;  // of 2^31, as of 64 inputs 35 are frozen

}  // namespace

std::vector<Node> lattice_nodes(unsigned log2, std::size_t rows) {
  std::vector<Node> nodes(std::size_t{2} << log2);
  make_nodes(bec_ranks(log2, kErasure, rows).data(), log2, lattice_words(rows), nodes.data());
  return nodes;
}

}  // namespace gradcomp
