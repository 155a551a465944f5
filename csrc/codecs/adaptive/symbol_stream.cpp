#include "codecs/adaptive/symbol_stream.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bytes.hpp"
#include "base/scratch.hpp"
#include "codecs/adaptive/scratch_slots.hpp"
#include "coding/elias.hpp"
#include "coding/rans_step.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kStateBytes = 4;
// Bytes that CodingKernels::decode_row may read before the first word and after the last.
constexpr std::size_t kMargin = 64;

bool is_top(std::uint8_t symbol) { return symbol % kClassSymbols >= 2 * kTopMagnitude - 1; }

constexpr std::uint64_t kOnes = 0x0101010101010101u;  // times a byte: that byte, eight times
constexpr std::uint64_t kUpperBits = 0x80 * kOnes;

// Marks, in their upper bits, the bytes that are 0, and perhaps bytes behind one.
std::uint64_t zero_bytes(std::uint64_t eight) { return (eight - kOnes) & ~eight & kUpperBits; }

// Calls fn(i) for the places of [0, n) that `of_byte` accepts, in ascending order. The upper bits
// of of_eight(eight bytes) mark those that may be.
template <typename OfEight, typename OfByte, typename Fn>
void for_marked(const std::uint8_t* bytes, std::size_t n, const OfEight& of_eight,
                const OfByte& of_byte, const Fn& fn) {
  constexpr std::size_t kWord = 8;
  constexpr std::size_t kBlock = 8 * kWord;
  std::size_t i = 0;
  while (i + kWord <= n) {
    // Few blocks have a mark, and the compiler looks for it in vectors.
    if (i % kBlock == 0 && i + kBlock <= n) {
      std::uint8_t any = 0;
      for (std::size_t k = 0; k < kBlock; ++k) any |= of_byte(bytes[i + k]) ? 1 : 0;
      if (any == 0) {
        i += kBlock;
        continue;
      }
    }
    std::uint64_t marked = of_eight(load<std::uint64_t>(bytes + i));
    for (; marked != 0; marked &= marked - 1) {
      const std::size_t at = i + static_cast<std::size_t>(__builtin_ctzll(marked)) / 8;
      if (of_byte(bytes[at])) fn(at);
    }
    i += kWord;
  }
  for (; i < n; ++i) {
    if (of_byte(bytes[i])) fn(i);
  }
}

// Calls fn(position, excess) for each symbol of the top magnitude.
template <typename Fn>
void for_excesses(const SymbolMatrix& matrix, const DeadZone& zone, const Fn& fn) {
  // Symbols of the top magnitude have bits 2 and 3 set.
  const auto may_be_top = [](std::uint64_t eight) { return eight << 4 & eight << 5 & kUpperBits; };
  for_marked(matrix.symbols, matrix.size(), may_be_top, is_top, [&](std::size_t i) {
    const float size = std::fabs(matrix.x[i]) * zone.inverse + zone.bias;
    const auto magnitude = static_cast<std::uint32_t>(size);
    fn(i, std::min(magnitude - kTopMagnitude, kMaxExcess));
  });
}

// Elias delta codes begin at 1, so an excess is coded as excess + 1.
EliasCode excess_code(std::uint32_t excess) { return elias_delta(excess + 1); }

}  // namespace

Contexts first_contexts(std::size_t cols, std::vector<std::int16_t>* columns) {
  const std::size_t padded = (cols + kGroup - 1) / kGroup * kGroup;
  columns->assign(padded, static_cast<std::int16_t>(kFirstMean));
  return {columns->data(), kFirstMean, 1};
}

void classify(const SymbolMatrix& matrix, const DeadZone& zone,
              std::vector<std::int16_t>* columns) {
  Contexts contexts = first_contexts(matrix.cols, columns);
  for (std::size_t i = 0; i < matrix.rows; ++i) {
    contexts.shift = column_shift(i);
    const std::size_t at = i * matrix.cols;
    kernels().coding->classify(matrix.x + at, matrix.cols, zone, contexts, matrix.symbols + at);
  }
}

std::size_t excess_bits(const SymbolMatrix& matrix, const DeadZone& zone) {
  std::size_t bits = 0;
  for_excesses(matrix, zone,
               [&](std::size_t, std::uint32_t excess) { bits += excess_code(excess).bits; });
  return bits;
}

