#include "codecs/adaptive/codewords.hpp"

#include <algorithm>
#include <cstring>

#include "base/bytes.hpp"
#include "kernels/polar.hpp"
#include "polar/block_coder.hpp"
#include "polar/lattice_code.hpp"

namespace gradcomp {
namespace {

constexpr unsigned kMaxLanesLog2 = 6;
static_assert(std::size_t{1} << kMaxLanesLog2 == kLanes, "the kernels have 64 lanes");

// There are as many lanes as leave each code kFewRows rows or more. Longer codes than kMaxRows are
// cut into blocks.
constexpr std::size_t kFewRows = 1024;
constexpr std::size_t kMaxRows = 4096;

constexpr unsigned kHalfWord = 32;  // most bits that BitWriter and BitReader take at once

}  // namespace

Codewords::Codewords(std::size_t n) : lanes_log2_(kMaxLanesLog2) {
  while (lanes_log2_ > 0 && n >> lanes_log2_ < kFewRows) --lanes_log2_;
  rows_ = (n + lanes() - 1) / lanes();
  const std::size_t count = (rows_ + kMaxRows - 1) / kMaxRows;
  for (std::size_t b = 0; b < count; ++b) {
    const std::size_t begin = rows_ * b / count;
    const std::size_t rows = rows_ * (b + 1) / count - begin;
    unsigned log2 = 0;
    while (std::size_t{1} << log2 < rows) ++log2;
    const bool same = b != 0 && blocks_.back().rows == rows;
    blocks_.push_back({begin, rows, log2, same ? blocks_.back().nodes : lattice_tree(log2, rows)});
  }
}

std::size_t Codewords::words() const {
  std::size_t sum = 0;
  for (const Block& block : blocks_) sum += lattice_words(block.rows);
  return sum;
}

void Codewords::encode(const std::int8_t* llr, std::uint64_t* bits, std::uint8_t* out) const {
  std::vector<std::int8_t> padded;
  std::vector<std::int8_t> work;
  std::vector<std::uint64_t> rows;
  std::vector<std::uint8_t> words;
  BitWriter writer(out);
  for (const Block& block : blocks_) {
    const std::size_t size = std::size_t{1} << block.log2;
    padded.assign(kLanes * size, 0);
    std::memcpy(padded.data(), llr + kLanes * block.begin, kLanes * block.rows);
    work.resize(kLanes * size);
    rows.resize(size);
    words.resize(8 * lattice_words(block.rows));
    polar_encode(block.nodes.data(), block.log2, padded.data(), work.data(), rows.data(),
                 words.data());
    std::copy(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(block.rows),
              bits + block.begin);
    for (std::size_t i = 0; i < words.size(); i += 8)
      put_word(load<std::uint64_t>(&words[i]), &writer);
  }
  writer.finish();
}

bool Codewords::decode(const std::uint8_t* in, std::uint64_t* bits) const {
  std::vector<std::uint64_t> rows;
  std::vector<std::uint8_t> words;
  BitReader reader({in, bytes()});
  for (const Block& block : blocks_) {
    rows.resize(std::size_t{1} << block.log2);
    words.resize(8 * lattice_words(block.rows));
    for (std::size_t i = 0; i < words.size(); i += 8) store(&words[i], get_word(&reader));
    polar_decode(block.nodes.data(), block.log2, words.data(), rows.data());
    std::copy(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(block.rows),
              bits + block.begin);
  }
  return reader.finished();
}

void Codewords::put_word(std::uint64_t word, BitWriter* writer) const {
  const auto count = static_cast<unsigned>(lanes());
  if (count <= kHalfWord) {
    writer->put(word & ((std::uint64_t{1} << count) - 1), count);
    return;
  }
  writer->put(word & 0xFFFFFFFFu, kHalfWord);
  writer->put(word >> kHalfWord, kHalfWord);
}

std::uint64_t Codewords::get_word(BitReader* reader) const {
  const auto count = static_cast<unsigned>(lanes());
  if (count <= kHalfWord) return reader->get(count);
  const std::uint64_t low = reader->get(kHalfWord);
  return low | std::uint64_t{reader->get(kHalfWord)} << kHalfWord;
}

}  // namespace gradcomp
