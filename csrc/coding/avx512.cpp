#if defined(__x86_64__)

#include <algorithm>
#include <cmath>
#include <cstring>

#include "coding/digits_pack.hpp"
#include "coding/rans_step.hpp"
#include "kernels/coding.hpp"
#include "kernels/x86.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kHalf = kRansLanes / 2;  // of the states, in one vector
constexpr std::size_t kFewLanes = 8;  // number of lanes with a vector loop of its own in contexts
constexpr std::size_t kStepBytes = kRansWord * kRansLanes;

// Entries of eight symbols. Gather instructions are slower on processors with a mitigation of
// (Intel: "Gather Data Sampling", 2023).
GRADCOMP_AVX512 inline __m512i load_every_second(const RansEncodeTable& table,
                                                 const std::uint8_t* symbols) {
  const auto at = [&](std::size_t i) {
    long long entry;
    std::memcpy(&entry, &table.of[symbols[2 * i]], sizeof entry);
    return entry;
  };
  return _mm512_set_epi64(at(7), at(6), at(5), at(4), at(3), at(2), at(1), at(0));
}

// As rans_encode_step() for 16 states.
GRADCOMP_AVX512 inline __m512i push(__m512i state, const std::uint8_t* symbols,
                                    const RansEncodeTable& table, std::uint8_t** to) {
  // Even and odd states separately, because table entries and products have 64 bits.
  const __m512i even = load_every_second(table, symbols);
  const __m512i odd = load_every_second(table, symbols + 1);
  const __m512i field = _mm512_set1_epi32(kRansTotal - 1);
  const __m512i packed = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xAAAA, odd);
  const __m512i complement = _mm512_and_si512(_mm512_srli_epi32(packed, kRansBits), field);
  const __mmask16 full = _mm512_test_epi32_mask(
      _mm512_add_epi32(_mm512_srli_epi32(state, 17), complement), _mm512_set1_epi32(kRansTotal));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(*to),
                      _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, state)));
  *to += kRansWord * static_cast<unsigned>(__builtin_popcount(full));
  state = _mm512_mask_srli_epi32(state, full, state, 16);
  const __m512i even_product = _mm512_srli_epi64(_mm512_mul_epu32(state, even), 31);
  const __m512i odd_product =
      _mm512_srli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(state, 32), odd), 31);
  const __m512i even_part =
      _mm512_mul_epu32(_mm512_srlv_epi64(even_product, _mm512_srli_epi64(even, 60)), complement);
  const __m512i odd_part =
      _mm512_mul_epu32(_mm512_srlv_epi64(odd_product, _mm512_srli_epi64(odd, 60)),
                       _mm512_srli_epi64(complement, 32));
  const __m512i part = _mm512_mask_mov_epi32(even_part, 0xAAAA, _mm512_slli_epi64(odd_part, 32));
  return _mm512_add_epi32(_mm512_add_epi32(state, _mm512_and_si512(packed, field)), part);
}

GRADCOMP_AVX512 std::size_t rans_encode(const std::uint8_t* symbols, std::size_t n,
                                        const RansEncodeTable& table, std::uint32_t* states,
                                        std::uint8_t** to, const std::uint8_t* end) {
  __m512i low = _mm512_loadu_si512(states);
  __m512i high = _mm512_loadu_si512(states + kHalf);
  std::uint8_t* at = *to;
  for (; n != 0 && static_cast<std::size_t>(end - at) >= kStepBytes; n -= kRansLanes) {
    const std::uint8_t* const step = symbols + n - kRansLanes;
    low = push(low, step, table, &at);
    high = push(high, step + kHalf, table, &at);
  }
  _mm512_storeu_si512(states, low);
  _mm512_storeu_si512(states + kHalf, high);
  *to = at;
  return n;
}

