#include "coding/indices.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "coding/bits.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kRiceBlock = 512;  // indices that share a parameter
constexpr unsigned kRiceParameterBits = 5;

unsigned floor_log2(std::size_t x) { return 63u - static_cast<unsigned>(__builtin_clzll(x)); }

// Number of lower bits that Elias-Fano stores plainly (Elias 1974, Fano 1971): log2 of the mean
// gap.
unsigned elias_fano_low_bits(std::size_t n, std::size_t count) {
  return count == 0 || n <= count ? 0 : floor_log2(n / count);
}

std::size_t elias_fano_bytes(Span<const std::uint32_t> indices, std::size_t n) {
  if (indices.empty()) return 0;
  const unsigned low = elias_fano_low_bits(n, indices.size());
  const std::size_t upper = indices.size() + (indices[indices.size() - 1] >> low);
  return (indices.size() * low + 7) / 8 + (upper + 7) / 8;
}

std::size_t encode_elias_fano(Span<const std::uint32_t> indices, std::size_t n, std::uint8_t* out) {
  const unsigned low = elias_fano_low_bits(n, indices.size());
  BitWriter lower(out);
  for (std::uint32_t index : indices) lower.put(index & ((1u << low) - 1), low);
  const std::size_t lower_bytes = lower.finish();
  BitWriter upper(out + lower_bytes);
  std::uint32_t last = 0;
  for (std::uint32_t index : indices) {
    upper.put_unary((index >> low) - last);
    last = index >> low;
  }
  return lower_bytes + upper.finish();
}

// A block of indices as gaps (elements skipped since the previous index), with their best
// parameter.
struct RiceBlock {
  std::uint32_t gaps[kRiceBlock];
  std::size_t count;
  unsigned parameter;
  std::size_t bits;  // including the parameter

  RiceBlock(Span<const std::uint32_t> indices, std::size_t begin) {
    count = std::min(kRiceBlock, indices.size() - begin);
    std::uint32_t next = begin == 0 ? 0 : indices[begin - 1] + 1;
    const std::size_t sum = indices[begin + count - 1] + 1 - count - next;
    for (std::size_t i = 0; i < count; ++i) {
      gaps[i] = indices[begin + i] - next;
      next = indices[begin + i] + 1;
    }
    // The best parameter of geometric gaps is near log2 of their mean: try its neighbours too.
    const unsigned guess = sum <= count ? 0 : floor_log2(sum / count);
    bits = ~std::size_t{0};
    for (unsigned r = guess == 0 ? 0 : guess - 1; r <= guess + 1; ++r) {
      std::uint32_t quotients = 0;  // their sum is below the tensor's size
      for (std::size_t i = 0; i < count; ++i) quotients += gaps[i] >> r;
      const std::size_t needed = kRiceParameterBits + count * (1 + r) + quotients;
      if (needed < bits) {
        bits = needed;
        parameter = r;
      }
    }
  }
};

std::size_t rice_bytes(Span<const std::uint32_t> indices) {
  std::size_t bits = 0;
  for (std::size_t begin = 0; begin < indices.size(); begin += kRiceBlock) {
    bits += RiceBlock(indices, begin).bits;
  }
  return (bits + 7) / 8;
}

std::size_t encode_rice(Span<const std::uint32_t> indices, std::uint8_t* out) {
  BitWriter writer(out);
  for (std::size_t begin = 0; begin < indices.size(); begin += kRiceBlock) {
    const RiceBlock block(indices, begin);
    const unsigned r = block.parameter;
    writer.put(r, kRiceParameterBits);
    for (std::size_t i = 0; i < block.count; ++i) {
      const std::uint32_t quotient = block.gaps[i] >> r;
      const std::uint64_t rest = block.gaps[i] & ((1u << r) - 1);
      if (quotient + 1 + r <= 32) {
        writer.put(rest << (quotient + 1) | ((std::uint64_t{1} << quotient) - 1), quotient + 1 + r);
      } else {
        writer.put_unary(quotient);
        writer.put(rest, r);
      }
    }
  }
  return writer.finish();
}

