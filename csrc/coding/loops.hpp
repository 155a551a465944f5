// Loops of CodingKernels, shared by AVX2 and AVX-512. No include guard: each level includes this
// file inside its own namespace, after the header of its registers (kernels/registers.hpp) and
// coding/contexts_loops.hpp, with
//   Words          put() writes words of marked states, and fill() reads words into them,
//   Table          kClasses numbers, which load_table() loads and look_up() looks up,
//   Thresholds     thresholds of a DeadZone, for threshold_of(),
//   sum_of()       two sums of 64 bits of a register's numbers, which fit bytes, and
//   store_bytes()  stores the lowest bytes of the numbers in kParts registers.

constexpr std::size_t kParts = kRansLanes / kFloats;  // registers of the states
constexpr std::size_t kFewLanes = 8;  // other number of states that decode_row() has in registers
constexpr std::size_t kStepBytes = kRansWord * kRansLanes;

GRADCOMP_LEVEL inline void load_states(const std::uint32_t* states, Vector* parts) {
  for (std::size_t k = 0; k < kParts; ++k) parts[k] = load_vector(states + kFloats * k);
}
GRADCOMP_LEVEL inline void store_states(std::uint32_t* states, const Vector* parts) {
  for (std::size_t k = 0; k < kParts; ++k) store_vector(states + kFloats * k, parts[k]);
}

// Gather instructions are slower on processors with a mitigation of (Intel: "Gather Data Sampling",
// 2023).

// Entries of symbols 0, 2, 4, ..., each in 64 bits.
GRADCOMP_LEVEL inline Vector load_every_second(const RansEncodeTable& table,
                                               const std::uint8_t* symbols) {
  return set_epi64([&](std::size_t i) {
    long long entry;
    std::memcpy(&entry, &table.of[symbols[2 * i]], sizeof entry);
    return entry;
  });
}

// Finds the symbols of slots, and loads their intervals.
GRADCOMP_LEVEL inline Vector load_intervals(const RansDecodeTable& table, Vector slots,
                                            std::uint8_t* symbols) {
  alignas(kBytes) std::uint32_t slot[kFloats];
  store_vector(slot, slots);
  return set_epi32([&](std::size_t i) {
    symbols[i] = table.symbol_at[slot[i]];
    return static_cast<int>(table.packed[symbols[i]]);
  });
}

// As rans_encode_step() for one register of states.
GRADCOMP_LEVEL inline Vector push(Vector state, const std::uint8_t* symbols,
                                  const RansEncodeTable& table, const Words& words,
                                  std::uint8_t** to) {
  // Even and odd states separately, because table entries and products have 64 bits.
  const Vector even = load_every_second(table, symbols);
  const Vector odd = load_every_second(table, symbols + 1);
  const Vector field = set1_epi32(kRansTotal - 1);
  const Vector packed = blend_odd_epi32(srli_epi64<32>(even), odd);
  const Vector complement = srli_epi32<kRansBits>(packed) & field;
  const Mask32 full = cmpgt_epi32(add_epi32(srli_epi32<17>(state), complement), field);
  words.put(full, state, to);
  state = blend_epi32(full, state, srli_epi32<16>(state));
  const Vector even_product = srli_epi64<31>(mul_epu32(state, even));
  const Vector odd_product = srli_epi64<31>(mul_epu32(srli_epi64<32>(state), odd));
  const Vector even_part = mul_epu32(srlv_epi64(even_product, srli_epi64<60>(even)), complement);
  const Vector odd_part =
      mul_epu32(srlv_epi64(odd_product, srli_epi64<60>(odd)), srli_epi64<32>(complement));
  const Vector part = blend_odd_epi32(even_part, slli_epi64<32>(odd_part));
  return add_epi32(add_epi32(state, packed & field), part);
}

