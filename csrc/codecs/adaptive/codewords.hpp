// Codewords of polar codes for n lattice points: a bit for each point says which half of the
// lattice it belongs to. There are 1 to 64 codes ("lanes") side by side, as many as possible while
// each stays long. docs/wire-format.md#adaptive is the specification.
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

  // Position of a point's LLR among rows() * 64, and of its bit in the words of 64 bits.
  std::size_t place(std::size_t element) const {
    return (element >> lanes_log2_) * 64 + (element & ((std::size_t{1} << lanes_log2_) - 1));
  }
  std::size_t rows() const { return rows_; }
  std::size_t bytes() const { return (words() * lanes() + 7) / 8; }

  // Finds codewords near the LLRs; those of positions without a point must be 0. Makes a word of
  // `bits` for each row, and the bytes() that decode to them.
  void encode(const std::int8_t* llr, std::uint64_t* bits, std::uint8_t* out) const;
  // Returns false if the padding after the last word is not zero.
  bool decode(const std::uint8_t* in, std::uint64_t* bits) const;

 private:
  struct Block {
    std::size_t begin;  // in rows
    std::size_t rows;
    unsigned log2;  // of its code's length, at least `rows`
    std::vector<SubtreeKind> nodes;
  };

  std::size_t lanes() const { return std::size_t{1} << lanes_log2_; }
  std::size_t words() const;
  // Only the lowest lanes() bits of a word of 64 bits are sent.
  void put_word(std::uint64_t word, BitWriter* writer) const;
  std::uint64_t get_word(BitReader* reader) const;

  unsigned lanes_log2_;
  std::size_t rows_;
  std::vector<Block> blocks_;
};

}  // namespace gradcomp