std::size_t encode_bitmask(Span<const std::uint32_t> indices, std::size_t n, std::uint8_t* out) {
  const std::size_t bytes = (n + 7) / 8;
  if (bytes > 0) std::memset(out, 0, bytes);
  // Word by word: adding bit by bit to memory would wait for the store before.
  std::uint64_t word = 0;
  std::size_t at = 0;
  const auto flush = [&] { std::memcpy(out + at, &word, std::min<std::size_t>(8, bytes - at)); };
  for (std::uint32_t index : indices) {
    if (index / 64 * 8 != at) {
      flush();
      at = index / 64 * 8;
      word = 0;
    }
    word |= std::uint64_t{1} << index % 64;
  }
  if (bytes > 0) flush();
  return bytes;
}

Status bad_length(Span<const std::uint8_t> in, std::size_t expected) {
  return wire_error("coded indices of " + std::to_string(in.size()) + " bytes; there must be " +
                    std::to_string(expected));
}

Status out_of_order(std::uint64_t index, std::size_t position, std::size_t n) {
  return wire_error("index " + std::to_string(index) + " at position " + std::to_string(position) +
                    ": indices must ascend and stay below " + std::to_string(n));
}

Status bad_end() {
  return wire_error("coded indices do not end where they should, or their padding is not zero");
}

Status decode_raw(Span<const std::uint8_t> in, std::size_t n, Span<std::uint32_t> indices) {
  if (in.size() != 4 * indices.size()) return bad_length(in, 4 * indices.size());
  std::uint32_t least = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::uint32_t index = load<std::uint32_t>(in.data() + 4 * i);
    if (index < least || index >= n) return out_of_order(index, i, n);
    indices[i] = index;
    least = index + 1;
  }
  return {};
}

Status decode_bitmask(Span<const std::uint8_t> in, std::size_t n, Span<std::uint32_t> indices) {
  if (in.size() != (n + 7) / 8) return bad_length(in, (n + 7) / 8);
  std::size_t count = 0;
  for (std::size_t byte = 0; byte < in.size(); byte += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, in.data() + byte, std::min<std::size_t>(8, in.size() - byte));
    if (static_cast<std::size_t>(__builtin_popcountll(word)) > indices.size() - count) {
      return bad_end();
    }
    for (; word != 0; word &= word - 1) {
      const std::size_t index = 8 * byte + static_cast<unsigned>(__builtin_ctzll(word));
      if (index >= n) return bad_end();
      indices[count++] = static_cast<std::uint32_t>(index);
    }
  }
  return count == indices.size() ? Status() : bad_end();
}

Status decode_elias_fano(Span<const std::uint8_t> in, std::size_t n, Span<std::uint32_t> indices) {
  const unsigned low = elias_fano_low_bits(n, indices.size());
  const std::size_t lower_bytes = (indices.size() * low + 7) / 8;
  if (in.size() < lower_bytes) return bad_length(in, lower_bytes);
  BitReader lower({in.data(), lower_bytes});
  BitReader upper({in.data() + lower_bytes, in.size() - lower_bytes});
  std::uint64_t high = 0;
  std::uint64_t least = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    high += upper.get_unary(n);
    const std::uint64_t index = high << low | lower.get(low);
    if (index < least || index >= n) return out_of_order(index, i, n);
    indices[i] = static_cast<std::uint32_t>(index);
    least = index + 1;
  }
  return lower.finished() && upper.finished() ? Status() : bad_end();
}

// Reads the gaps of a stream of Rice codes. Each gap begins at the end of the previous one, and
// this dependency limits the speed. So a few gaps are cut from each word, without a branch.
class RiceReader {
 public:
  explicit RiceReader(Span<const std::uint8_t> in) noexcept : in_(in) {}

  unsigned get_parameter() noexcept {
    const auto r = static_cast<unsigned>(~inverted() & ((1u << kRiceParameterBits) - 1));
    bit_ += kRiceParameterBits;
    return r;
  }

