#include "polar/encoder.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "polar/blocks.hpp"

namespace gradcomp::polar_code {
namespace {

class Encoder {
 public:
  explicit Encoder(const Code& code)
      : code_(&code), bits_(code.mother()), words_((code.mother() + 63) / 64) {}

  void encode(const std::uint8_t* message, std::uint8_t* codeword) {
    std::fill(words_.begin(), words_.end(), std::uint64_t{0});
    for (std::size_t i = 0; i < code_->message; ++i) {
      const std::uint32_t at = code_->information[i];
      words_[at / 64] |= std::uint64_t{message[i]} << (at % 64);
    }
    transform_packed(words_.data(), code_->log2);
    const bool whole = code_->length == code_->mother();
    unpack_bits(words_.data(), code_->mother(), whole ? codeword : bits_.data());
    if (whole) return;
    for (std::size_t i = 0; i < code_->length; ++i) codeword[i] = bits_[code_->kept[i]];
  }

 private:
  const Code* code_;
  std::vector<std::uint8_t> bits_;
  std::vector<std::uint64_t> words_;
};

class SystematicEncoder {
 public:
  explicit SystematicEncoder(const Code& code)
      : code_(&code), bits_(code.mother()), informative_(code.mother() + 1) {
    for (std::uint32_t i : code.information) informative_[i + 1] = 1;
    std::partial_sum(informative_.begin(), informative_.end(), informative_.begin());
  }

  void encode(const std::uint8_t* message, std::uint8_t* codeword) {
    std::fill(bits_.begin(), bits_.end(), std::uint8_t{0});
    for (std::size_t i = 0; i < code_->message; ++i) bits_[code_->information[i]] = message[i];
    complete(0, bits_.size());
    for (std::size_t i = 0; i < code_->length; ++i) codeword[i] = bits_[code_->kept[i]];
  }

 private:
  // Completes the output of a part of the transform, given the output at information positions and
  // inputs of 0 at frozen ones: Arikan, "Systematic Polar Coding", IEEE Commun. Lett. 15(8), 2011.
  // Unlike transforming twice, this is correct for every set of positions.
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
  std::vector<std::uint8_t> bits_;
  std::vector<std::uint32_t> informative_;  // as Code::informative, but in natural order
};

template <typename AnyEncoder>
Status encode_with(const Code& code, const std::uint8_t* messages, std::uint8_t* codewords,
                   std::size_t blocks) {
  return for_blocks(blocks, [&] {
    return [&code, messages, codewords, encoder = AnyEncoder(code)](std::size_t block) mutable {
      encoder.encode(messages + block * code.message, codewords + block * code.length);
    };
  });
}

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
  const auto run = systematic ? &encode_with<SystematicEncoder> : &encode_with<Encoder>;
  return run(code, messages.data(), codewords.data(), blocks);
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
