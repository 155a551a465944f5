// Payload layout and working memory of polar_b.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "codecs/polar/block_cut.hpp"
#include "codecs/polar/thread_space.hpp"
#include "polar/subtree_kind.hpp"

namespace gradcomp {

// Division of a tensor, with the number of words for each part.
class PolarBLayout : public BlockCut {
 public:
  // `overhead` is the size of the frame around the payload, in bytes.
  PolarBLayout(std::size_t n, unsigned log2, double rate, std::size_t overhead)
      : BlockCut(n, log2) {
    const double bytes = std::floor(rate * static_cast<double>(n) / 8) -
                         static_cast<double>(overhead + 4 * blocks());
    const double words = std::floor(bytes / 8);
    // Every block has a word, so that none of its elements is left out in all steps.
    words_ = std::max(blocks(), words < 1 ? 1 : static_cast<std::size_t>(words));
  }

  std::size_t payload_size() const { return 4 * blocks() + 8 * words_; }
  // The first word of a block, by its index and first row; the number of words for blocks() and
  // rows(). Proportional to the rows, as long as each later block, which has at most as many rows,
  // keeps a word.
  std::size_t first_word(std::size_t index, std::size_t row) const {
    return std::min(words_ * row / rows(), words_ - (blocks() - index));
  }
  std::size_t words(std::size_t index, const Block& block) const {
    return first_word(index + 1, block.end) - first_word(index, block.begin);
  }

 private:
  std::size_t words_;
};

// Working memory of one thread.
class PolarBSpace {
 public:
  // `rows` is max_rows() of the layout; `best` adds memory for polar_list_encode().
  PolarBSpace(Carver& carver, std::size_t rows, bool best)
      : floats(carver.take<float>(kLanes * rows)),
        llr(carver.take<std::int8_t>(kLanes * rows)),
        work(carver.take<std::int8_t>(kLanes * rows)),
        bits(carver.take<std::uint64_t>(rows)),
        mask(carver.take<std::uint64_t>(rows)),
        list_bits(best ? carver.take<std::uint64_t>(rows) : nullptr),
        list_llr(best ? carver.take<std::int8_t>(kLanes * rows) : nullptr) {
    for (TreeSlot& slot : slots_) slot.tree = carver.take<SubtreeKind>(2 * rows);
  }

  // Tree of a block's code. make(tree) fills it, unless it is cached.
  template <typename Make>
  const SubtreeKind* tree(std::size_t rows, std::size_t words, const Make& make) {
    // Full blocks have one of two neighbouring numbers of words.
    TreeSlot& slot = slots_[words % kTreeSlots];
    if (slot.rows != rows || slot.words != words) {
      make(slot.tree);
      slot.rows = rows;
      slot.words = words;
    }
    return slot.tree;
  }

  float* floats;  // of the segment, rotated
  std::int8_t* llr;
  std::int8_t* work;
  std::uint64_t* bits;
  std::uint64_t* mask;
  std::uint64_t* list_bits;
  std::int8_t* list_llr;

 private:
  static constexpr std::size_t kTreeSlots = 2;
  struct TreeSlot {
    std::size_t rows = 0;  // 0: empty
    std::size_t words = 0;
    SubtreeKind* tree = nullptr;
  };
  TreeSlot slots_[kTreeSlots];
};

}  // namespace gradcomp