GRADCOMP_LEVEL std::size_t rans_encode(const std::uint8_t* symbols, std::size_t n,
                                       const RansEncodeTable& table, std::uint32_t* states,
                                       std::uint8_t** to, const std::uint8_t* end) {
  const Words words;
  Vector parts[kParts];
  load_states(states, parts);
  std::uint8_t* at = *to;
  for (; n != 0 && static_cast<std::size_t>(end - at) >= kStepBytes; n -= kRansLanes) {
    const std::uint8_t* const step = symbols + n - kRansLanes;
    for (std::size_t k = 0; k < kParts; ++k) {
      parts[k] = push(parts[k], step + kFloats * k, table, words, &at);
    }
  }
  store_states(states, parts);
  *to = at;
  return n;
}

// As rans_decode_step() for one register of states.
GRADCOMP_LEVEL inline Vector pop(Vector state, const RansDecodeTable& table, const Words& words,
                                 const std::uint8_t** from, std::uint8_t* symbols) {
  const Vector slot = state & set1_epi32(kRansTotal - 1);
  const Vector packed = load_intervals(table, slot, symbols);
  const Vector start = packed & set1_epi32(0xFFFF);
  state = mullo_epi32(srli_epi32<16>(packed), srli_epi32<kRansBits>(state));
  state = add_epi32(state, sub_epi32(slot, start));
  return words.fill(cmpgt_epi32(set1_epi32(kRansLowest), state), state, from);
}

GRADCOMP_LEVEL std::size_t rans_decode(const std::uint8_t* begin, const std::uint8_t** from,
                                       const RansDecodeTable& table, std::uint32_t* states,
                                       std::uint8_t* symbols, std::size_t n) {
  const Words words;
  Vector parts[kParts];
  load_states(states, parts);
  const std::uint8_t* at = *from;
  std::size_t i = 0;
  for (; i + kRansLanes <= n && static_cast<std::size_t>(at - begin) >= kStepBytes;
       i += kRansLanes) {
    for (std::size_t k = kParts; k-- > 0;) {
      parts[k] = pop(parts[k], table, words, &at, symbols + i + kFloats * k);
    }
  }
  store_states(states, parts);
  *from = at;
  return i;
}

// Packs 2 * kBytes numbers.
template <unsigned kWidth>
GRADCOMP_LEVEL inline void pack_step(const std::uint8_t* numbers, std::uint8_t* packed,
                                     std::uint32_t* counts) {
  constexpr unsigned kNumbers = 1u << kWidth;
  // Neighbours are joined: bytes to halves, and with 2 bits halves to words.
  const Vector pairs = set1_epi16(kNumbers << 8 | 1);
  const Vector fours = set1_epi32(kNumbers * kNumbers << 16 | 1);
  Vector joined[2];
  for (std::size_t k = 0; k < 2; ++k) {
    const Vector all = load_vector(numbers + kBytes * k);
    joined[k] = maddubs_epi16(all, pairs);
    if (kWidth == 2) joined[k] = madd_epi16(joined[k], fours);
    for (unsigned number = 1; number < kNumbers; ++number) {
      const Bits equal = bits_of(cmpeq_epi8(all, set1_epi8(static_cast<int>(number))));
      counts[number] += static_cast<std::uint32_t>(__builtin_popcountll(equal));
    }
  }
  if (kWidth == 2) {
    const Vector halves = order_epi64(packus_epi32(joined[0], joined[1]));
    store_half(packed, low_half(order_epi64(packus_epi16(halves, halves))));
  } else {
    store_vector(packed, order_epi64(packus_epi16(joined[0], joined[1])));
  }
}

template <unsigned kWidth>
GRADCOMP_LEVEL inline void pack(const std::uint8_t* numbers, std::uint8_t* packed, std::size_t n,
                                std::uint32_t* counts) {
  constexpr std::size_t kStep = 2 * kBytes;
  constexpr std::size_t kEach = 8 / kWidth;  // numbers in a byte
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    pack_step<kWidth>(numbers + i, packed + i / kEach, counts);
  }
  if (i < n) {
    std::uint8_t last[kStep] = {};  // zeros are not counted
    std::uint8_t bytes[kStep / kEach];
    std::memcpy(last, numbers + i, n - i);
    pack_step<kWidth>(last, bytes, counts);
    std::memcpy(packed + i / kEach, bytes, (n - i + kEach - 1) / kEach);
  }
}

