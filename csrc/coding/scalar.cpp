#include <algorithm>
#include <cmath>
#include <cstring>

#include "coding/rans.hpp"
#include "coding/rans_step.hpp"
#include "kernels/coding.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kStepBytes = kRansWord * kRansLanes;

std::size_t rans_encode(const std::uint8_t* symbols, std::size_t n, std::size_t lanes,
                        const RansEncodeTable& table, std::uint32_t* states, std::uint8_t** to,
                        const std::uint8_t* end) {
  while (n != 0 && static_cast<std::size_t>(end - *to) >= kRansWord * lanes) {
    const std::size_t count = n % lanes != 0 ? n % lanes : lanes;
    n -= count;
    *to = rans_encode_step(symbols + n, count, table, states, *to);
  }
  return n;
}

std::size_t rans_decode(const std::uint8_t* begin, const std::uint8_t** from,
                        const RansDecodeTable& table, std::uint32_t* states, std::uint8_t* symbols,
                        std::size_t n) {
  std::size_t i = 0;
  for (; i + kRansLanes <= n && static_cast<std::size_t>(*from - begin) >= kStepBytes;
       i += kRansLanes) {
    *from = rans_decode_step(*from, table, states, symbols + i, kRansLanes);
  }
  return i;
}

void pack_digits(const std::uint8_t* numbers, unsigned width, std::uint8_t* packed, std::size_t n,
                 std::uint32_t* counts) {
  const std::size_t each = 8 / width;
  for (std::size_t i = 0; i < n; ++i) {
    if (numbers[i] != 0) ++counts[numbers[i]];
  }
  for (std::size_t i = 0; i < n; i += each) {
    unsigned byte = 0;
    for (std::size_t j = i; j < std::min(i + each, n); ++j) {
      byte |= unsigned{numbers[j]} << width * (j - i);
    }
    packed[i / each] = static_cast<std::uint8_t>(byte);
  }
}

void unpack_digits(const std::uint8_t* packed, unsigned width, std::uint8_t* numbers,
                   std::size_t n) {
  std::size_t i = 0;
  if (width == 2) {
    for (; i + 8 <= n; i += 8) {
      // Spreads bytes to halves, then every number to a byte.
      std::uint64_t x = load<std::uint16_t>(packed + i / 4);
      x = (x | x << 24) & 0x000000FF000000FFu;
      x = (x | x << 6 | x << 12 | x << 18) & 0x0303030303030303u;
      store(numbers + i, x);
    }
  } else {
    for (; i + 4 <= n; i += 4) {
      std::uint32_t x = load<std::uint16_t>(packed + i / 2);
      x = (x | x << 8) & 0x00FF00FFu;
      x = (x | x << 4) & 0x0F0F0F0Fu;
      store(numbers + i, x);
    }
  }
  const std::size_t each = 8 / width;
  for (; i < n; ++i) {
    const unsigned byte = packed[i / each];
    numbers[i] = static_cast<std::uint8_t>(byte >> width * (i % each) & ((1u << width) - 1));
  }
}

#define GRADCOMP_LEVEL
#include "coding/contexts_loops.hpp"

void classify(const float* x, std::size_t n, const DeadZone& zone, Contexts& contexts,
              std::uint8_t* symbols) {
  for (std::size_t at = 0; at < n; at += kGroup) {
    classify_group(x + at, at, n - at < kGroup ? n - at : kGroup, zone, contexts, symbols + at);
  }
}

void count_classified(const std::uint8_t* symbols, std::size_t n, std::uint32_t* counts) {
  std::uint32_t found[256];
  count_symbols({symbols, n}, found);
  for (std::size_t s = 0; s < 256; ++s) counts[s] += found[s];
}

bool decode_row(const std::uint8_t* begin, const std::uint8_t** from, const ClassTables& tables,
                std::uint32_t* states, std::size_t lanes, const std::uint8_t* flags,
                Contexts& contexts, std::int8_t* levels, std::size_t n) {
  return decode_groups_of_row(begin, from, tables, states, lanes, flags, contexts, levels, n);
}

}  // namespace

const CodingKernels kScalarCodingKernels = {
    rans_encode, rans_decode, pack_digits, unpack_digits, classify, count_classified, decode_row};

}  // namespace gradcomp
