#include "coding/rans.hpp"

#include <algorithm>
#include <cstring>

#include "base/bytes.hpp"
#include "coding/bits.hpp"
#include "coding/elias.hpp"
#include "coding/rans_step.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::uint32_t kTotal = kRansTotal;
constexpr std::size_t kMaxSymbols = 256;

constexpr std::size_t kFewLanes = 4;
constexpr std::size_t kStateBytes = 4;

// Many states are fast, but too large for a short code. The entropy is at least two bits times the
// probability that two symbols differ, so from here on the code has 8 KiB or more.
constexpr std::uint64_t kLongCode = std::uint64_t{1} << 15;

std::size_t lanes_of(std::size_t symbols, const Frequencies& frequencies) {
  constexpr std::uint64_t kPairs = std::uint64_t{kTotal} * kTotal;
  std::uint64_t equal = 0;
  for (std::size_t s = 0; s < frequencies.count; ++s) {
    equal += std::uint64_t{frequencies.of[s]} * frequencies.of[s];
  }
  return symbols * (kPairs - equal) < kLongCode * kPairs ? kFewLanes : kRansLanes;
}

RansEncodeTable encode_table(const Frequencies& frequencies) {
  RansEncodeTable table{};
  std::uint32_t start = 0;
  for (std::size_t s = 0; s < frequencies.count; ++s) {
    const std::uint32_t f = frequencies.of[s];
    if (f == 0) continue;
    table.of[s] = rans_symbol(start, f);
    start += f;
  }
  return table;
}

RansDecodeTable decode_table(const Frequencies& frequencies) {
  RansDecodeTable table;
  std::uint32_t start = 0;
  for (std::size_t s = 0; s < frequencies.count; ++s) {
    const std::uint32_t f = frequencies.of[s];
    table.packed[s] = start | f << 16;
    std::memset(table.symbol_at + start, static_cast<int>(s), f);
    start += f;
  }
  return table;
}

}  // namespace

RansSymbol rans_symbol(std::uint32_t start, std::uint32_t f) {
  std::uint32_t shift = 0;
  while (f > 1u << shift) ++shift;
  const std::uint64_t inverse = ((std::uint64_t{1} << (31 + shift)) + f - 1) / f;
  return {static_cast<std::uint32_t>(inverse), start | (kTotal - f) << kRansBits | shift << 28};
}

void count_symbols(Span<const std::uint8_t> symbols, std::uint32_t* counts) {
  // Four histograms: adding twice in a row to one counter would wait for the store.
  std::uint32_t parts[4][kMaxSymbols] = {};
  std::size_t i = 0;
  for (; i + 8 <= symbols.size(); i += 8) {
    const auto word = load<std::uint64_t>(symbols.data() + i);
    if (word == (word >> 8 | word << 56)) {  // eight equal ones, typical of runs of zeros
      parts[0][word & 0xFF] += 8;
      continue;
    }
    for (unsigned j = 0; j < 8; ++j) ++parts[j % 4][word >> 8 * j & 0xFF];
  }
  for (; i < symbols.size(); ++i) ++parts[0][symbols[i]];
  for (std::size_t s = 0; s < kMaxSymbols; ++s) {
    counts[s] = parts[0][s] + parts[1][s] + parts[2][s] + parts[3][s];
  }
}

// Rounding leaves a sum that is slightly off. One by one, the frequencies are changed where it
// costs the fewest bits, about count / frequency.
void scale_counts(const std::uint32_t* counts, std::uint32_t total, Frequencies* frequencies) {
  std::uint8_t present[kMaxSymbols];
  std::size_t kinds = 0;
  std::uint32_t sum = 0;
  for (std::size_t s = 0; s < kMaxSymbols; ++s) {
    if (counts[s] == 0) continue;
    present[kinds++] = static_cast<std::uint8_t>(s);
    frequencies->count = s + 1;
    const std::uint64_t scaled = (std::uint64_t{counts[s]} * kTotal + total / 2) / total;
    frequencies->of[s] = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(scaled));
    sum += frequencies->of[s];
  }
  while (sum != kTotal) {
    const bool shrink = sum > kTotal;
    std::uint64_t best_count = 0;
    std::uint64_t best_share = 0;
    std::size_t best = kMaxSymbols;
    for (std::size_t i = 0; i < kinds; ++i) {
      const std::size_t s = present[i];
      const std::uint64_t f = frequencies->of[s];
      if (shrink && f == 1) continue;
      const std::uint64_t share = shrink ? 2 * f - 1 : 2 * f + 1;
      // counts[s] / share against best_count / best_share
      const std::uint64_t left = counts[s] * best_share;
      const std::uint64_t right = best_count * share;
      if (best == kMaxSymbols || (shrink ? left < right : left > right)) {
        best = s;
        best_count = counts[s];
        best_share = share;
      }
    }
    frequencies->of[best] += shrink ? ~std::uint32_t{0} : 1;
    sum += shrink ? ~std::uint32_t{0} : 1;
  }
}

std::size_t write_frequencies(const Frequencies& frequencies, unsigned bits, std::uint8_t* out) {
  BitWriter writer(out);
  writer.put(frequencies.count - 1, bits);
  for (std::size_t s = 0; s < frequencies.count; ++s) {
    const EliasCode code = elias_delta(frequencies.of[s] + 1);
    writer.put(code.code, code.bits);
  }
  return writer.finish();
}