  // Reads kCount gaps. Leaves long gaps, and gaps near the end, to get().
  template <unsigned kCount>
  bool get_several(unsigned r, std::uint64_t* gaps) noexcept {
    constexpr std::uint64_t kEnd = std::uint64_t{1} << 63;  // sentinel if there is no zero
    const std::size_t byte = bit_ / 8;
    if (byte + 8 > in_.size()) return false;
    std::uint64_t word = ~load<std::uint64_t>(in_.data() + byte) >> bit_ % 8;
    std::size_t used = 0;
    for (unsigned i = 0; i < kCount; ++i) {
      const auto quotient = static_cast<unsigned>(__builtin_ctzll(word | kEnd));
      const unsigned bits = quotient + 1 + r;
      gaps[i] = std::uint64_t{quotient} << r | (~(word >> quotient >> 1) & mask(r));
      word = word >> bits % 64;
      used += bits;
    }
    if (used > kPeeked) return false;
    bit_ += used;
    return true;
  }

  // Reads a gap. Above `limit`, the result may be any number above it.
  std::uint64_t get(unsigned r, std::uint64_t limit) noexcept {
    std::uint64_t quotient = 0;
    for (unsigned ones = kPeeked; ones == kPeeked && quotient <= limit; quotient += ones) {
      ones = static_cast<unsigned>(__builtin_ctzll(inverted() | std::uint64_t{1} << kPeeked));
      bit_ += ones;
    }
    ++bit_;
    const std::uint64_t rest = ~inverted() & mask(r);
    bit_ += r;
    return quotient << r | rest;
  }

  // True if nothing was read beyond the end, and less than a byte of zeros is left.
  bool finished() const noexcept {
    const std::size_t bits = 8 * in_.size();
    return bit_ <= bits && bits - bit_ < 8 && ~inverted() == 0;
  }

 private:
  static constexpr unsigned kPeeked = 57;  // bits of a word that belong to the stream

  static std::uint32_t mask(unsigned r) noexcept { return (std::uint32_t{1} << r) - 1; }

  // Bits from the next one on, inverted; ones beyond the end of the stream.
  std::uint64_t inverted() const noexcept {
    const std::size_t byte = bit_ / 8;
    std::uint64_t word = 0;
    if (byte < in_.size()) {
      std::memcpy(&word, in_.data() + byte, std::min<std::size_t>(8, in_.size() - byte));
    }
    return ~(word >> bit_ % 8);
  }

  Span<const std::uint8_t> in_;
  std::size_t bit_ = 0;
};

Status decode_rice(Span<const std::uint8_t> in, std::size_t n, Span<std::uint32_t> indices) {
  RiceReader reader(in);
  std::uint64_t next = 0;
  for (std::size_t begin = 0; begin < indices.size(); begin += kRiceBlock) {
    const std::size_t end = std::min(begin + kRiceBlock, indices.size());
    const unsigned r = reader.get_parameter();
    std::size_t i = begin;
    while (i < end) {
      constexpr std::size_t kSeveral = 3;
      std::uint64_t gaps[kSeveral];
      if (i + kSeveral <= end && reader.get_several<kSeveral>(r, gaps)) {
        for (std::uint64_t gap : gaps) {
          next += gap;
          indices[i++] = static_cast<std::uint32_t>(next++);
        }
      } else {
        next += reader.get(r, n);
        indices[i++] = static_cast<std::uint32_t>(next++);
      }
      // Indices ascend, so the last one is the largest.
      if (next > n) return out_of_order(next - 1, i - 1, n);
    }
  }
  return reader.finished() ? Status() : bad_end();
}

std::size_t coded_bytes(IndexCoding coding, Span<const std::uint32_t> indices, std::size_t n) {
  switch (coding) {
    case IndexCoding::kRaw32:
      break;
    case IndexCoding::kBitmask:
      return (n + 7) / 8;
    case IndexCoding::kEliasFano:
      return elias_fano_bytes(indices, n);
    case IndexCoding::kRice:
      return rice_bytes(indices);
  }
  return 4 * indices.size();
}

