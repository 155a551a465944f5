#include "coding/levels.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "coding/bits.hpp"
#include "coding/elias.hpp"
#include "coding/rans.hpp"

namespace gradcomp {
namespace {

// Header of a chunk without a fixed size: u32, the lower 24 bits the length of the body, the upper
// 8 bits its mode.
constexpr std::size_t kChunkHeader = 4;
constexpr std::uint32_t kModePacked = 0;
constexpr std::uint32_t kModeCoded = 1;

std::size_t packed_bytes(std::size_t count, unsigned bits) { return (count * bits + 7) / 8; }

std::uint64_t repeat(std::uint64_t value, unsigned period) {
  std::uint64_t repeated = 0;
  for (unsigned at = 0; at < 64; at += period) repeated |= value << at;
  return repeated;
}

// Packs eight symbols, one in each byte of a word, into 8 * bits bits without gaps, and back.
// Neighbours are joined in three steps: bytes to pairs, pairs to fours, fours to eight.
class Lanes {
 public:
  explicit Lanes(unsigned bits)  // below 8
      : bits_(bits),
        ones_(repeat((std::uint64_t{1} << bits) - 1, 16)),
        pairs_(repeat((std::uint64_t{1} << 2 * bits) - 1, 32)),
        fours_((std::uint64_t{1} << 4 * bits) - 1) {}

  std::uint64_t close(std::uint64_t x) const {
    x = (x & ones_) | (x & ones_ << 8) >> (8 - bits_);
    x = (x & pairs_) | (x & pairs_ << 16) >> (16 - 2 * bits_);
    return (x & fours_) | (x & fours_ << 32) >> (32 - 4 * bits_);
  }

  std::uint64_t open(std::uint64_t x) const {
    x = (x & fours_) | (x << (32 - 4 * bits_) & fours_ << 32);
    x = (x & pairs_) | (x << (16 - 2 * bits_) & pairs_ << 16);
    return (x & ones_) | (x << (8 - bits_) & ones_ << 8);
  }

 private:
  unsigned bits_;
  std::uint64_t ones_, pairs_, fours_;
};

void pack(Span<const std::uint8_t> symbols, unsigned bits, std::uint8_t* out) {
  if (bits == 8) {
    if (!symbols.empty()) std::memcpy(out, symbols.data(), symbols.size());
    return;
  }
  const Lanes lanes(bits);
  const std::size_t n = symbols.size();
  std::uint8_t* const end = out + packed_bytes(n, bits);
  std::size_t i = 0;
  // Whole words are stored: the next one overwrites the excess.
  for (; i + 8 <= n && end - out >= 8; i += 8, out += bits) {
    store(out, lanes.close(load<std::uint64_t>(symbols.data() + i)));
  }
  for (; i < n; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, symbols.data() + i, std::min<std::size_t>(8, n - i));
    word = lanes.close(word);
    const std::size_t bytes = std::min<std::size_t>(bits, static_cast<std::size_t>(end - out));
    std::memcpy(out, &word, bytes);
    out += bytes;
  }
}

// Whether the bits beyond n packed symbols are zero. `in` has the packed size.
bool padded(Span<const std::uint8_t> in, unsigned bits, std::size_t n) {
  const std::size_t used = n * bits % 8;
  return used == 0 || in[in.size() - 1] >> used == 0;
}

// `in` has the packed size, and is padded().
void unpack(Span<const std::uint8_t> in, unsigned bits, Span<std::uint8_t> symbols) {
  const std::size_t n = symbols.size();
  if (bits == 8) {
    if (n > 0) std::memcpy(symbols.data(), in.data(), n);
    return;
  }
  const Lanes lanes(bits);
  const std::uint8_t* from = in.data();
  std::size_t i = 0;
  for (; i + 8 <= n && in.end() - from >= 8; i += 8, from += bits) {
    store(symbols.data() + i, lanes.open(load<std::uint64_t>(from)));
  }
  for (; i < n; i += 8) {
    std::uint64_t word = 0;
    const std::size_t bytes =
        std::min<std::size_t>(bits, static_cast<std::size_t>(in.end() - from));
    std::memcpy(&word, from, bytes);
    from += bytes;
    word = lanes.open(word);
    std::memcpy(symbols.data() + i, &word, std::min<std::size_t>(8, n - i));
  }
}

// Code of symbol + 1, for every symbol.
struct EliasTable {
  EliasTable() {
    for (std::uint32_t s = 0; s < 256; ++s) of[s] = elias_delta(s + 1);
  }
  EliasCode of[256];
};

// As rans_encode.
std::size_t elias_encode(Span<const std::uint8_t> symbols, std::uint8_t* out,
                         std::size_t capacity) {
  static const EliasTable table;
  std::size_t bits = 0;
  for (std::uint8_t symbol : symbols) bits += table.of[symbol].bits;
  if ((bits + 7) / 8 > capacity) return 0;
  BitWriter writer(out);
  for (std::uint8_t symbol : symbols) {
    const EliasCode code = table.of[symbol];
    writer.put(code.code, code.bits);
  }
  return writer.finish();
}

bool elias_decode(Span<const std::uint8_t> in, unsigned bits, Span<std::uint8_t> symbols) {
  BitReader reader(in);
  for (std::uint8_t& symbol : symbols) {
    const std::uint32_t value = read_elias_delta(&reader);
    if (value == 0 || value > 1u << bits) return false;
    symbol = static_cast<std::uint8_t>(value - 1);
  }
  return reader.finished();
}

std::size_t encode_chunk(LevelCoding coding, Span<const std::uint8_t> symbols, unsigned bits,
                         std::uint8_t* out) {
  std::uint8_t* const body = out + kChunkHeader;
  const std::size_t packed = packed_bytes(symbols.size(), bits);
  // Coded only if that is smaller.
  const std::size_t coded = coding == LevelCoding::kRans
                                ? rans_encode(symbols, bits, body, packed - 1)
                                : elias_encode(symbols, body, packed - 1);
  if (coded == 0) pack(symbols, bits, body);
  const std::size_t size = coded == 0 ? packed : coded;
  const std::uint32_t mode = coded == 0 ? kModePacked : kModeCoded;
  store(out, static_cast<std::uint32_t>(size) | mode << 24);
  return kChunkHeader + size;
}

// `in` is a chunk with its header, and has the right length.
bool decode_chunk(LevelCoding coding, Span<const std::uint8_t> in, unsigned bits,
                  Span<std::uint8_t> symbols) {
  const std::uint32_t mode = load<std::uint32_t>(in.data()) >> 24;
  const Span<const std::uint8_t> body{in.data() + kChunkHeader, in.size() - kChunkHeader};
  const std::size_t packed = packed_bytes(symbols.size(), bits);
  if (mode == kModePacked) {
    if (body.size() != packed || !padded(body, bits, symbols.size())) return false;
    unpack(body, bits, symbols);
    return true;
  }
  if (mode != kModeCoded || body.size() >= packed) return false;
  return coding == LevelCoding::kRans ? rans_decode(body, bits, symbols)
                                      : elias_decode(body, bits, symbols);
}

}  // namespace

