#include "coding/digits.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bytes.hpp"
#include "coding/rans.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Least width that fits all numbers.
unsigned width_of(Span<const std::uint8_t> numbers) {
  std::uint64_t used[4] = {};  // four accumulators, so that no step waits for the one before
  std::size_t i = 0;
  for (; i + 32 <= numbers.size(); i += 32) {
    for (std::size_t j = 0; j < 4; ++j) used[j] |= load<std::uint64_t>(numbers.data() + i + 8 * j);
  }
  for (; i < numbers.size(); ++i) used[0] |= numbers[i];
  const std::uint64_t bits = used[0] | used[1] | used[2] | used[3];
  if ((bits & 0xF0F0F0F0F0F0F0F0u) != 0) return 8;
  return (bits & 0x0C0C0C0C0C0C0C0Cu) != 0 ? 4 : 2;
}

// Frequencies of bytes of independent numbers.
Frequencies symbol_frequencies(const Frequencies& digits, unsigned width) {
  if (width == 8) return digits;
  Frequencies result;
  const unsigned mask = (1u << width) - 1;
  const unsigned excess = kRansBits * (8 / width - 1);
  std::uint32_t sum = 0;
  std::uint32_t kinds = 0;
  std::size_t most = 0;
  for (unsigned s = 0; s < 256; ++s) {
    std::uint64_t product = 1;
    for (unsigned at = 0; at < 8; at += width) product *= digits.of[s >> at & mask];
    if (product == 0) continue;
    const std::uint64_t rounded = (product + (std::uint64_t{1} << (excess - 1))) >> excess;
    result.of[s] = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(rounded));
    result.count = s + 1;
    sum += result.of[s];
    ++kinds;
    if (result.of[s] > result.of[most]) most = s;
  }
  // Rare symbols keep frequency 1; the others share the rest.
  std::uint32_t left = kRansTotal;
  for (std::size_t s = 0; s < result.count; ++s) {
    if (result.of[s] == 0) continue;
    result.of[s] = 1 + (result.of[s] - 1) * (kRansTotal - kinds) / (sum - kinds);
    left -= result.of[s];
  }
  result.of[most] += left;
  return result;
}

}  // namespace

std::size_t digits_encode(Span<const std::uint8_t> numbers, std::uint8_t* work, std::uint8_t* out) {
  const unsigned width = width_of(numbers);
  const std::uint8_t* symbols = numbers.data();
  const std::size_t count = digit_symbols(numbers.size(), width);
  std::uint32_t counts[256] = {};
  if (width == 8) {
    count_symbols(numbers, counts);
  } else {
    kernels().coding->pack_digits(numbers.data(), width, work, numbers.size(), counts);
    symbols = work;
    const std::uint32_t others = std::accumulate(counts + 1, counts + 16, std::uint32_t{0});
    counts[0] = static_cast<std::uint32_t>(8 / width * count) - others;
  }
  Frequencies digits;
  scale_counts(counts, static_cast<std::uint32_t>(8 / width * count), &digits);
  std::uint8_t* const body = out + kDigitsHeader;
  std::uint8_t table[kMaxRansTable];
  const std::size_t table_bytes = write_frequencies(digits, width, table);
  std::size_t size = 0;
  if (table_bytes < count) {
    size = rans_encode({symbols, count}, symbol_frequencies(digits, width), body + table_bytes,
                       count - 1 - table_bytes);
  }
  if (size != 0) {
    std::memcpy(body, table, table_bytes);
    size += table_bytes;
  } else {
    std::memcpy(body, symbols, count);
    size = count;
  }
  store(out, static_cast<std::uint32_t>(size) | width << 24);
  return kDigitsHeader + size;
}

bool read_digits_header(Span<const std::uint8_t> in, std::size_t count, DigitsChunk* chunk) {
  if (in.size() < kDigitsHeader) return false;
  const auto header = load<std::uint32_t>(in.data());
  const std::size_t size = header & 0xFFFFFFu;
  const unsigned width = header >> 24;
  if (width != 2 && width != 4 && width != 8) return false;
  if (size > in.size() - kDigitsHeader || size > digit_symbols(count, width)) return false;
  *chunk = {width, {in.data() + kDigitsHeader, size}};
  return true;
}

bool digits_decode(const DigitsChunk& chunk, Span<std::uint8_t> symbols) {
  if (chunk.body.size() == symbols.size()) {
    std::memcpy(symbols.data(), chunk.body.data(), symbols.size());
    return true;
  }
  Frequencies digits;
  const std::size_t table_bytes = read_frequencies(chunk.body, chunk.width, &digits);
  return table_bytes != 0 &&
         rans_decode({chunk.body.data() + table_bytes, chunk.body.size() - table_bytes},
                     symbol_frequencies(digits, chunk.width), symbols);
}

void unpack_digits(const std::uint8_t* symbols, unsigned width, std::uint8_t* numbers,
                   std::size_t count) {
  if (width == 8) {
    std::memcpy(numbers, symbols, count);
  } else {
    kernels().coding->unpack_digits(symbols, width, numbers, count);
  }
}

}  // namespace gradcomp