std::size_t excess_bits(const std::vector<std::uint32_t>& excesses) {
  std::size_t bits = 0;
  for (const std::uint32_t excess : excesses) bits += excess_code(excess).bits;
  return bits;
}

void find_excesses(const SymbolMatrix& matrix, const DeadZone& zone,
                   std::vector<std::uint32_t>* excesses) {
  for_excesses(matrix, zone,
               [&](std::size_t, std::uint32_t excess) { excesses->push_back(excess); });
}

void find_escapes(const SymbolMatrix& matrix, const DeadZone& zone, std::vector<Escape>* escapes) {
  for_excesses(matrix, zone, [&](std::size_t at, std::uint32_t excess) {
    const auto magnitude = static_cast<std::int32_t>(kTopMagnitude + excess);
    escapes->push_back({at, matrix.x[at] < 0 ? -magnitude : magnitude});
  });
}

bool write_excesses(const std::vector<std::uint32_t>& excesses, std::uint8_t** to,
                    const std::uint8_t* end) {
  if ((excess_bits(excesses) + 7) / 8 > static_cast<std::size_t>(end - *to)) return false;
  BitWriter writer(*to);
  for (const std::uint32_t excess : excesses) {
    const EliasCode code = excess_code(excess);
    writer.put(code.code, code.bits);
  }
  *to += writer.finish();
  return true;
}

bool read_excesses(Span<const std::uint8_t> in, Span<LevelMatrix> matrices) {
  constexpr int kTop = static_cast<int>(kTopMagnitude);
  constexpr auto kNegative = static_cast<std::uint8_t>(-kTop);
  constexpr auto kPoint = static_cast<std::uint8_t>(kTopPointCode);
  const auto may_have_excess = [](std::uint64_t eight) {
    const std::uint64_t points = ((eight & ~kUpperBits) + (0x80 - kPoint) * kOnes) & ~eight;
    return zero_bytes(eight ^ kTopMagnitude * kOnes) | zero_bytes(eight ^ kNegative * kOnes) |
           (points & kUpperBits);
  };
  const auto has_excess = [](std::uint8_t byte) {
    return byte == kTop || byte == kNegative || (byte >= kPoint && byte < 0x80);
  };
  BitReader reader(in);
  bool valid = true;
  for (LevelMatrix& matrix : matrices) {
    const auto read = [&](std::size_t i) {
      const std::uint32_t value = valid ? read_elias_delta(&reader) : 0;
      valid = value != 0;
      if (value <= 1) return;
      const int level = matrix.levels[i];
      const auto magnitude = static_cast<std::int32_t>(kTopMagnitude + value - 1);
      const bool is_point = level >= kTopPointCode;
      // In the same half of the lattice, points of even and of odd indices have opposite signs.
      const bool negative = is_point ? (level > kTopPointCode) != (magnitude % 2 == 0) : level < 0;
      matrix.escapes.push_back({i, negative ? -magnitude : magnitude});
    };
    for_marked(reinterpret_cast<const std::uint8_t*>(matrix.levels), matrix.size(), may_have_excess,
               has_excess, read);
  }
  return valid && reader.finished();
}

SymbolWriter::SymbolWriter(std::uint8_t* out, const std::uint8_t* end, std::size_t lanes)
    : lanes_(lanes), to_(out), end_(end) {
  std::fill(states_, states_ + lanes, kRansLowest);
}

bool SymbolWriter::push(const std::uint8_t* symbols, std::size_t n, const RansEncodeTable& table) {
  while (n != 0) {
    n = kernels().coding->rans_encode(symbols, n, lanes_, table, states_, &to_, end_);
    if (n == 0) return true;
    const std::size_t count = n % lanes_ != 0 ? n % lanes_ : lanes_;
    n -= count;
    std::uint8_t words[kRansWord * kRansLanes];
    const auto size = static_cast<std::size_t>(
        rans_encode_step(symbols + n, count, table, states_, words) - words);
    if (size > static_cast<std::size_t>(end_ - to_)) return false;
    std::memcpy(to_, words, size);
    to_ += size;
  }
  return true;
}