// Upper bound of coded_bytes over all choices of at most `count` indices.
std::size_t max_coded_bytes(IndexCoding coding, std::size_t n, std::size_t count) {
  switch (coding) {
    case IndexCoding::kRaw32:
      break;
    case IndexCoding::kBitmask:
      return (n + 7) / 8;
    case IndexCoding::kEliasFano: {
      // The number of bits does not fall with the count. Within one `low` it grows; when `low`
      // falls by 1, at count = floor(n / 2^low), the upper bits need what the lower bits save.
      if (count == 0) return 0;
      const unsigned low = elias_fano_low_bits(n, count);
      return (count * low + count + (n >> low)) / 8 + 2;  // two parts, each padded
    }
    case IndexCoding::kRice: {
      // With g the block's mean gap and r = floor(log2(max(g, 1))) <= log2(1 + g), a gap costs 1 +
      // r bits and its quotient, and quotients sum to at most count * g / 2^r < 2 count. log2(1 +
      // g) is concave, so all blocks together cost at most as much as with the overall mean, n /
      // count - 1. That bound falls where r falls, so the largest count with a larger r matters
      // too.
      if (count == 0) return 0;
      const unsigned r = n <= count ? 1 : floor_log2(n / count) + 1;
      const std::size_t fewer = n >> r;
      const std::size_t blocks = (count + kRiceBlock - 1) / kRiceBlock;
      const std::size_t most = std::max(count * (3 + static_cast<std::size_t>(r)),
                                        fewer * (4 + static_cast<std::size_t>(r)));
      return (blocks * kRiceParameterBits + most + 7) / 8;
    }
  }
  return 4 * count;
}

}  // namespace

IndexCoder IndexCoder::named(std::string_view name) {
  constexpr std::string_view names[kIndexCodings] = {"raw32", "bitmask", "elias_fano", "rice"};
  for (std::size_t i = 0; i < kIndexCodings; ++i) {
    if (name == names[i]) return {false, static_cast<IndexCoding>(i)};
  }
  return {true, IndexCoding::kRaw32};
}

std::size_t IndexCoder::max_bytes(std::size_t n, std::size_t count) const {
  if (!smallest) return max_coded_bytes(coding, n, count);
  std::size_t least = max_coded_bytes(IndexCoding::kRaw32, n, count);
  for (std::size_t i = 1; i < kIndexCodings; ++i) {
    least = std::min(least, max_coded_bytes(static_cast<IndexCoding>(i), n, count));
  }
  return least;
}

std::size_t IndexCoder::encode(Span<const std::uint32_t> indices, std::size_t n, std::uint8_t* out,
                               IndexCoding* used) const {
  *used = coding;
  if (smallest) {
    std::size_t least = ~std::size_t{0};
    for (std::size_t i = 0; i < kIndexCodings; ++i) {
      const auto candidate = static_cast<IndexCoding>(i);
      const std::size_t bytes = coded_bytes(candidate, indices, n);
      if (bytes < least) {
        least = bytes;
        *used = candidate;
      }
    }
  }
  switch (*used) {
    case IndexCoding::kBitmask:
      return encode_bitmask(indices, n, out);
    case IndexCoding::kEliasFano:
      return encode_elias_fano(indices, n, out);
    case IndexCoding::kRice:
      return encode_rice(indices, out);
    case IndexCoding::kRaw32:
      break;
  }
  if (!indices.empty()) std::memcpy(out, indices.data(), 4 * indices.size());
  return 4 * indices.size();
}

Status decode_indices(IndexCoding coding, Span<const std::uint8_t> in, std::size_t n,
                      Span<std::uint32_t> indices) {
  switch (coding) {
    case IndexCoding::kRaw32:
      return decode_raw(in, n, indices);
    case IndexCoding::kBitmask:
      return decode_bitmask(in, n, indices);
    case IndexCoding::kEliasFano:
      return decode_elias_fano(in, n, indices);
    case IndexCoding::kRice:
      return decode_rice(in, n, indices);
  }
  return wire_error("unknown index coding " + std::to_string(static_cast<unsigned>(coding)));
}

}  // namespace gradcomp