// As rans_decode_step() for 16 states.
GRADCOMP_AVX512 inline __m512i pop(__m512i state, const RansDecodeTable& table,
                                   const std::uint8_t** from, std::uint8_t* symbols) {
  const __m512i slot = _mm512_and_si512(state, _mm512_set1_epi32(kRansTotal - 1));
  alignas(64) std::uint32_t slots[kHalf];
  _mm512_store_si512(slots, slot);
  const auto at = [&](std::size_t i) {
    symbols[i] = table.symbol_at[slots[i]];
    return static_cast<int>(table.packed[symbols[i]]);
  };
  const __m512i packed =
      _mm512_set_epi32(at(15), at(14), at(13), at(12), at(11), at(10), at(9), at(8), at(7), at(6),
                       at(5), at(4), at(3), at(2), at(1), at(0));
  const __m512i start = _mm512_and_si512(packed, _mm512_set1_epi32(0xFFFF));
  state = _mm512_mullo_epi32(_mm512_srli_epi32(packed, 16), _mm512_srli_epi32(state, kRansBits));
  state = _mm512_add_epi32(state, _mm512_sub_epi32(slot, start));
  const __mmask16 empty = _mm512_cmplt_epu32_mask(state, _mm512_set1_epi32(kRansLowest));
  *from -= kRansWord * static_cast<unsigned>(__builtin_popcount(empty));
  const __m512i words =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(*from)));
  const __m512i filled =
      _mm512_or_si512(_mm512_slli_epi32(state, 16), _mm512_maskz_expand_epi32(empty, words));
  return _mm512_mask_mov_epi32(state, empty, filled);
}

GRADCOMP_AVX512 std::size_t rans_decode(const std::uint8_t* begin, const std::uint8_t** from,
                                        const RansDecodeTable& table, std::uint32_t* states,
                                        std::uint8_t* symbols, std::size_t n) {
  __m512i low = _mm512_loadu_si512(states);
  __m512i high = _mm512_loadu_si512(states + kHalf);
  const std::uint8_t* at = *from;
  std::size_t i = 0;
  for (; i + kRansLanes <= n && static_cast<std::size_t>(at - begin) >= kStepBytes;
       i += kRansLanes) {
    high = pop(high, table, &at, symbols + i + kHalf);
    low = pop(low, table, &at, symbols + i);
  }
  _mm512_storeu_si512(states, low);
  _mm512_storeu_si512(states + kHalf, high);
  *from = at;
  return i;
}

GRADCOMP_AVX512 inline std::uint32_t count_equal(__m512i numbers, unsigned number) {
  return static_cast<std::uint32_t>(__builtin_popcountll(
      _mm512_cmpeq_epi8_mask(numbers, _mm512_set1_epi8(static_cast<char>(number)))));
}

GRADCOMP_AVX512 void pack_digits(const std::uint8_t* numbers, unsigned width, std::uint8_t* packed,
                                 std::size_t n, std::uint32_t* counts) {
  // Neighbours are joined: bytes to halves, and with 2 bits halves to words.
  const __m512i pairs = width == 2 ? _mm512_set1_epi16(4 << 8 | 1) : _mm512_set1_epi16(16 << 8 | 1);
  const __m512i fours = _mm512_set1_epi32(16 << 16 | 1);
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i all = _mm512_loadu_si512(numbers + i);
    const __m512i two = _mm512_maddubs_epi16(all, pairs);
    if (width == 2) {
      for (unsigned number = 1; number < 4; ++number) counts[number] += count_equal(all, number);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(packed + i / 4),
                       _mm512_cvtepi32_epi8(_mm512_madd_epi16(two, fours)));
    } else {
      for (unsigned number = 1; number < 16; ++number) counts[number] += count_equal(all, number);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(packed + i / 2), _mm512_cvtepi16_epi8(two));
    }
  }
  finish_pack(numbers + i, width, packed + i * width / 8, n - i, counts);
}

GRADCOMP_AVX512 void unpack_digits(const std::uint8_t* packed, unsigned width,
                                   std::uint8_t* numbers, std::size_t n) {
  std::size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    __m512i wide;
    if (width == 2) {
      wide =
          _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + i / 4)));
      wide = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 12));
      wide = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 6));
      wide = _mm512_and_si512(wide, _mm512_set1_epi8(3));
    } else {
      wide = _mm512_cvtepu8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed + i / 2)));
      wide = _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));
      wide = _mm512_and_si512(wide, _mm512_set1_epi8(15));
    }
    _mm512_storeu_si512(numbers + i, wide);
  }
  finish_unpack(packed + i * width / 8, width, numbers + i, n - i);
}

#define GRADCOMP_LEVEL GRADCOMP_AVX512
#include "coding/contexts_loops.hpp"

// Half octave of class 0; see halves_of(). As no mean is below 0, no sum of two lies below it, and
// all lie less than 32 above.
constexpr std::int32_t kLowestHalf = 2 * 127 + kFirstClass;

