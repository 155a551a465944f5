#if defined(__x86_64__)

#include <cmath>
#include <cstring>

#include "coding/digits_pack.hpp"
#include "coding/rans_step.hpp"
#include "kernels/coding.hpp"
#include "kernels/moves.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kPart = 8;  // states in one vector
constexpr std::size_t kParts = kRansLanes / kPart;
constexpr std::size_t kStepBytes = kRansWord * kRansLanes;

GRADCOMP_AVX2 inline __m256i load_bytes(const void* bytes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(bytes)));
}

GRADCOMP_AVX2 inline unsigned lanes_of(__m256i mask) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
}

// Entries of four symbols. Gather instructions are slower on processors with a mitigation of
// (Intel: "Gather Data Sampling", 2023).
GRADCOMP_AVX2 inline __m256i load_every_second(const RansEncodeTable& table,
                                               const std::uint8_t* symbols) {
  const auto at = [&](std::size_t i) {
    long long entry;
    std::memcpy(&entry, &table.of[symbols[2 * i]], sizeof entry);
    return entry;
  };
  return _mm256_set_epi64x(at(3), at(2), at(1), at(0));
}

// As rans_encode_step() for 8 states.
GRADCOMP_AVX2 inline __m256i push(__m256i state, const std::uint8_t* symbols,
                                  const RansEncodeTable& table, const Moves& move,
                                  std::uint8_t** to) {
  // Even and odd states separately, because table entries and products have 64 bits.
  const __m256i even = load_every_second(table, symbols);
  const __m256i odd = load_every_second(table, symbols + 1);
  const __m256i field = _mm256_set1_epi32(kRansTotal - 1);
  const __m256i packed = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  const __m256i complement = _mm256_and_si256(_mm256_srli_epi32(packed, kRansBits), field);
  const __m256i full =
      _mm256_cmpgt_epi32(_mm256_add_epi32(_mm256_srli_epi32(state, 17), complement), field);
  const unsigned lanes = lanes_of(full);
  const __m256i words = _mm256_permutevar8x32_epi32(
      _mm256_and_si256(state, _mm256_set1_epi32(0xFFFF)), load_bytes(move.compress + lanes));
  const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0xD8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(*to), _mm256_castsi256_si128(halves));
  *to += kRansWord * static_cast<unsigned>(__builtin_popcount(lanes));
  state = _mm256_blendv_epi8(state, _mm256_srli_epi32(state, 16), full);
  const __m256i even_product = _mm256_srli_epi64(_mm256_mul_epu32(state, even), 31);
  const __m256i odd_product =
      _mm256_srli_epi64(_mm256_mul_epu32(_mm256_srli_epi64(state, 32), odd), 31);
  const __m256i even_part =
      _mm256_mul_epu32(_mm256_srlv_epi64(even_product, _mm256_srli_epi64(even, 60)), complement);
  const __m256i odd_part =
      _mm256_mul_epu32(_mm256_srlv_epi64(odd_product, _mm256_srli_epi64(odd, 60)),
                       _mm256_srli_epi64(complement, 32));
  const __m256i part = _mm256_blend_epi32(even_part, _mm256_slli_epi64(odd_part, 32), 0xAA);
  return _mm256_add_epi32(_mm256_add_epi32(state, _mm256_and_si256(packed, field)), part);
}

GRADCOMP_AVX2 std::size_t rans_encode(const std::uint8_t* symbols, std::size_t n,
                                      const RansEncodeTable& table, std::uint32_t* states,
                                      std::uint8_t** to, const std::uint8_t* end) {
  const Moves& move = moves();
  __m256i parts[kParts];
  for (std::size_t k = 0; k < kParts; ++k) {
    parts[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states + kPart * k));
  }
  std::uint8_t* at = *to;
  for (; n != 0 && static_cast<std::size_t>(end - at) >= kStepBytes; n -= kRansLanes) {
    const std::uint8_t* const step = symbols + n - kRansLanes;
    for (std::size_t k = 0; k < kParts; ++k) {
      parts[k] = push(parts[k], step + kPart * k, table, move, &at);
    }
  }
  for (std::size_t k = 0; k < kParts; ++k) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(states + kPart * k), parts[k]);
  }
  *to = at;
  return n;
}