GRADCOMP_LEVEL void pack_digits(const std::uint8_t* numbers, unsigned width, std::uint8_t* packed,
                                std::size_t n, std::uint32_t* counts) {
  if (width == 2) {
    pack<2>(numbers, packed, n, counts);
  } else {
    pack<4>(numbers, packed, n, counts);
  }
}

// Unpacks kBytes numbers.
template <unsigned kWidth>
GRADCOMP_LEVEL inline void unpack_step(const std::uint8_t* packed, std::uint8_t* numbers) {
  Vector wide;
  if (kWidth == 2) {
    wide = cvtepu8_epi32(load_quarter(packed));
    wide = wide | slli_epi32<12>(wide);
    wide = (wide | slli_epi32<6>(wide)) & set1_epi8(3);
  } else {
    wide = cvtepu8_epi16(load_half(packed));
    wide = (wide | slli_epi16<4>(wide)) & set1_epi8(15);
  }
  store_vector(numbers, wide);
}

template <unsigned kWidth>
GRADCOMP_LEVEL inline void unpack(const std::uint8_t* packed, std::uint8_t* numbers,
                                  std::size_t n) {
  constexpr std::size_t kEach = 8 / kWidth;
  std::size_t i = 0;
  for (; i + kBytes <= n; i += kBytes) unpack_step<kWidth>(packed + i / kEach, numbers + i);
  if (i < n) {
    std::uint8_t bytes[kBytes / kEach] = {};
    std::uint8_t last[kBytes];
    std::memcpy(bytes, packed + i / kEach, (n - i + kEach - 1) / kEach);
    unpack_step<kWidth>(bytes, last);
    std::memcpy(numbers + i, last, n - i);
  }
}

GRADCOMP_LEVEL void unpack_digits(const std::uint8_t* packed, unsigned width, std::uint8_t* numbers,
                                  std::size_t n) {
  if (width == 2) {
    unpack<2>(packed, numbers, n);
  } else {
    unpack<4>(packed, numbers, n);
  }
}

GRADCOMP_LEVEL inline void load_means(const Contexts& contexts, std::size_t at, Vector* means) {
  for (std::size_t k = 0; k < kParts; ++k) {
    means[k] = cvtepi16_epi32(load_half(contexts.columns + at + kFloats * k));
  }
}

// Half octaves of the sums of both means: of float32, the exponent and a bit. `row`: Contexts::row
// in all elements.
GRADCOMP_LEVEL inline Vector halves_of(Vector means, Vector row) {
  const Vector sum = add_epi32(add_epi32(means, set1_epi32(kMeanFloor)), row);
  return srli_epi32<22>(from_floats(cvtepi32_ps(sum)));
}

GRADCOMP_LEVEL inline Vector classes_of(Vector halves) {
  return min_epi32(sub_epi32(halves, set1_epi32(kLowestHalf)), set1_epi32(kClasses - 1));
}

// As classify_group(), for a part of a group. The next group waits for the magnitudes.
GRADCOMP_LEVEL inline Vector quantize(Floats x, Vector halves, const DeadZone& zone,
                                      const Thresholds& thresholds, Vector* symbols) {
  const Vector classes = classes_of(halves);
  const Floats size = to_floats(from_floats(x) & set1_epi32(0x7FFFFFFF)) * set1_ps(zone.inverse);
  Vector magnitude = cvttps_epi32(size + set1_ps(zone.bias));
  magnitude = min_epi32(max_epi32(magnitude, set1_epi32(1)), set1_epi32(kTopMagnitude));
  const Mask32 sent = cmpge_ps(size, threshold_of(thresholds, halves, classes));
  magnitude = keep_epi32(sent, magnitude);
  const Vector negative = srli_epi32<31>(from_floats(x));
  const Vector twice = add_epi32(magnitude, magnitude);
  const Vector symbol = keep_epi32(sent, sub_epi32(add_epi32(twice, negative), set1_epi32(1)));
  *symbols = add_epi32(slli_epi32<4>(classes), symbol);
  return magnitude;
}

