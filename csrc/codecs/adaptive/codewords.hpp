// Which half of the lattice's points each of n elements takes, as codewords of polar codes. There
// are 1 to 64 codes side by side: as many as leave each of them long.
// docs/wire-format.md#adaptive is the norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coding/bits.hpp"
#include "polar/subtree_kind.hpp"

namespace gradcomp {

class Codewords {
 public:
  explicit Codewords(std::size_t n);

  // Where an element's LLR is of rows() * 64, and its bit in the words of 64 bits.
  std::size_t place(std::size_t element) const {
    return (element >> lanes_log2_) * 64 + (element & ((std::size_t{1} << lanes_log2_) - 1));
  }
  std::size_t rows() const { return rows_; }
  std::size_t bytes() const { return (words() * lanes() + 7) / 8; }

  // Finds the codewords near the LLRs, those of places without an element 0: a word of `bits` for
  // each row, and the bytes that decode to them.
  void encode(const std::int8_t* llr, std::uint64_t* bits, std::uint8_t* out) const;
  // False where the padding after the last word is not zero.
  bool decode(const std::uint8_t* in, std::uint64_t* bits) const;

 private:
  struct Block {
    std::size_t begin;  // in rows
    std::size_t rows;
    unsigned log2;  // of the rows of its code
    std::vector<SubtreeKind> nodes;
  };

  std::size_t lanes() const { return std::size_t{1} << lanes_log2_; }
  std::size_t words() const;
  // The bits of a word that belong to a code.
  void put_word(std::uint64_t word, BitWriter* writer) const;
  std::uint64_t get_word(BitReader* reader) const;

  unsigned lanes_log2_;
  std::size_t rows_;
  std::vector<Block> blocks_;
};

}  // namespace gradcomp