// As rans_decode_step() for 8 states.
GRADCOMP_AVX2 inline __m256i pop(__m256i state, const RansDecodeTable& table, const Moves& move,
                                 const std::uint8_t** from, std::uint8_t* symbols) {
  const __m256i slot = _mm256_and_si256(state, _mm256_set1_epi32(kRansTotal - 1));
  alignas(32) std::uint32_t slots[kPart];
  _mm256_store_si256(reinterpret_cast<__m256i*>(slots), slot);
  const auto at = [&](std::size_t i) {
    symbols[i] = table.symbol_at[slots[i]];
    return static_cast<int>(table.packed[symbols[i]]);
  };
  const __m256i packed = _mm256_set_epi32(at(7), at(6), at(5), at(4), at(3), at(2), at(1), at(0));
  const __m256i start = _mm256_and_si256(packed, _mm256_set1_epi32(0xFFFF));
  state = _mm256_mullo_epi32(_mm256_srli_epi32(packed, 16), _mm256_srli_epi32(state, kRansBits));
  state = _mm256_add_epi32(state, _mm256_sub_epi32(slot, start));
  const __m256i empty = _mm256_cmpgt_epi32(_mm256_set1_epi32(kRansLowest), state);
  const unsigned lanes = lanes_of(empty);
  *from -= kRansWord * static_cast<unsigned>(__builtin_popcount(lanes));
  const __m256i words = _mm256_permutevar8x32_epi32(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(*from))),
      load_bytes(move.expand + lanes));
  return _mm256_blendv_epi8(state, _mm256_or_si256(_mm256_slli_epi32(state, 16), words), empty);
}

GRADCOMP_AVX2 std::size_t rans_decode(const std::uint8_t* begin, const std::uint8_t** from,
                                      const RansDecodeTable& table, std::uint32_t* states,
                                      std::uint8_t* symbols, std::size_t n) {
  const Moves& move = moves();
  __m256i parts[kParts];
  for (std::size_t k = 0; k < kParts; ++k) {
    parts[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states + kPart * k));
  }
  const std::uint8_t* at = *from;
  std::size_t i = 0;
  for (; i + kRansLanes <= n && static_cast<std::size_t>(at - begin) >= kStepBytes;
       i += kRansLanes) {
    for (std::size_t k = kParts; k-- > 0;) {
      parts[k] = pop(parts[k], table, move, &at, symbols + i + kPart * k);
    }
  }
  for (std::size_t k = 0; k < kParts; ++k) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(states + kPart * k), parts[k]);
  }
  *from = at;
  return i;
}

GRADCOMP_AVX2 inline std::uint32_t count_equal(__m256i numbers, unsigned number) {
  const __m256i equal = _mm256_cmpeq_epi8(numbers, _mm256_set1_epi8(static_cast<char>(number)));
  return static_cast<std::uint32_t>(
      __builtin_popcount(static_cast<unsigned>(_mm256_movemask_epi8(equal))));
}

GRADCOMP_AVX2 void pack_digits(const std::uint8_t* numbers, unsigned width, std::uint8_t* packed,
                               std::size_t n, std::uint32_t* counts) {
  // Neighbours are joined: bytes to halves, and with 2 bits halves to words.
  const __m256i pairs = width == 2 ? _mm256_set1_epi16(4 << 8 | 1) : _mm256_set1_epi16(16 << 8 | 1);
  const __m256i fours = _mm256_set1_epi32(16 << 16 | 1);
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __m256i two[2];
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256i all =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers + i + 32 * half));
      two[half] = _mm256_maddubs_epi16(all, pairs);
      if (width == 2) {
        two[half] = _mm256_madd_epi16(two[half], fours);
        for (unsigned number = 1; number < 4; ++number) counts[number] += count_equal(all, number);
      } else {
        for (unsigned number = 1; number < 16; ++number) {
          counts[number] += count_equal(all, number);
        }
      }
    }
    // The packs leave runs of eight bytes out of order.
    if (width == 2) {
      const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(two[0], two[1]), 0xD8);
      const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(halves, halves), 0xD8);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(packed + i / 4), _mm256_castsi256_si128(bytes));
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed + i / 2),
                          _mm256_permute4x64_epi64(_mm256_packus_epi16(two[0], two[1]), 0xD8));
    }
  }
  finish_pack(numbers + i, width, packed + i * width / 8, n - i, counts);
}