// The thresholds of 32 half octaves, by their lower five bits.
struct Thresholds {
  __m512 low;
  __m512 high;
};

GRADCOMP_AVX512 inline Thresholds load_thresholds(const DeadZone& zone) {
  constexpr std::size_t kHalves = 2 * kClasses;
  float of[kHalves];
  for (std::size_t above = 0; above < kHalves; ++above) {
    of[(kLowestHalf + above) % kHalves] = zone.threshold[std::min(above, kClasses - 1)];
  }
  return {_mm512_loadu_ps(of), _mm512_loadu_ps(of + kClasses)};
}

GRADCOMP_AVX512 inline __m512i classes_of(__m512i halves) {
  return _mm512_min_epi32(_mm512_sub_epi32(halves, _mm512_set1_epi32(kLowestHalf)),
                          _mm512_set1_epi32(kClasses - 1));
}

// As classify_group(), for 16 elements of a group. The next group waits for the magnitudes, hence
// thresholds by half octaves: classes take longer.
GRADCOMP_AVX512 inline __m512i quantize(__m512 x, __m512i halves, const DeadZone& zone,
                                        const Thresholds& thresholds, std::uint8_t* symbols) {
  const __m512 size = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(zone.inverse));
  const __m512i one = _mm512_set1_epi32(1);
  __m512i magnitude = _mm512_cvttps_epi32(_mm512_add_ps(size, _mm512_set1_ps(zone.bias)));
  magnitude = _mm512_min_epi32(_mm512_max_epi32(magnitude, one), _mm512_set1_epi32(kTopMagnitude));
  const __m512 threshold = _mm512_permutex2var_ps(thresholds.low, halves, thresholds.high);
  const __mmask16 sent = _mm512_cmp_ps_mask(size, threshold, _CMP_NLT_UQ);
  magnitude = _mm512_maskz_mov_epi32(sent, magnitude);
  const __m512i negative = _mm512_srli_epi32(_mm512_castps_si512(x), 31);
  const __m512i symbol = _mm512_maskz_sub_epi32(
      sent, _mm512_add_epi32(_mm512_add_epi32(magnitude, magnitude), negative), one);
  const __m512i of_class = _mm512_slli_epi32(classes_of(halves), 4);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(symbols),
                   _mm512_cvtepi32_epi8(_mm512_add_epi32(of_class, symbol)));
  return magnitude;
}

// Means of the columns, in the halves of a group.
struct Means {
  __m512i low;
  __m512i high;
};

GRADCOMP_AVX512 inline Means load_means(const Contexts& contexts, std::size_t at) {
  const auto* const means = reinterpret_cast<const __m256i*>(contexts.columns + at);
  return {_mm512_cvtepi16_epi32(_mm256_loadu_si256(means)),
          _mm512_cvtepi16_epi32(_mm256_loadu_si256(means + 1))};
}

// Half octaves of the sums of both means: of float32, the exponent and a bit. `row`: Contexts::row
// in all elements.
GRADCOMP_AVX512 inline __m512i halves_of(__m512i means, __m512i row) {
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(means, _mm512_set1_epi32(kMeanFloor)), row);
  return _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(sum)), 22);
}

GRADCOMP_AVX512 inline __m256i grown(__m512i mean, __m512i magnitude, __m128i shift) {
  const __m512i difference = _mm512_sub_epi32(_mm512_slli_epi32(magnitude, kMeanBits), mean);
  return _mm512_cvtepi32_epi16(_mm512_add_epi32(mean, _mm512_sra_epi32(difference, shift)));
}

// As take_note(), for a whole group. Returns the new mean of the row, in all elements.
GRADCOMP_AVX512 inline __m512i note(const Contexts& contexts, std::size_t at, const Means& means,
                                    __m512i row, __m512i low, __m512i high) {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(contexts.shift));
  auto* const columns = reinterpret_cast<__m256i*>(contexts.columns + at);
  _mm256_storeu_si256(columns, grown(means.low, low, shift));
  _mm256_storeu_si256(columns + 1, grown(means.high, high, shift));
  // Two magnitudes fit into a byte.
  const __m128i halves =
      _mm_sad_epu8(_mm512_cvtepi32_epi8(_mm512_add_epi32(low, high)), _mm_setzero_si128());
  const __m128i sum = _mm_add_epi32(halves, _mm_unpackhi_epi64(halves, halves));
  static_assert(kGroup == 32, "a mean is a sum shifted by 5");
  const __m512i mean = _mm512_slli_epi32(_mm512_broadcastd_epi32(sum), kMeanBits - 5);
  return _mm512_add_epi32(row, _mm512_srai_epi32(_mm512_sub_epi32(mean, row), kRowShift));
}

