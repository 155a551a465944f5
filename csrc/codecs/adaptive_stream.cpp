#include "codecs/adaptive_stream.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "coding/elias.hpp"
#include "coding/rans_step.hpp"
#include "core/bytes.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kStateBytes = 4;
// What a row takes at most, of words, and what reading them may touch before they begin.
constexpr std::size_t kMargin = 64;

Contexts fresh(std::size_t cols, std::vector<std::int16_t>* columns) {
  const std::size_t padded = (cols + kGroup - 1) / kGroup * kGroup;
  columns->assign(padded, static_cast<std::int16_t>(kFirstMean));
  return {columns->data(), kFirstMean, 1};
}

bool is_top(std::uint8_t symbol) { return symbol % kClassSymbols >= 2 * kTopMagnitude - 1; }

// Words of rANS that grow from `to` on.
class Words {
 public:
  Words(std::uint8_t* out, std::size_t room, const RansEncodeTable& table, std::size_t lanes)
      : table_(table), lanes_(lanes), to_(out), end_(out + room) {
    std::fill(states_, states_ + lanes, kRansLowest);
  }

  // A row's symbols, or, where rows end with whole steps of all states, those of several.
  bool push(const std::uint8_t* symbols, std::size_t n) {
    while (n != 0) {
      if (lanes_ == kRansLanes && n % lanes_ == 0) {
        n = kernels().coding->rans_encode(symbols, n, table_, states_, &to_, end_);
        if (n == 0) return true;
      }
      const std::size_t count = n % lanes_ != 0 ? n % lanes_ : lanes_;
      n -= count;
      std::uint8_t words[kRansWord * kRansLanes];
      const auto size = static_cast<std::size_t>(
          rans_encode_step(symbols + n, count, table_, states_, words) - words);
      if (size > static_cast<std::size_t>(end_ - to_)) return false;
      std::memcpy(to_, words, size);
      to_ += size;
    }
    return true;
  }

  // The end of all, or nullptr where they do not fit.
  std::uint8_t* finish() {
    const std::size_t size = kStateBytes * lanes_;
    if (size > static_cast<std::size_t>(end_ - to_)) return nullptr;
    std::memcpy(to_, states_, size);
    return to_ + size;
  }

 private:
  const RansEncodeTable& table_;
  std::size_t lanes_;
  std::uint8_t* to_;
  std::uint8_t* end_;
  std::uint32_t states_[kRansLanes];
};

// Calls fn(code) with each top magnitude's excess, as Elias delta code of excess + 1.
template <typename Fn>
void for_excesses(const SymbolMatrix& matrix, const DeadZone& zone, const Fn& fn) {
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    if (i % 8 == 0 && i + 8 <= matrix.size()) {
      // Most runs of eight have no symbol that both these bits are set in, as they are in a top.
      const auto eight = load<std::uint64_t>(matrix.symbols + i);
      if ((eight >> 3 & eight >> 2 & kOnes) == 0) {
        i += 7;
        continue;
      }
    }
    if (!is_top(matrix.symbols[i])) continue;
    const float size = std::fabs(matrix.x[i]) * zone.inverse + zone.bias;
    const auto magnitude = static_cast<std::uint32_t>(size);
    fn(elias_delta(std::min(magnitude - kTopMagnitude, kMaxExcess) + 1));
  }
}

bool write_excesses(Span<const SymbolMatrix> matrices, const DeadZone* zones, std::uint8_t** to,
                    const std::uint8_t* end) {
  std::vector<EliasCode> codes;
  std::size_t bits = 0;
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    for_excesses(matrices[m], zones[m], [&](const EliasCode& code) {
      codes.push_back(code);
      bits += code.bits;
    });
  }
  if ((bits + 7) / 8 > static_cast<std::size_t>(end - *to)) return false;
  BitWriter writer(*to);
  for (const EliasCode& code : codes) writer.put(code.code, code.bits);
  *to += writer.finish();
  return true;
}