GRADCOMP_AVX2 void unpack_digits(const std::uint8_t* packed, unsigned width, std::uint8_t* numbers,
                                 std::size_t n) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i wide;
    if (width == 2) {
      wide = load_bytes(packed + i / 4);
      wide = _mm256_or_si256(wide, _mm256_slli_epi32(wide, 12));
      wide = _mm256_or_si256(wide, _mm256_slli_epi32(wide, 6));
      wide = _mm256_and_si256(wide, _mm256_set1_epi8(3));
    } else {
      wide =
          _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + i / 2)));
      wide = _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));
      wide = _mm256_and_si256(wide, _mm256_set1_epi8(15));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(numbers + i), wide);
  }
  finish_unpack(packed + i * width / 8, width, numbers + i, n - i);
}

#define GRADCOMP_LEVEL GRADCOMP_AVX2
#include "coding/contexts_loops.hpp"

// table[classes], of 16 numbers.
GRADCOMP_AVX2 inline __m256i look_up(const void* table, __m256i classes) {
  const auto* const halves = static_cast<const __m256i*>(table);
  const __m256i low = _mm256_permutevar8x32_epi32(_mm256_loadu_si256(halves), classes);
  const __m256i high = _mm256_permutevar8x32_epi32(_mm256_loadu_si256(halves + 1), classes);
  return _mm256_blendv_epi8(low, high, _mm256_cmpgt_epi32(classes, _mm256_set1_epi32(7)));
}

// Packs four vectors of 8 numbers, each of which fits a byte, into one vector of 32 bytes.
GRADCOMP_AVX2 inline __m256i in_order(__m256i parts) {
  return _mm256_permutevar8x32_epi32(parts, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
GRADCOMP_AVX2 inline __m256i to_bytes(const __m256i* numbers) {
  return in_order(_mm256_packus_epi16(_mm256_packus_epi32(numbers[0], numbers[1]),
                                      _mm256_packus_epi32(numbers[2], numbers[3])));
}
GRADCOMP_AVX2 inline __m256i to_signed_bytes(const __m256i* numbers) {
  return in_order(_mm256_packs_epi16(_mm256_packs_epi32(numbers[0], numbers[1]),
                                     _mm256_packs_epi32(numbers[2], numbers[3])));
}

// Means of the columns, in the halves of a group.
struct Means {
  __m256i low;
  __m256i high;
};

GRADCOMP_AVX2 inline Means load_means(const Contexts& contexts, std::size_t at) {
  const auto* const means = reinterpret_cast<const __m256i*>(contexts.columns + at);
  return {_mm256_loadu_si256(means), _mm256_loadu_si256(means + 1)};
}

// As find_classes(), for 8 columns. The sum of both means is below 2^16, because magnitudes are at
// most kTopMagnitude.
static_assert(2 * (kTopMagnitude << kMeanBits) + kMeanFloor < 1u << 16, "so it is");
GRADCOMP_AVX2 inline __m256i classes_of(__m128i sums) {
  const __m256i bits = _mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(sums)));
  const __m256i halves =
      _mm256_sub_epi32(_mm256_srli_epi32(bits, 22), _mm256_set1_epi32(2 * 127 + kFirstClass));
  return _mm256_min_epi32(_mm256_max_epi32(halves, _mm256_setzero_si256()),
                          _mm256_set1_epi32(kClasses - 1));
}
GRADCOMP_AVX2 inline void classes_of(const Means& means, const Contexts& contexts,
                                     __m256i* classes) {
  const __m256i row = _mm256_set1_epi16(static_cast<std::int16_t>(contexts.row + kMeanFloor));
  const __m256i low = _mm256_add_epi16(means.low, row);
  const __m256i high = _mm256_add_epi16(means.high, row);
  classes[0] = classes_of(_mm256_castsi256_si128(low));
  classes[1] = classes_of(_mm256_extracti128_si256(low, 1));
  classes[2] = classes_of(_mm256_castsi256_si128(high));
  classes[3] = classes_of(_mm256_extracti128_si256(high, 1));
}

GRADCOMP_AVX2 inline __m256i grown(__m256i mean, __m256i magnitude, __m128i shift) {
  const __m256i difference = _mm256_sub_epi16(_mm256_slli_epi16(magnitude, kMeanBits), mean);
  return _mm256_add_epi16(mean, _mm256_sra_epi16(difference, shift));
}