GRADCOMP_AVX512 inline std::int32_t first_of(__m512i row) {
  return _mm_cvtsi128_si32(_mm512_castsi512_si128(row));
}

GRADCOMP_AVX512 void classify(const float* x, std::size_t n, const DeadZone& zone,
                              Contexts& contexts, std::uint8_t* symbols) {
  const Thresholds thresholds = load_thresholds(zone);
  Contexts now = contexts;
  __m512i row = _mm512_set1_epi32(now.row);
  std::size_t at = 0;
  for (; at + kGroup <= n; at += kGroup) {
    const Means means = load_means(now, at);
    const __m512i low = quantize(_mm512_loadu_ps(x + at), halves_of(means.low, row), zone,
                                 thresholds, symbols + at);
    const __m512i high = quantize(_mm512_loadu_ps(x + at + kHalf), halves_of(means.high, row), zone,
                                  thresholds, symbols + at + kHalf);
    row = note(now, at, means, row, low, high);
  }
  now.row = first_of(row);
  if (at < n) classify_group(x + at, at, n - at, zone, now, symbols + at);
  contexts = now;
}

// As decode_group() for kLanes states, 8 or 16.
template <std::size_t kLanes>
GRADCOMP_AVX512 inline __m512i pop_class(__m512i state, __m512i classes, const __m512i* tables,
                                         const std::uint8_t** from, std::int8_t* levels,
                                         __m512i* magnitudes) {
  constexpr auto kUsed = static_cast<__mmask16>((1u << kLanes) - 1);
  const __m512i slot = _mm512_and_si512(state, _mm512_set1_epi32(kRansTotal - 1));
  // Above the start of any interval, whatever its frequency.
  const __m512i key = _mm512_or_si512(_mm512_slli_epi32(slot, 16), _mm512_set1_epi32(0xFFFF));
  const __m512i one = _mm512_set1_epi32(1);
  __m512i interval = _mm512_permutexvar_epi32(classes, tables[0]);
  __m512i magnitude = _mm512_setzero_si512();
  for (unsigned m = 1; m <= kTopMagnitude; ++m) {
    const __m512i next = _mm512_permutexvar_epi32(classes, tables[m]);
    const __mmask16 reached = _mm512_mask_cmpge_epu32_mask(kUsed, key, next);
    if (reached == 0) break;
    interval = _mm512_mask_mov_epi32(interval, reached, next);
    magnitude = _mm512_mask_add_epi32(magnitude, reached, magnitude, one);
  }
  const __m512i frequency = _mm512_and_si512(interval, _mm512_set1_epi32(0xFFFF));
  __m512i offset = _mm512_sub_epi32(slot, _mm512_srli_epi32(interval, 16));
  const __mmask16 negative = _mm512_cmpge_epu32_mask(offset, frequency);
  offset = _mm512_mask_sub_epi32(offset, negative, offset, frequency);
  *magnitudes = magnitude;
  const __m128i bytes = _mm512_cvtepi32_epi8(
      _mm512_mask_sub_epi32(magnitude, negative, _mm512_setzero_si512(), magnitude));
  auto* const to = reinterpret_cast<__m128i*>(levels);
  if (kLanes == kHalf) {
    _mm_storeu_si128(to, bytes);
  } else {
    _mm_storel_epi64(to, bytes);
  }
  state =
      _mm512_add_epi32(_mm512_mullo_epi32(frequency, _mm512_srli_epi32(state, kRansBits)), offset);
  const __mmask16 empty =
      _mm512_mask_cmplt_epu32_mask(kUsed, state, _mm512_set1_epi32(kRansLowest));
  *from -= kRansWord * static_cast<unsigned>(__builtin_popcount(empty));
  const __m512i words =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(*from)));
  const __m512i filled =
      _mm512_or_si512(_mm512_slli_epi32(state, 16), _mm512_maskz_expand_epi32(empty, words));
  return _mm512_mask_mov_epi32(state, empty, filled);
}

