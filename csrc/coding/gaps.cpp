#include "coding/gaps.hpp"

#include "base/bytes.hpp"
#include "coding/bits.hpp"

namespace gradcomp {
namespace {

// The symbol of a gap has its exponent and the kMantissa bits after its highest one, as floats do;
// all lower bits follow plainly, since they are nearly uniform. Gaps below kExact have no lower
// bits.
constexpr unsigned kMantissa = 3;
constexpr std::uint32_t kExact = 1u << kMantissa;
constexpr std::size_t kSizeBytes = 4;
constexpr std::size_t kStates = 4 * kRansLanes;  // bytes
constexpr unsigned kMaxLower = 8;                // bits; gaps have 12

struct GapSymbol {
  std::uint32_t symbol;
  unsigned lower;  // number of lower bits
};

GapSymbol symbol_of(std::uint32_t gap) {
  if (gap < kExact) return {gap, 0};
  const unsigned lower = 31u - static_cast<unsigned>(__builtin_clz(gap)) - kMantissa;
  return {kExact * lower + (gap >> lower), lower};
}

struct GapRange {
  std::uint32_t first;
  unsigned lower;
};

GapRange range_of(std::uint32_t symbol) {
  if (symbol < 2 * kExact) return {symbol, 0};
  const unsigned lower = symbol / kExact - 1;
  return {(kExact + symbol % kExact) << lower, lower};
}

}  // namespace

// The gap g before a kept element has the probability C(N - 1 - g, k - 1) / C(N, k), for random
// choices of k of N elements: k / N for g = 0, and each next one is the one before times
// (N - k - g) / (N - 1 - g).
GapCoder::GapCoder(std::size_t kept) {
  double of_symbol[256] = {};
  double p = static_cast<double>(kept) / static_cast<double>(kGapBlock);
  for (std::size_t gap = 0; gap < kGapBlock; ++gap) {
    of_symbol[symbol_of(static_cast<std::uint32_t>(gap)).symbol] += p;
    if (gap + kept >= kGapBlock) break;
    p = p * static_cast<double>(kGapBlock - kept - gap) / static_cast<double>(kGapBlock - 1 - gap);
  }
  // Every symbol has a frequency: blocks may be smaller or keep more.
  const std::size_t symbols = symbol_of(kGapBlock - 1).symbol + std::size_t{1};
  std::uint32_t counts[256] = {};
  std::uint32_t total = 0;
  for (std::size_t s = 0; s < symbols; ++s) {
    counts[s] = 1 + static_cast<std::uint32_t>(of_symbol[s] * 0x1p30);
    total += counts[s];
  }
  scale_counts(counts, total, &frequencies_);
}

std::size_t GapCoder::max_bytes(std::size_t count) noexcept {
  return count == 0 ? 0 : kSizeBytes + kRansWord * count + kStates + (kMaxLower * count + 7) / 8;
}

std::size_t GapCoder::encode(Span<const std::uint32_t> gaps, Span<std::uint8_t> symbols,
                             std::uint8_t* out) const {
  const std::size_t count = gaps.size();
  if (count == 0) return 0;
  for (std::size_t i = 0; i < count; ++i) {
    symbols[i] = static_cast<std::uint8_t>(symbol_of(gaps[i]).symbol);
  }
  const std::size_t size = rans_encode({symbols.data(), count}, frequencies_, out + kSizeBytes,
                                       kRansWord * count + kStates);
  store(out, static_cast<std::uint32_t>(size));
  BitWriter lower(out + kSizeBytes + size);
  for (std::uint32_t gap : gaps) {
    const unsigned bits = symbol_of(gap).lower;
    lower.put(gap & ((1u << bits) - 1), bits);
  }
  return kSizeBytes + size + lower.finish();
}

bool GapCoder::decode(Span<const std::uint8_t> in, Span<std::uint8_t> symbols,
                      Span<std::uint32_t> gaps) const {
  const std::size_t count = gaps.size();
  if (count == 0) return in.size() == 0;
  if (in.size() < kSizeBytes) return false;
  const std::size_t size = load<std::uint32_t>(in.data());
  const std::size_t rest = in.size() - kSizeBytes;
  if (size > rest) return false;
  const std::uint8_t* const code = in.data() + kSizeBytes;
  if (!rans_decode({code, size}, frequencies_, {symbols.data(), count})) return false;
  BitReader lower({code + size, rest - size});
  for (std::size_t i = 0; i < count; ++i) {
    const GapRange range = range_of(symbols[i]);
    gaps[i] = range.first + lower.get(range.lower);
  }
  return lower.finished();
}

}  // namespace gradcomp