// As take_note(), for a whole group.
GRADCOMP_AVX2 inline void note(Contexts& contexts, std::size_t at, const Means& means,
                               const __m256i* magnitudes) {
  constexpr int kInOrder = 0b11'01'10'00;
  const __m256i low =
      _mm256_permute4x64_epi64(_mm256_packs_epi32(magnitudes[0], magnitudes[1]), kInOrder);
  const __m256i high =
      _mm256_permute4x64_epi64(_mm256_packs_epi32(magnitudes[2], magnitudes[3]), kInOrder);
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(contexts.shift));
  auto* const columns = reinterpret_cast<__m256i*>(contexts.columns + at);
  _mm256_storeu_si256(columns, grown(means.low, low, shift));
  _mm256_storeu_si256(columns + 1, grown(means.high, high, shift));
  const __m256i parts = _mm256_sad_epu8(_mm256_packs_epi16(low, high), _mm256_setzero_si256());
  const __m128i halves =
      _mm_add_epi64(_mm256_castsi256_si128(parts), _mm256_extracti128_si256(parts, 1));
  constexpr std::int32_t kCount = kGroup;
  const std::int32_t sum = _mm_cvtsi128_si32(_mm_add_epi64(halves, _mm_srli_si128(halves, 8)));
  contexts.row += ((sum << kMeanBits) / kCount - contexts.row) >> kRowShift;
}

// As classify_group(), for 8 elements of a group; returns their magnitudes.
GRADCOMP_AVX2 inline __m256i quantize(__m256 x, __m256i classes, const DeadZone& zone,
                                      __m256i* symbol) {
  const __m256 size =
      _mm256_mul_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), _mm256_set1_ps(zone.inverse));
  const __m256i one = _mm256_set1_epi32(1);
  __m256i magnitude = _mm256_cvttps_epi32(_mm256_add_ps(size, _mm256_set1_ps(zone.bias)));
  magnitude = _mm256_min_epi32(_mm256_max_epi32(magnitude, one), _mm256_set1_epi32(kTopMagnitude));
  const __m256 thresholds = _mm256_castsi256_ps(look_up(zone.threshold, classes));
  const __m256i sent = _mm256_castps_si256(_mm256_cmp_ps(size, thresholds, _CMP_NLT_UQ));
  magnitude = _mm256_and_si256(magnitude, sent);
  const __m256i negative = _mm256_srli_epi32(_mm256_castps_si256(x), 31);
  const __m256i of_class = _mm256_and_si256(
      sent,
      _mm256_sub_epi32(_mm256_add_epi32(_mm256_add_epi32(magnitude, magnitude), negative), one));
  *symbol = _mm256_add_epi32(_mm256_slli_epi32(classes, 4), of_class);
  return magnitude;
}

GRADCOMP_AVX2 void classify(const float* x, std::size_t n, const DeadZone& zone, Contexts& contexts,
                            std::uint8_t* symbols) {
  Contexts now = contexts;
  std::size_t at = 0;
  for (; at + kGroup <= n; at += kGroup) {
    const Means means = load_means(now, at);
    __m256i classes[kParts];
    __m256i magnitudes[kParts];
    __m256i found[kParts];
    classes_of(means, now, classes);
    for (std::size_t k = 0; k < kParts; ++k) {
      magnitudes[k] = quantize(_mm256_loadu_ps(x + at + kPart * k), classes[k], zone, found + k);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(symbols + at), to_bytes(found));
    note(now, at, means, magnitudes);
  }
  if (at < n) classify_group(x + at, at, n - at, zone, now, symbols + at);
  contexts = now;
}

// As decode_group() for 8 states.
GRADCOMP_AVX2 inline __m256i pop_class(__m256i state, __m256i classes, const ClassTables& tables,
                                       const Moves& move, const std::uint8_t** from, __m256i* level,
                                       __m256i* found) {
  const __m256i slot = _mm256_and_si256(state, _mm256_set1_epi32(kRansTotal - 1));
  // Above the start of any interval, whatever its frequency.
  const __m256i key = _mm256_or_si256(_mm256_slli_epi32(slot, 16), _mm256_set1_epi32(0xFFFF));
  __m256i interval = look_up(tables.of[0], classes);
  __m256i magnitude = _mm256_setzero_si256();
  for (unsigned m = 1; m <= kTopMagnitude; ++m) {
    const __m256i next = look_up(tables.of[m], classes);
    const __m256i reached = _mm256_cmpgt_epi32(key, next);
    if (_mm256_testz_si256(reached, reached) != 0) break;
    interval = _mm256_blendv_epi8(interval, next, reached);
    magnitude = _mm256_sub_epi32(magnitude, reached);
  }
  const __m256i frequency = _mm256_and_si256(interval, _mm256_set1_epi32(0xFFFF));
  __m256i offset = _mm256_sub_epi32(slot, _mm256_srli_epi32(interval, 16));
  const __m256i positive = _mm256_cmpgt_epi32(frequency, offset);
  offset = _mm256_sub_epi32(offset, _mm256_andnot_si256(positive, frequency));
  *found = magnitude;
  const __m256i sign = _mm256_or_si256(positive, _mm256_set1_epi32(1));
  *level = _mm256_sign_epi32(magnitude, _mm256_sub_epi32(_mm256_setzero_si256(), sign));
  state =
      _mm256_add_epi32(_mm256_mullo_epi32(frequency, _mm256_srli_epi32(state, kRansBits)), offset);
  const __m256i empty = _mm256_cmpgt_epi32(_mm256_set1_epi32(kRansLowest), state);
  const unsigned lanes = lanes_of(empty);
  *from -= kRansWord * static_cast<unsigned>(__builtin_popcount(lanes));
  const __m256i words = _mm256_permutevar8x32_epi32(
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(*from))),
      load_bytes(move.expand + lanes));
  return _mm256_blendv_epi8(state, _mm256_or_si256(_mm256_slli_epi32(state, 16), words), empty);
}