bool SymbolWriter::push(const SymbolMatrix& matrix, const RansEncodeTable& table) {
  // Rows of whole steps of all states can be coded in one run.
  const std::size_t run = matrix.cols % lanes_ == 0 ? matrix.size() : matrix.cols;
  for (std::size_t end = matrix.size(); end != 0; end -= run) {
    if (!push(matrix.symbols + end - run, run, table)) return false;
  }
  return true;
}

std::uint8_t* SymbolWriter::finish() {
  const std::size_t size = kStateBytes * lanes_;
  if (size > static_cast<std::size_t>(end_ - to_)) return nullptr;
  std::memcpy(to_, states_, size);
  return to_ + size;
}

bool SymbolReader::open(Span<const std::uint8_t> in, std::size_t lanes) {
  const std::size_t state_bytes = kStateBytes * lanes;
  if (in.size() < state_bytes) return false;
  lanes_ = lanes;
  std::memcpy(states_, in.end() - state_bytes, state_bytes);
  if (!std::all_of(states_, states_ + lanes,
                   [](std::uint32_t state) { return state >= kRansLowest && state >> 31 == 0; })) {
    return false;
  }
  const std::size_t size = in.size() - state_bytes;
  const Span<std::uint8_t> padded =
      thread_scratch().get<std::uint8_t>(kStreamSlot, kMargin + size + kMargin);
  if (padded.empty()) return false;
  std::memset(padded.data(), 0, kMargin);
  std::memcpy(padded.data() + kMargin, in.data(), size);
  std::memset(padded.data() + kMargin + size, 0, kMargin);
  begin_ = padded.data() + kMargin;
  from_ = begin_ + size;
  return true;
}

bool SymbolReader::row(const ClassTables& tables, const std::uint8_t* flags, Contexts& contexts,
                       std::int8_t* levels, std::size_t n) {
  return kernels().coding->decode_row(begin_, &from_, tables, states_, lanes_, flags, contexts,
                                      levels, n);
}

bool SymbolReader::matrix(const ClassTables& tables, const std::uint8_t* flags,
                          const LevelMatrix& matrix) {
  const std::size_t groups = groups_in_row(matrix.cols);
  Contexts contexts = first_contexts(matrix.cols, &columns_);
  for (std::size_t i = 0; i < matrix.rows; ++i) {
    contexts.shift = column_shift(i);
    const std::uint8_t* const of_row = flags == nullptr ? nullptr : flags + i * groups;
    if (!row(tables, of_row, contexts, matrix.levels + i * matrix.cols, matrix.cols)) return false;
  }
  return true;
}

bool SymbolReader::flags(const std::uint32_t* zeros, const std::uint8_t* classes, std::size_t count,
                         std::uint8_t* out) {
  static_assert(kRansLanes * kRansWord <= kMargin, "words may be read from the margin");
  for (std::size_t begin = 0; begin < count; begin += lanes_) {
    const std::size_t end = std::min(count, begin + lanes_);
    for (std::size_t i = end; i-- > begin;) {
      const std::uint32_t state = states_[i - begin];
      const std::uint32_t slot = state & (kRansTotal - 1);
      const std::uint32_t zero = zeros[classes[i]];
      const bool set = slot >= zero;
      std::uint32_t next =
          (set ? kRansTotal - zero : zero) * (state >> kRansBits) + slot - (set ? zero : 0);
      if (next < kRansLowest) {
        from_ -= kRansWord;
        next = next << 16 | load<std::uint16_t>(from_);
      }
      states_[i - begin] = next;
      out[i] = set ? 1 : 0;
    }
  }
  return from_ >= begin_;
}

bool SymbolReader::flag(std::uint32_t ones, bool* set) {
  const std::uint32_t zeros = kRansTotal - ones;
  const std::uint8_t first_class = 0;
  std::uint8_t found = 0;
  if (!flags(&zeros, &first_class, 1, &found)) return false;
  *set = found != 0;
  return true;
}

bool SymbolReader::finished() const {
  return std::all_of(states_, states_ + lanes_,
                     [](std::uint32_t state) { return state == kRansLowest; });
}

std::size_t SymbolReader::left() const { return static_cast<std::size_t>(from_ - begin_); }

}  // namespace gradcomp