// As take_note(), for a whole group. Returns the new mean of the row, in all elements.
GRADCOMP_LEVEL inline Vector note(const Contexts& contexts, std::size_t at, const Vector* means,
                                  Vector row, const Vector* magnitudes) {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(contexts.shift));
  Vector grown[kParts];
  Vector sums = magnitudes[0];
  for (std::size_t k = 0; k < kParts; ++k) {
    const Vector difference = sub_epi32(slli_epi32<kMeanBits>(magnitudes[k]), means[k]);
    grown[k] = add_epi32(means[k], sra_epi32(difference, shift));
    if (k != 0) sums = add_epi32(sums, magnitudes[k]);
  }
  for (std::size_t k = 0; k < kParts; k += 2) {
    store_vector(contexts.columns + at + kFloats * k,
                 order_epi64(packs_epi32(grown[k], grown[k + 1])));
  }
  const __m128i halves = sum_of(sums);
  const __m128i sum = _mm_add_epi32(halves, _mm_unpackhi_epi64(halves, halves));
  static_assert(kGroup == 32, "a mean is a sum shifted by 5");
  const Vector mean = slli_epi32<kMeanBits - 5>(broadcastd_epi32(sum));
  return add_epi32(row, srai_epi32<kRowShift>(sub_epi32(mean, row)));
}

GRADCOMP_LEVEL void classify(const float* x, std::size_t n, const DeadZone& zone,
                             Contexts& contexts, std::uint8_t* symbols) {
  const Thresholds thresholds(zone);
  Contexts now = contexts;
  Vector row = set1_epi32(now.row);
  std::size_t at = 0;
  for (; at + kGroup <= n; at += kGroup) {
    Vector means[kParts];
    Vector magnitudes[kParts];
    Vector found[kParts];
    load_means(now, at, means);
    for (std::size_t k = 0; k < kParts; ++k) {
      magnitudes[k] = quantize(load_floats(x + at + kFloats * k), halves_of(means[k], row), zone,
                               thresholds, found + k);
    }
    store_bytes(symbols + at, found);
    row = note(now, at, means, row, magnitudes);
  }
  now.row = static_cast<std::int32_t>(row[0]);
  if (at < n) classify_group(x + at, at, n - at, zone, now, symbols + at);
  contexts = now;
}

// As decode_group() for one register of states.
GRADCOMP_LEVEL inline Vector pop_class(Vector state, Vector classes, const Table* tables,
                                       const Words& words, const std::uint8_t** from, Vector* level,
                                       Vector* found) {
  const Vector slot = state & set1_epi32(kRansTotal - 1);
  // Above the start of any interval, whatever its frequency.
  const Vector key = slli_epi32<16>(slot) | set1_epi32(0xFFFF);
  Vector interval = look_up(tables[0], classes);
  Vector magnitude = {};
  for (unsigned m = 1; m <= kTopMagnitude; ++m) {
    const Vector next = look_up(tables[m], classes);
    const Mask32 reached = cmpgt_epi32(key, next);
    if (none_of(reached)) break;
    interval = blend_epi32(reached, interval, next);
    magnitude = increment_epi32(reached, magnitude);
  }
  const Vector frequency = interval & set1_epi32(0xFFFF);
  Vector offset = sub_epi32(slot, srli_epi32<16>(interval));
  const Mask32 negative = cmpge_epi32(offset, frequency);
  offset = sub_epi32(negative, offset, frequency);
  *found = magnitude;
  *level = negate_epi32(negative, magnitude);
  state = add_epi32(mullo_epi32(frequency, srli_epi32<kRansBits>(state)), offset);
  return words.fill(cmpgt_epi32(set1_epi32(kRansLowest), state), state, from);
}

// Counts the zeros of low classes in the bytes of registers, 255 times at most.
struct Zeros {
  Vector of[kLowClasses] = {};