struct Zeros {
  static constexpr std::size_t kBytes = 32;
  __m256i of[kLowClasses] = {};

  // A bit for each symbol that is not 0 of a low class.
  GRADCOMP_AVX2 static std::uint64_t others(const std::uint8_t* symbols) {
    const __m256i found = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(symbols));
    const __m256i bits = _mm256_and_si256(found, _mm256_set1_epi8(static_cast<char>(kOtherBits)));
    const __m256i low = _mm256_cmpeq_epi8(bits, _mm256_setzero_si256());
    return ~static_cast<std::uint32_t>(_mm256_movemask_epi8(low));
  }
  GRADCOMP_AVX2 void add(const std::uint8_t* symbols) {
    const __m256i found = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(symbols));
    for (std::size_t c = 0; c < kLowClasses; ++c) {
      const __m256i zero = _mm256_set1_epi8(static_cast<char>(kClassSymbols * c));
      of[c] = _mm256_sub_epi8(of[c], _mm256_cmpeq_epi8(found, zero));
    }
  }
  GRADCOMP_AVX2 std::uint32_t count(std::size_t c) const {
    const __m256i sums = _mm256_sad_epu8(of[c], _mm256_setzero_si256());
    const __m128i both =
        _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(both) + _mm_extract_epi32(both, 2));
  }
};

GRADCOMP_AVX2 void count_classified(const std::uint8_t* symbols, std::size_t n,
                                    std::uint32_t* counts) {
  count_by_zeros<Zeros>(symbols, n, counts);
}

GRADCOMP_AVX2 bool decode_row(const std::uint8_t* begin, const std::uint8_t** from,
                              const ClassTables& tables, std::uint32_t* states, std::size_t lanes,
                              Contexts& contexts, std::int8_t* levels, std::size_t n) {
  const Moves& move = moves();
  __m256i parts[kParts];
  for (std::size_t k = 0; k < kParts; ++k) {
    parts[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(states + kPart * k));
  }
  Contexts now = contexts;
  const std::uint8_t* words = *from;
  std::size_t at = 0;
  const bool in_vectors = lanes == kRansLanes || lanes == kPart;
  for (; in_vectors && at + kGroup <= n && words >= begin; at += kGroup) {
    const Means means = load_means(now, at);
    __m256i classes[kParts];
    __m256i magnitudes[kParts];
    __m256i found[kParts];
    classes_of(means, now, classes);
    if (lanes == kRansLanes) {
      for (std::size_t k = kParts; k-- > 0;) {
        parts[k] = pop_class(parts[k], classes[k], tables, move, &words, found + k, magnitudes + k);
      }
    } else {
      for (std::size_t k = 0; k < kParts; ++k) {
        parts[0] = pop_class(parts[0], classes[k], tables, move, &words, found + k, magnitudes + k);
      }
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(levels + at), to_signed_bytes(found));
    note(now, at, means, magnitudes);
  }
  for (std::size_t k = 0; k < kParts; ++k) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(states + kPart * k), parts[k]);
  }
  for (; at < n && words >= begin; at += kGroup) {
    decode_group(&words, tables, states, lanes, at, n - at < kGroup ? n - at : kGroup, now,
                 levels + at);
  }
  contexts = now;
  *from = words;
  return words >= begin;
}

}  // namespace

const CodingKernels kAvx2CodingKernels = {rans_encode, rans_decode,      pack_digits, unpack_digits,
                                          classify,    count_classified, decode_row};

}  // namespace gradcomp

#endif
