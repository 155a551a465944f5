#include "coding/rans.hpp"

#include <algorithm>
#include <cstring>

#include "coding/bits.hpp"
#include "coding/elias.hpp"
#include "core/bytes.hpp"

namespace gradcomp {
namespace {

__extension__ typedef unsigned __int128 Wide;  // not ISO C++, hence the marker

constexpr unsigned kTotalBits = kRansBits;
constexpr std::uint32_t kTotal = kRansTotal;
constexpr std::uint64_t kLowest = std::uint64_t{1} << 31;  // states are in [2^31, 2^63)
constexpr std::size_t kStates = 4;
constexpr std::size_t kMaxSymbols = 256;

// What encoding a symbol takes. state / frequency is a multiplication by the inverse and a shift
// (Alverson: "Integer division using reciprocals", 1991). As small as it can be: four to a cache
// line, and found by a shift.
struct EncodeStep {
  std::uint64_t inverse;
  std::uint16_t bias;
  std::uint16_t frequency;
  std::uint16_t complement;  // kTotal - frequency
  std::uint16_t shift;
};
static_assert(2 * kTotal - 2 <= 0xFFFF, "the largest bias");

void prepare_steps(const Frequencies& frequencies, EncodeStep* steps) {
  std::uint32_t start = 0;
  for (std::size_t s = 0; s < frequencies.count; ++s) {
    const std::uint32_t f = frequencies.of[s];
    EncodeStep& step = steps[s];
    step.frequency = static_cast<std::uint16_t>(f);
    step.complement = static_cast<std::uint16_t>(kTotal - f);
    if (f < 2) {
      // The quotient comes out as state - 1; the bias makes up for it.
      step.inverse = ~std::uint64_t{0};
      step.shift = 0;
      step.bias = static_cast<std::uint16_t>(start + kTotal - 1);
    } else {
      unsigned shift = 0;
      while (f > 1u << shift) ++shift;
      step.inverse = static_cast<std::uint64_t>(((Wide{1} << (shift + 63)) + f - 1) / f);
      step.shift = static_cast<std::uint16_t>(shift - 1);
      step.bias = static_cast<std::uint16_t>(start);
    }
    start += f;
  }
}

// All ones or all zeros. Whether a state sheds or takes a word cannot be predicted: compilers must
// not make a jump of it.
inline std::uint64_t mask_if(bool condition) { return ~std::uint64_t{condition} + 1; }

// Writes the lower half of a state that is too large to take symbols whose frequencies have the
// given product: of one symbol scaled by kTotal, or of two.
inline std::uint64_t shed(std::uint64_t state, std::uint64_t product, std::uint8_t** to) {
  const unsigned full = state >= product << (63 - 2 * kTotalBits) ? 1 : 0;
  store(*to - 4, static_cast<std::uint32_t>(state));
  *to -= 4 * full;
  return state >> 32 * full;
}

inline std::uint64_t push(std::uint64_t state, const EncodeStep& step) {
  const auto high = static_cast<std::uint64_t>(static_cast<Wide>(state) * step.inverse >> 64);
  return state + step.bias + (high >> step.shift) * step.complement;
}

inline std::uint64_t push_pair(std::uint64_t state, const EncodeStep& first,
                               const EncodeStep& second, std::uint8_t** to) {
  state = shed(state, std::uint64_t{first.frequency} * second.frequency, to);
  return push(push(state, second), first);
}

// A symbol's frequency and the sum of those before it.
struct Interval {
  std::uint16_t frequency;
  std::uint16_t start;
};

inline std::uint64_t pop(std::uint64_t state, const std::uint8_t* symbol_at,
                         const Interval* intervals, std::uint8_t* symbol) {
  const std::uint64_t slot = state & (kTotal - 1);
  *symbol = symbol_at[slot];
  const Interval interval = intervals[*symbol];
  return interval.frequency * (state >> kTotalBits) + slot - interval.start;
}

}  // namespace

void count_symbols(Span<const std::uint8_t> symbols, std::uint32_t* counts) {
  // Four histograms: adding twice in a row to one counter would wait for the store.
  std::uint32_t parts[4][kMaxSymbols] = {};
  std::size_t i = 0;
  for (; i + 8 <= symbols.size(); i += 8) {
    const auto word = load<std::uint64_t>(symbols.data() + i);
    for (unsigned j = 0; j < 8; ++j) ++parts[j % 4][word >> 8 * j & 0xFF];
  }
  for (; i < symbols.size(); ++i) ++parts[0][symbols[i]];
  for (std::size_t s = 0; s < kMaxSymbols; ++s) {
    counts[s] = parts[0][s] + parts[1][s] + parts[2][s] + parts[3][s];
  }
}

// Rounding leaves a sum that is a little off: one by one, the frequencies are changed for which it
// costs the fewest bits (count / frequency, about).
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
                        std::uint8_t* out, std::size_t room) {
  if (room < 8 * kStates) return 0;
  EncodeStep steps[kMaxSymbols];
  prepare_steps(frequencies, steps);

  // From the last symbol to the first, and from the end of the room to its beginning: a decoder
  // goes the other way.
  std::uint8_t* const end = out + room;
  std::uint8_t* to = end;
  std::uint8_t* const least = out + 8 * kStates;
  std::uint64_t states[kStates] = {kLowest, kLowest, kLowest, kLowest};
  const auto space = [&] { return static_cast<std::size_t>(to - least); };
  std::size_t pairs = (symbols.size() + 1) / 2;
  for (; pairs % kStates != 0 || 2 * pairs > symbols.size(); --pairs) {
    if (space() < 4) return 0;
    std::uint64_t& state = states[(pairs - 1) % kStates];
    const EncodeStep& first = steps[symbols[2 * pairs - 2]];
    if (2 * pairs > symbols.size()) {
      state = push(shed(state, std::uint64_t{first.frequency} * kTotal, &to), first);
    } else {
      state = push_pair(state, first, steps[symbols[2 * pairs - 1]], &to);
    }
  }
  std::uint64_t a = states[0], b = states[1], c = states[2], d = states[3];
  for (std::size_t i = 2 * pairs; i > 0; i -= 2 * kStates) {
    if (space() < 4 * kStates) return 0;
    const std::uint8_t* from = symbols.data() + i - 2 * kStates;
    d = push_pair(d, steps[from[6]], steps[from[7]], &to);
    c = push_pair(c, steps[from[4]], steps[from[5]], &to);
    b = push_pair(b, steps[from[2]], steps[from[3]], &to);
    a = push_pair(a, steps[from[0]], steps[from[1]], &to);
  }
  std::uint8_t* head = out;
  for (std::uint64_t state : {a, b, c, d}) {
    store(head, state);
    head += 8;
  }
  const auto words = static_cast<std::size_t>(end - to);
  std::memmove(head, to, words);
  return 8 * kStates + words;
}

