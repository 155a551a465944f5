#include "polar/encoder.hpp"

#include <cstring>

#include "polar/blocks.hpp"

namespace gradcomp::polar_code {
namespace {

class Encoder {
 public:
  Encoder(const Code& code, bool systematic, const std::uint8_t* messages, std::uint8_t* codewords)
      : code_(&code),
        systematic_(systematic),
        messages_(messages),
        codewords_(codewords),
        bits_(code.mother()),
        words_((code.mother() + 63) / 64),
        informative_(code.mother() + 1) {
    for (std::uint32_t i : code.information) informative_[i + 1] = 1;
    for (std::size_t i = 0; i < code.mother(); ++i) informative_[i + 1] += informative_[i];
  }

  void operator()(std::size_t block) {
    const std::uint8_t* const message = messages_ + block * code_->message;
    std::uint8_t* const codeword = codewords_ + block * code_->length;
    std::memset(bits_.data(), 0, bits_.size());
    for (std::size_t i = 0; i < code_->message; ++i) bits_[code_->information[i]] = message[i];
    if (systematic_) {
      complete(0, bits_.size());
    } else {
      transform_bits(bits_.data(), code_->log2, &words_);
    }
    for (std::size_t i = 0; i < code_->length; ++i) codeword[i] = bits_[code_->kept[i]];
  }

 private:
  // Given the output of a part of the transform at its information positions, and inputs of 0 at
  // the frozen ones, fills in the rest of the output: Arikan, "Systematic Polar Coding", IEEE
  // Commun. Lett. 15(8), 2011. Unlike transforming twice, it is right for every set of positions.
  void complete(std::size_t begin, std::size_t end) {
    const std::uint32_t count = informative_[end] - informative_[begin];
    if (count == end - begin) return;
    if (count == 0) {
      std::memset(&bits_[begin], 0, end - begin);
      return;
    }
    const std::size_t middle = begin + (end - begin) / 2;
    complete(middle, end);
    add_upper_to_lower(begin, middle);
    complete(begin, middle);
    add_upper_to_lower(begin, middle);
  }

  void add_upper_to_lower(std::size_t begin, std::size_t middle) {
    std::uint8_t* const lower = &bits_[begin];
    const std::uint8_t* const upper = &bits_[middle];
    for (std::size_t i = 0; i < middle - begin; ++i) lower[i] ^= upper[i];
  }

  const Code* code_;
  bool systematic_;
  const std::uint8_t* messages_;
  std::uint8_t* codewords_;
  std::vector<std::uint8_t> bits_;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint32_t> informative_;  // as Code::informative, but in natural order
};

}  // namespace

Status check_bits(Span<const std::uint8_t> bits) {
  std::uint8_t all = 0;
  for (std::uint8_t bit : bits) all |= bit;
  if (all <= 1) return {};
  std::size_t i = 0;
  while (bits[i] <= 1) ++i;
  return argument_error("element " + std::to_string(i) + " is " + std::to_string(bits[i]) +
                        "; bits must be 0 or 1, one to a byte: see numpy.unpackbits");
}

Status encode(const Code& code, Span<const std::uint8_t> messages, bool systematic,
              Span<std::uint8_t> codewords) {
  const std::size_t blocks = codewords.size() / code.length;
  if (codewords.size() != blocks * code.length || messages.size() != blocks * code.message) {
    return argument_error("messages and codewords do not hold the same number of blocks");
  }
  GRADCOMP_TRY(check_bits(messages));
  return for_blocks(blocks,
                    [&] { return Encoder(code, systematic, messages.data(), codewords.data()); });
}

Status transform_rows(Span<std::uint8_t> bits, unsigned log2) {
  if (log2 > kMaxLog2 || bits.size() % (std::size_t{1} << log2) != 0) {
    return argument_error("not rows of 2^log2 bits");
  }
  GRADCOMP_TRY(check_bits({bits.data(), bits.size()}));
  return for_blocks(bits.size() >> log2, [&] {
    return [row = bits.data(), log2,
            words = std::vector<std::uint64_t>(((std::size_t{1} << log2) + 63) / 64)](
               std::size_t block) mutable { transform_bits(row + (block << log2), log2, &words); };
  });
}

}  // namespace gradcomp::polar_code