// Half of a group with 8 states: first its lower elements, then the others.
GRADCOMP_AVX512 inline __m512i pop_half(__m512i* state, __m512i classes, const __m512i* tables,
                                        const std::uint8_t** from, std::int8_t* levels) {
  __m512i first, second;
  *state = pop_class<kFewLanes>(*state, classes, tables, from, levels, &first);
  const __m512i others = _mm512_castsi256_si512(_mm512_extracti64x4_epi64(classes, 1));
  *state = pop_class<kFewLanes>(*state, others, tables, from, levels + kFewLanes, &second);
  return _mm512_inserti64x4(first, _mm512_castsi512_si256(second), 1);
}

struct Zeros {
  static constexpr std::size_t kBytes = 64;
  __m512i of[kLowClasses] = {};

  // A bit for each symbol that is not 0 of a low class.
  GRADCOMP_AVX512 static std::uint64_t others(const std::uint8_t* symbols) {
    return _mm512_test_epi8_mask(_mm512_loadu_si512(symbols),
                                 _mm512_set1_epi8(static_cast<char>(kOtherBits)));
  }
  GRADCOMP_AVX512 void add(const std::uint8_t* symbols) {
    const __m512i found = _mm512_loadu_si512(symbols);
    for (std::size_t c = 0; c < kLowClasses; ++c) {
      const __m512i zero = _mm512_set1_epi8(static_cast<char>(kClassSymbols * c));
      const __mmask64 same = _mm512_cmpeq_epi8_mask(found, zero);
      of[c] = _mm512_mask_add_epi8(of[c], same, of[c], _mm512_set1_epi8(1));
    }
  }
  GRADCOMP_AVX512 std::uint32_t count(std::size_t c) const {
    const __m512i sums = _mm512_sad_epu8(of[c], _mm512_setzero_si512());
    return static_cast<std::uint32_t>(_mm512_reduce_add_epi64(sums));
  }
};

GRADCOMP_AVX512 void count_classified(const std::uint8_t* symbols, std::size_t n,
                                      std::uint32_t* counts) {
  count_by_zeros<Zeros>(symbols, n, counts);
}

GRADCOMP_AVX512 bool decode_row(const std::uint8_t* begin, const std::uint8_t** from,
                                const ClassTables& tables, std::uint32_t* states, std::size_t lanes,
                                Contexts& contexts, std::int8_t* levels, std::size_t n) {
  __m512i of[kTopMagnitude + 1];
  for (unsigned m = 0; m <= kTopMagnitude; ++m) of[m] = _mm512_load_si512(tables.of[m]);
  __m512i low = _mm512_loadu_si512(states);
  __m512i high = _mm512_loadu_si512(states + kHalf);
  Contexts now = contexts;
  __m512i row = _mm512_set1_epi32(now.row);
  const std::uint8_t* words = *from;
  std::size_t at = 0;
  for (; lanes == kRansLanes && at + kGroup <= n && words >= begin; at += kGroup) {
    const Means means = load_means(now, at);
    __m512i low_magnitudes, high_magnitudes;
    high = pop_class<kHalf>(high, classes_of(halves_of(means.high, row)), of, &words,
                            levels + at + kHalf, &high_magnitudes);
    low = pop_class<kHalf>(low, classes_of(halves_of(means.low, row)), of, &words, levels + at,
                           &low_magnitudes);
    row = note(now, at, means, row, low_magnitudes, high_magnitudes);
  }
  for (; lanes == kFewLanes && at + kGroup <= n && words >= begin; at += kGroup) {
    const Means means = load_means(now, at);
    const __m512i first =
        pop_half(&low, classes_of(halves_of(means.low, row)), of, &words, levels + at);
    const __m512i second =
        pop_half(&low, classes_of(halves_of(means.high, row)), of, &words, levels + at + kHalf);
    row = note(now, at, means, row, first, second);
  }
  now.row = first_of(row);
  _mm512_storeu_si512(states, low);
  _mm512_storeu_si512(states + kHalf, high);
  for (; at < n && words >= begin; at += kGroup) {
    decode_group(&words, tables, states, lanes, at, n - at < kGroup ? n - at : kGroup, now,
                 levels + at);
  }
  contexts = now;
  *from = words;
  return words >= begin;
}

}  // namespace

const CodingKernels kAvx512CodingKernels = {
    rans_encode, rans_decode, pack_digits, unpack_digits, classify, count_classified, decode_row};

}  // namespace gradcomp

#endif