bool rans_decode(Span<const std::uint8_t> in, const Frequencies& frequencies,
                 Span<std::uint8_t> symbols) {
  if (in.size() < 8 * kStates) return false;
  std::uint8_t symbol_at[kTotal];
  Interval intervals[kMaxSymbols];
  std::uint32_t start = 0;
  for (std::size_t s = 0; s < frequencies.count; ++s) {
    const std::uint32_t f = frequencies.of[s];
    intervals[s] = {static_cast<std::uint16_t>(f), static_cast<std::uint16_t>(start)};
    std::memset(symbol_at + start, static_cast<int>(s), f);
    start += f;
  }
  const std::uint8_t* from = in.data();
  const std::uint8_t* const end = in.end();
  std::uint64_t states[kStates];
  for (std::uint64_t& state : states) {
    state = load<std::uint64_t>(from);
    if (state < kLowest || state >> 63 != 0) return false;
    from += 8;
  }
  std::uint64_t a = states[0], b = states[1], c = states[2], d = states[3];
  const auto refill = [&from](std::uint64_t state) {
    const std::uint64_t low = mask_if(state < kLowest);
    const std::uint64_t filled = state << 32 | load<std::uint32_t>(from);
    from += low & 4;
    return state ^ ((state ^ filled) & low);
  };
  const auto pop_pair = [&](std::uint64_t state, std::uint8_t* to) {
    state = pop(state, symbol_at, intervals, to);
    return refill(pop(state, symbol_at, intervals, to + 1));
  };
  std::size_t i = 0;
  const std::size_t n = symbols.size();
  while (i + 2 * kStates <= n && static_cast<std::size_t>(end - from) >= 4 * kStates) {
    std::uint8_t* const to = symbols.data() + i;
    a = pop_pair(a, to);
    b = pop_pair(b, to + 2);
    c = pop_pair(c, to + 4);
    d = pop_pair(d, to + 6);
    i += 2 * kStates;
  }
  states[0] = a;
  states[1] = b;
  states[2] = c;
  states[3] = d;
  while (i < n) {
    std::uint64_t& state = states[i / 2 % kStates];
    const std::size_t stop = std::min(i + 2, n);
    for (; i < stop; ++i) state = pop(state, symbol_at, intervals, symbols.data() + i);
    if (state >= kLowest) continue;
    if (end - from < 4) return false;
    state = refill(state);
  }
  // Every state must be back where the encoder began.
  return from == end && std::all_of(states, states + kStates,
                                    [](std::uint64_t state) { return state == kLowest; });
}

std::size_t rans_encode(Span<const std::uint8_t> symbols, unsigned bits, std::uint8_t* out,
                        std::size_t room) {
  std::uint32_t counts[kMaxSymbols];
  count_symbols(symbols, counts);
  Frequencies frequencies;
  scale_counts(counts, static_cast<std::uint32_t>(symbols.size()), &frequencies);
  std::uint8_t table[kMaxRansTable];
  const std::size_t table_bytes = write_frequencies(frequencies, bits, table);
  if (room < table_bytes) return 0;
  const std::size_t body = rans_encode(symbols, frequencies, out + table_bytes, room - table_bytes);
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