bool read_excesses(Span<const std::uint8_t> in, Span<LevelMatrix> matrices) {
  BitReader reader(in);
  for (LevelMatrix& matrix : matrices) {
    constexpr std::size_t kRun = 4096;
    constexpr int kTop = static_cast<int>(kTopMagnitude);
    for (std::size_t begin = 0; begin < matrix.size(); begin += kRun) {
      const std::size_t end = std::min(begin + kRun, matrix.size());
      unsigned found = 0;
      for (std::size_t i = begin; i < end; ++i) {
        found |= static_cast<unsigned>(matrix.levels[i] == kTop) |
                 static_cast<unsigned>(matrix.levels[i] == -kTop);
      }
      if (found == 0) continue;
      for (std::size_t i = begin; i < end; ++i) {
        const int level = matrix.levels[i];
        if (level != kTop && level != -kTop) continue;
        const std::uint32_t value = read_elias_delta(&reader);
        if (value == 0) return false;
        if (value == 1) continue;
        const auto magnitude = static_cast<std::int32_t>(kTopMagnitude + value - 1);
        matrix.escapes.push_back({i, level < 0 ? -magnitude : magnitude});
      }
    }
  }
  return reader.finished();
}

}  // namespace

void classify(const SymbolMatrix& matrix, const DeadZone& zone,
              std::vector<std::int16_t>* columns) {
  Contexts contexts = fresh(matrix.cols, columns);
  for (std::size_t i = 0; i < matrix.rows; ++i) {
    contexts.shift = column_shift(i);
    const std::size_t at = i * matrix.cols;
    kernels().coding->classify(matrix.x + at, matrix.cols, zone, contexts, matrix.symbols + at);
  }
}

std::size_t excess_bits(const SymbolMatrix& matrix, const DeadZone& zone) {
  std::size_t bits = 0;
  for_excesses(matrix, zone, [&](const EliasCode& code) { bits += code.bits; });
  return bits;
}

std::size_t encode_stream(Span<const SymbolMatrix> matrices, const DeadZone* zones,
                          const RansEncodeTable& table, std::size_t lanes, std::uint8_t* out,
                          std::size_t room) {
  std::uint8_t* to = out;
  if (!write_excesses(matrices, zones, &to, out + room)) return 0;
  Words words(to, static_cast<std::size_t>(out + room - to), table, lanes);
  // From the last symbol to the first; a decoder goes the other way.
  for (std::size_t m = matrices.size(); m-- > 0;) {
    const SymbolMatrix& matrix = matrices[m];
    const bool seamless = matrix.cols % lanes == 0;
    const std::size_t run = seamless ? matrix.size() : matrix.cols;
    for (std::size_t end = matrix.size(); end != 0; end -= run) {
      if (!words.push(matrix.symbols + end - run, run)) return 0;
    }
  }
  const std::uint8_t* const end = words.finish();
  return end == nullptr ? 0 : static_cast<std::size_t>(end - out);
}

bool decode_stream(Span<const std::uint8_t> in, const ClassTables& tables, std::size_t lanes,
                   Span<LevelMatrix> matrices) {
  const std::size_t state_bytes = kStateBytes * lanes;
  if (in.size() < state_bytes) return false;
  std::uint32_t states[kRansLanes];
  std::memcpy(states, in.end() - state_bytes, state_bytes);
  if (!std::all_of(states, states + lanes,
                   [](std::uint32_t state) { return state >= kRansLowest && state >> 31 == 0; })) {
    return false;
  }
  const std::size_t size = in.size() - state_bytes;
  std::vector<std::uint8_t> padded(kMargin + size);
  std::memcpy(padded.data() + kMargin, in.data(), size);
  const std::uint8_t* const begin = padded.data() + kMargin;
  const std::uint8_t* from = begin + size;
  std::vector<std::int16_t> columns;
  for (LevelMatrix& matrix : matrices) {
    Contexts contexts = fresh(matrix.cols, &columns);
    for (std::size_t i = 0; i < matrix.rows; ++i) {
      contexts.shift = column_shift(i);
      if (!kernels().coding->decode_row(begin, &from, tables, states, lanes, contexts,
                                        matrix.levels + i * matrix.cols, matrix.cols)) {
        return false;
      }
    }
  }
  // Every state must be back where the encoder began.
  if (!std::all_of(states, states + lanes,
                   [](std::uint32_t state) { return state == kRansLowest; })) {
    return false;
  }
  return read_excesses({in.data(), static_cast<std::size_t>(from - begin)}, matrices);
}

}  // namespace gradcomp
