#include "polar/block_coder.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.hpp"
#include "kernels/polar.hpp"

namespace gradcomp {
namespace {

class Encoder {
 public:
  Encoder(const SubtreeKind* tree, std::int8_t* work, std::uint8_t* out)
      : kernels_(*kernels().polar), tree_(tree), work_(work), out_(out) {}

  void encode(std::size_t node, std::size_t count, const std::int8_t* llr, std::uint64_t* bits) {
    switch (tree_[node]) {
      case SubtreeKind::kFrozen:
        std::fill(bits, bits + count, std::uint64_t{0});
        return;
      case SubtreeKind::kRepetition:
        kernels_.decide_repetition(llr, bits, count);
        send(bits, 1);
        return;
      case SubtreeKind::kParity:
        kernels_.decide_parity(llr, bits, count);
        send(bits + 1, count - 1);
        return;
      case SubtreeKind::kFree:
        kernels_.decide(llr, bits, count);
        send(bits, count);
        return;
      case SubtreeKind::kSplit:
        break;
    }
    const std::size_t half = count / 2;
    // The rest of `work` is for the halves of this half.
    std::int8_t* const inner = work_ + kLanes * half;
    if (tree_[2 * node] == SubtreeKind::kFrozen) {
      kernels_.add_frozen(llr, inner, half);
      encode(2 * node + 1, half, inner, bits + half);
      std::memcpy(bits, bits + half, 8 * half);
    } else {
      kernels_.check(llr, inner, half);
      encode(2 * node, half, inner, bits);
      kernels_.add(llr, bits, inner, half);
      encode(2 * node + 1, half, inner, bits + half);
      kernels_.xor_words(bits, bits + half, half);
    }
  }

 private:
  void send(const std::uint64_t* words, std::size_t count) {
    std::memcpy(out_, words, 8 * count);
    out_ += 8 * count;
  }

  const PolarKernels& kernels_;
  const SubtreeKind* tree_;
  std::int8_t* work_;  // the LLRs of a node of `count` rows are in [count, 2 count)
  std::uint8_t* out_;
};

// Splits codewords into the words that Encoder sends.
class Sender {
 public:
  Sender(const SubtreeKind* tree, std::uint8_t* out)
      : kernels_(*kernels().polar), tree_(tree), out_(out) {}

  void send(std::size_t node, std::size_t count, std::uint64_t* bits) {
    switch (tree_[node]) {
      case SubtreeKind::kFrozen:
        return;
      case SubtreeKind::kRepetition:
        return write(bits, 1);
      case SubtreeKind::kParity:
        return write(bits + 1, count - 1);
      case SubtreeKind::kFree:
        return write(bits, count);
      case SubtreeKind::kSplit:
        break;
    }
    const std::size_t half = count / 2;
    if (tree_[2 * node] != SubtreeKind::kFrozen) {
      kernels_.xor_words(bits, bits + half, half);
      send(2 * node, half, bits);
    }
    send(2 * node + 1, half, bits + half);
  }

 private:
  void write(const std::uint64_t* words, std::size_t count) {
    std::memcpy(out_, words, 8 * count);
    out_ += 8 * count;
  }

  const PolarKernels& kernels_;
  const SubtreeKind* tree_;
  std::uint8_t* out_;
};

class Decoder {
 public:
  Decoder(const SubtreeKind* tree, const std::uint8_t* in)
      : kernels_(*kernels().polar), tree_(tree), in_(in) {}

  void decode(std::size_t node, std::size_t count, std::uint64_t* bits) {
    switch (tree_[node]) {
      case SubtreeKind::kFrozen:
        std::fill(bits, bits + count, std::uint64_t{0});
        return;
      case SubtreeKind::kRepetition:
        receive(bits, 1);
        std::fill(bits + 1, bits + count, bits[0]);
        return;
      case SubtreeKind::kParity:
        receive(bits + 1, count - 1);
        bits[0] = 0;
        for (std::size_t i = 1; i < count; ++i) bits[0] ^= bits[i];
        return;
      case SubtreeKind::kFree:
        receive(bits, count);
        return;
      case SubtreeKind::kSplit:
        break;
    }
    const std::size_t half = count / 2;
    if (tree_[2 * node] == SubtreeKind::kFrozen) {
      decode(2 * node + 1, half, bits + half);
      std::memcpy(bits, bits + half, 8 * half);
    } else {
      decode(2 * node, half, bits);
      decode(2 * node + 1, half, bits + half);
      kernels_.xor_words(bits, bits + half, half);
    }
  }

 private:
  void receive(std::uint64_t* words, std::size_t count) {
    std::memcpy(words, in_, 8 * count);
    in_ += 8 * count;
  }

  const PolarKernels& kernels_;
  const SubtreeKind* tree_;
  const std::uint8_t* in_;
};

}  // namespace

void polar_encode(const SubtreeKind* tree, unsigned log2, const std::int8_t* llr, std::int8_t* work,
                  std::uint64_t* bits, std::uint8_t* out) {
  Encoder(tree, work, out).encode(1, std::size_t{1} << log2, llr, bits);
}

void polar_words(const SubtreeKind* tree, unsigned log2, std::uint64_t* bits, std::uint8_t* out) {
  Sender(tree, out).send(1, std::size_t{1} << log2, bits);
}

void polar_decode(const SubtreeKind* tree, unsigned log2, const std::uint8_t* in,
                  std::uint64_t* bits) {
  Decoder(tree, in).decode(1, std::size_t{1} << log2, bits);
}

}  // namespace gradcomp