std::size_t read_frequencies(Span<const std::uint8_t> in, unsigned bits, Frequencies* frequencies) {
  BitReader reader(in);
  frequencies->count = reader.get(bits) + 1;
  std::size_t used = bits;
  std::uint32_t sum = 0;
  for (std::size_t s = 0; s < frequencies->count; ++s) {
    const std::uint32_t value = read_elias_delta(&reader);
    if (value == 0 || value > kTotal + 1) return 0;
    frequencies->of[s] = value - 1;
    used += elias_delta(value).bits;
    sum += value - 1;
  }
  const auto padding = static_cast<unsigned>((8 - used % 8) % 8);
  const std::size_t bytes = (used + padding) / 8;
  const bool valid = bytes <= in.size() && reader.get(padding) == 0 && sum == kTotal &&
                     frequencies->of[frequencies->count - 1] != 0;
  return valid ? bytes : 0;
}

std::size_t rans_encode(Span<const std::uint8_t> symbols, const Frequencies& frequencies,
                        std::uint8_t* out, std::size_t capacity) {
  const std::size_t lanes = lanes_of(symbols.size(), frequencies);
  if (capacity < kStateBytes * lanes) return 0;
  const RansEncodeTable table = encode_table(frequencies);
  std::uint32_t states[kRansLanes];
  std::fill(states, states + lanes, kRansLowest);
  // From the last symbol to the first: decoding runs the other way.
  std::uint8_t* to = out;
  const std::uint8_t* const end = out + capacity - kStateBytes * lanes;
  std::size_t left = symbols.size();
  while (left != 0) {
    left = kernels().coding->rans_encode(symbols.data(), left, lanes, table, states, &to, end);
    if (left == 0) break;
    // A step for which the capacity may not suffice.
    const std::size_t count = left % lanes != 0 ? left % lanes : lanes;
    left -= count;
    std::uint8_t words[kRansWord * kRansLanes];
    const auto size = static_cast<std::size_t>(
        rans_encode_step(symbols.data() + left, count, table, states, words) - words);
    if (size > static_cast<std::size_t>(end - to)) return 0;
    std::memcpy(to, words, size);
    to += size;
  }
  std::memcpy(to, states, kStateBytes * lanes);
  return static_cast<std::size_t>(to - out) + kStateBytes * lanes;
}

bool rans_decode(Span<const std::uint8_t> in, const Frequencies& frequencies,
                 Span<std::uint8_t> symbols) {
  const std::size_t n = symbols.size();
  const std::size_t lanes = lanes_of(n, frequencies);
  if (in.size() < kStateBytes * lanes) return false;
  const std::uint8_t* const begin = in.data();
  const std::uint8_t* from = in.end() - kStateBytes * lanes;
  std::uint32_t states[kRansLanes];
  std::memcpy(states, from, kStateBytes * lanes);
  if (!std::all_of(states, states + lanes,
                   [](std::uint32_t state) { return state >= kRansLowest && state >> 31 == 0; })) {
    return false;
  }
  const RansDecodeTable table = decode_table(frequencies);
  std::size_t i = 0;
  if (lanes == kRansLanes) {
    i = kernels().coding->rans_decode(begin, &from, table, states, symbols.data(), n);
  }
  while (i < n) {
    const std::size_t count = std::min(lanes, n - i);
    const auto left = static_cast<std::size_t>(from - begin);
    if (left >= kRansWord * count) {
      from = rans_decode_step(from, table, states, symbols.data() + i, count);
    } else {
      std::uint8_t words[kRansWord * kRansLanes] = {};
      std::uint8_t* const end = words + sizeof words;
      std::memcpy(end - left, begin, left);
      const auto used = static_cast<std::size_t>(
          end - rans_decode_step(end, table, states, symbols.data() + i, count));
      if (used > left) return false;
      from -= used;
    }
    i += count;
  }
  // Every state must end where the encoder began.
  return from == begin && std::all_of(states, states + lanes,
                                      [](std::uint32_t state) { return state == kRansLowest; });
}

std::size_t rans_encode(Span<const std::uint8_t> symbols, unsigned bits, std::uint8_t* out,
                        std::size_t capacity) {
  std::uint32_t counts[kMaxSymbols];
  count_symbols(symbols, counts);
  return rans_encode(symbols, bits, counts, out, capacity);
}

std::size_t rans_encode(Span<const std::uint8_t> symbols, unsigned bits,
                        const std::uint32_t* counts, std::uint8_t* out, std::size_t capacity) {
  Frequencies frequencies;
  scale_counts(counts, static_cast<std::uint32_t>(symbols.size()), &frequencies);
  std::uint8_t table[kMaxRansTable];
  const std::size_t table_bytes = write_frequencies(frequencies, bits, table);
  if (capacity < table_bytes) return 0;
  const std::size_t body =
      rans_encode(symbols, frequencies, out + table_bytes, capacity - table_bytes);
  if (body == 0) return 0;
  std::memcpy(out, table, table_bytes);
  return table_bytes + body;
}

bool rans_decode(Span<const std::uint8_t> in, unsigned bits, Span<std::uint8_t> symbols) {
  Frequencies frequencies;
  const std::size_t table_bytes = read_frequencies(in, bits, &frequencies);
  return table_bytes != 0 &&
         rans_decode({in.data() + table_bytes, in.size() - table_bytes}, frequencies, symbols);
}

}  // namespace gradcomp