  GRADCOMP_LEVEL void add(Vector symbols) {
    for (std::size_t c = 0; c < kLowClasses; ++c) {
      const Vector zero = set1_epi8(static_cast<int>(kClassSymbols * c));
      of[c] = increment_epi8(cmpeq_epi8(symbols, zero), of[c]);
    }
  }
};

// Other symbols are counted one by one.
GRADCOMP_LEVEL void count_classified(const std::uint8_t* symbols, std::size_t n,
                                     std::uint32_t* counts) {
  constexpr int kMany = kBytes / 4;  // others, for which vectors take longer
  std::uint32_t parts[4][256] = {};  // adding twice in a row to one counter would wait
  std::size_t i = 0;
  while (i + kBytes <= n) {
    Zeros zeros;
    const std::size_t end = n - i < 255 * kBytes ? n : i + 255 * kBytes;
    for (; i + kBytes <= end; i += kBytes) {
      const Vector found = load_vector(symbols + i);
      std::uint64_t others = bits_of(test_epi8(found, set1_epi8(kOtherBits)));
      if (__builtin_popcountll(others) > kMany) {
        for (std::size_t j = 0; j < kBytes; j += 8) {
          const auto eight = load<std::uint64_t>(symbols + i + j);
          for (unsigned k = 0; k < 8; ++k) ++parts[k % 4][eight >> 8 * k & 0xFF];
        }
        continue;
      }
      zeros.add(found);
      for (unsigned part = 0; others != 0; others &= others - 1, ++part) {
        ++parts[part % 4][symbols[i + static_cast<std::size_t>(__builtin_ctzll(others))]];
      }
    }
    for (std::size_t c = 0; c < kLowClasses; ++c) {
      parts[0][kClassSymbols * c] += reduce_add_epu8(zeros.of[c]);
    }
  }
  for (; i < n; ++i) ++parts[i % 4][symbols[i]];
  for (std::size_t s = 0; s < 256; ++s) {
    counts[s] += parts[0][s] + parts[1][s] + parts[2][s] + parts[3][s];
  }
}

GRADCOMP_LEVEL bool decode_row(const std::uint8_t* begin, const std::uint8_t** from,
                               const ClassTables& tables, std::uint32_t* states, std::size_t lanes,
                               Contexts& contexts, std::int8_t* levels, std::size_t n) {
  const Words words;
  Table of[kTopMagnitude + 1];
  for (unsigned m = 0; m <= kTopMagnitude; ++m) of[m] = load_table(tables.of[m]);
  Vector parts[kParts];
  load_states(states, parts);
  Contexts now = contexts;
  Vector row = set1_epi32(now.row);
  const std::uint8_t* next = *from;
  std::size_t at = 0;
  // With larger registers, the condition is constant and the compiler drops the loop for kFewLanes.
  const bool in_vectors = lanes == kRansLanes || (lanes == kFewLanes && kFloats == kFewLanes);
  for (; in_vectors && at + kGroup <= n && next >= begin; at += kGroup) {
    Vector means[kParts];
    Vector magnitudes[kParts];
    Vector found[kParts];
    load_means(now, at, means);
    if (kFloats != kFewLanes || lanes == kRansLanes) {
      for (std::size_t k = kParts; k-- > 0;) {
        const Vector classes = classes_of(halves_of(means[k], row));
        parts[k] = pop_class(parts[k], classes, of, words, &next, found + k, magnitudes + k);
      }
    } else {
      for (std::size_t k = 0; k < kParts; ++k) {
        const Vector classes = classes_of(halves_of(means[k], row));
        parts[0] = pop_class(parts[0], classes, of, words, &next, found + k, magnitudes + k);
      }
    }
    store_bytes(reinterpret_cast<std::uint8_t*>(levels + at), found);
    row = note(now, at, means, row, magnitudes);
  }
  now.row = static_cast<std::int32_t>(row[0]);
  store_states(states, parts);
  for (; at < n && next >= begin; at += kGroup) {
    decode_group(&next, tables, states, lanes, at, n - at < kGroup ? n - at : kGroup, now,
                 levels + at);
  }
  contexts = now;
  *from = next;
  return next >= begin;
}