LevelCoder LevelCoder::named(std::string_view name) {
  if (name == "rans") return LevelCoder(LevelCoding::kRans);
  if (name == "elias_delta") return LevelCoder(LevelCoding::kEliasDelta);
  return LevelCoder(LevelCoding::kPacked);
}

std::size_t LevelCoder::max_bytes(std::size_t count, unsigned bits) const {
  const std::size_t chunks = (count + kChunk - 1) / kChunk;
  return packed_bytes(count, bits) + (fixed_size() ? 0 : chunks * kChunkHeader);
}

std::size_t LevelCoder::encode(Span<const std::uint8_t> symbols, unsigned bits,
                               std::uint8_t* out) const {
  if (fixed_size()) {
    pack(symbols, bits, out);
    return packed_bytes(symbols.size(), bits);
  }
  std::size_t written = 0;
  for (std::size_t begin = 0; begin < symbols.size(); begin += kChunk) {
    const std::size_t count = std::min(kChunk, symbols.size() - begin);
    written += encode_chunk(coding_, {symbols.data() + begin, count}, bits, out + written);
  }
  return written;
}

Status LevelCoder::check_fixed(Span<const std::uint8_t> in, unsigned bits, std::size_t n) const {
  if (in.size() != packed_bytes(n, bits)) {
    return wire_error("packed levels of " + std::to_string(in.size()) + " bytes; " +
                      std::to_string(n) + " of " + std::to_string(bits) + " bits have " +
                      std::to_string(packed_bytes(n, bits)));
  }
  if (padded(in, bits, n)) return {};
  return wire_error("the padding of packed levels is not zero");
}

Status LevelCoder::decode(Span<const std::uint8_t> in, unsigned bits,
                          Span<std::uint8_t> symbols) const {
  const std::size_t n = symbols.size();
  if (fixed_size()) {
    GRADCOMP_TRY(check_fixed(in, bits, n));
    for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
      unpack({in.data() + begin / 8 * bits, packed_bytes(end - begin, bits)}, bits,
             {symbols.data() + begin, end - begin});
    });
    return {};
  }
  // Start of each chunk.
  const std::size_t chunks = (n + kChunk - 1) / kChunk;
  if (in.size() < chunks * kChunkHeader) {
    return wire_error("coded levels of " + std::to_string(in.size()) + " bytes; the headers of " +
                      std::to_string(chunks) + " chunks need more");
  }
  std::vector<std::size_t> starts(chunks + 1, 0);
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::size_t left = in.size() - starts[c];
    if (left < kChunkHeader) return wire_error("coded levels end before their last chunk");
    const std::size_t length = load<std::uint32_t>(in.data() + starts[c]) & 0xFFFFFFu;
    if (length > left - kChunkHeader) {
      return wire_error("a chunk of " + std::to_string(length) + " bytes of coded levels, and " +
                        std::to_string(left - kChunkHeader) + " bytes are left");
    }
    starts[c + 1] = starts[c] + kChunkHeader + length;
  }
  if (starts[chunks] != in.size()) {
    return wire_error(std::to_string(in.size() - starts[chunks]) +
                      " bytes follow the last chunk of coded levels");
  }
  std::vector<std::uint8_t> failed(chunks, 0);
  for_ranges(n, [&](std::size_t, std::size_t begin, std::size_t end) {
    for (; begin < end; begin += kChunk) {
      const std::size_t c = begin / kChunk;
      const Span<const std::uint8_t> chunk{in.data() + starts[c], starts[c + 1] - starts[c]};
      failed[c] = !decode_chunk(coding_, chunk, bits,
                                {symbols.data() + begin, std::min(kChunk, end - begin)});
    }
  });
  for (std::size_t c = 0; c < chunks; ++c) {
    if (failed[c] != 0) {
      return wire_error("chunk " + std::to_string(c) + " of the coded levels is damaged");
    }
  }
  return {};
}

}  // namespace gradcomp
