// Loops of CodingKernels, shared by AVX2 and AVX-512. No include guard: each level includes this
// file inside its own namespace, after the header of its registers (kernels/registers.hpp) and
// coding/contexts_loops.hpp, with
//   Words          put() writes words of marked states, and fill() reads words into them,
//   Table          kClasses numbers, which load_table() loads and look_up() looks up,
//   Thresholds     thresholds of a DeadZone, for threshold_of(),
//   sum_of()       two sums of 64 bits of a register's numbers, which fit bytes, and
//   store_bytes()  stores the lowest bytes of the numbers in kParts registers.

constexpr std::size_t kParts = kRansLanes / kFloats;  // registers of the states
// The other number of states that are in registers: in one, where it has as many numbers.
constexpr std::size_t kFewLanes = 8;
constexpr std::size_t kStepBytes = kRansWord * kRansLanes;

GRADCOMP_LEVEL inline void load_states(const std::uint32_t* states, Vector* parts) {
  for (std::size_t k = 0; k < kParts; ++k) parts[k] = load_vector(states + kFloats * k);
}
GRADCOMP_LEVEL inline void store_states(std::uint32_t* states, const Vector* parts) {
  for (std::size_t k = 0; k < kParts; ++k) store_vector(states + kFloats * k, parts[k]);
}

// The first `count` numbers of a register, which may be none or more than all.
GRADCOMP_LEVEL inline Mask32 first_numbers(std::ptrdiff_t count) {
  static constexpr std::int32_t kPlaces[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};
  static_assert(kFloats <= 16, "a place for each number");
  return cmpgt_epi32(set1_epi32(static_cast<int>(count)), load_vector(kPlaces));
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

// As rans_encode_step() for one register of states; without kWhole only of those that are `used`.
template <bool kWhole>
GRADCOMP_LEVEL inline Vector push(Vector state, const std::uint8_t* symbols, Mask32 used,
                                  const RansEncodeTable& table, const Words& words,
                                  std::uint8_t** to) {
  // Even and odd states separately, because table entries and products have 64 bits.
  const Vector even = load_every_second(table, symbols);
  const Vector odd = load_every_second(table, symbols + 1);
  const Vector field = set1_epi32(kRansTotal - 1);
  const Vector packed = blend_odd_epi32(srli_epi64<32>(even), odd);
  const Vector complement = srli_epi32<kRansBits>(packed) & field;
  Mask32 full = cmpgt_epi32(add_epi32(srli_epi32<17>(state), complement), field);
  if (!kWhole) full = static_cast<Mask32>(full & used);
  words.put(full, state, to);
  const Vector before = state;
  state = blend_epi32(full, state, srli_epi32<16>(state));
  const Vector even_product = srli_epi64<31>(mul_epu32(state, even));
  const Vector odd_product = srli_epi64<31>(mul_epu32(srli_epi64<32>(state), odd));
  const Vector even_part = mul_epu32(srlv_epi64(even_product, srli_epi64<60>(even)), complement);
  const Vector odd_part =
      mul_epu32(srlv_epi64(odd_product, srli_epi64<60>(odd)), srli_epi64<32>(complement));
  const Vector part = blend_odd_epi32(even_part, slli_epi64<32>(odd_part));
  const Vector after = add_epi32(add_epi32(state, packed & field), part);
  return kWhole ? after : blend_epi32(used, before, after);
}

// As CodingKernels::rans_encode, with kRegisters of states.
template <std::size_t kRegisters>
GRADCOMP_LEVEL std::size_t rans_encode_in_registers(const std::uint8_t* symbols, std::size_t n,
                                                    const RansEncodeTable& table,
                                                    std::uint32_t* states, std::uint8_t** to,
                                                    const std::uint8_t* end) {
  constexpr std::size_t kLanes = kRegisters * kFloats;
  constexpr std::size_t kMost = kRansWord * kLanes;
  const Words words;
  Vector parts[kRegisters];
  for (std::size_t k = 0; k < kRegisters; ++k) parts[k] = load_vector(states + kFloats * k);
  std::uint8_t* at = *to;
  const std::size_t rest = n % kLanes;
  if (rest != 0 && static_cast<std::size_t>(end - at) >= kMost) {
    n -= rest;
    std::uint8_t step[kLanes] = {};
    std::memcpy(step, symbols + n, rest);
    for (std::size_t k = 0; k < kRegisters; ++k) {
      const Mask32 used = first_numbers(static_cast<std::ptrdiff_t>(rest) -
                                        static_cast<std::ptrdiff_t>(kFloats * k));
      parts[k] = push<false>(parts[k], step + kFloats * k, used, table, words, &at);
    }
  }
  for (; n != 0 && n % kLanes == 0 && static_cast<std::size_t>(end - at) >= kMost; n -= kLanes) {
    const std::uint8_t* const step = symbols + n - kLanes;
    for (std::size_t k = 0; k < kRegisters; ++k) {
      parts[k] = push<true>(parts[k], step + kFloats * k, Mask32{}, table, words, &at);
    }
  }
  for (std::size_t k = 0; k < kRegisters; ++k) store_vector(states + kFloats * k, parts[k]);
  *to = at;
  return n;
}

GRADCOMP_LEVEL std::size_t rans_encode(const std::uint8_t* symbols, std::size_t n,
                                       std::size_t lanes, const RansEncodeTable& table,
                                       std::uint32_t* states, std::uint8_t** to,
                                       const std::uint8_t* end) {
  if (lanes == kRansLanes) {
    return rans_encode_in_registers<kParts>(symbols, n, table, states, to, end);
  }
  if (lanes == kFewLanes && kFloats == kFewLanes) {
    return rans_encode_in_registers<1>(symbols, n, table, states, to, end);
  }
  return kScalarCodingKernels.rans_encode(symbols, n, lanes, table, states, to, end);
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

// As take_note(). Returns the new mean of the row, in all elements. kWhole: the group has kGroup
// elements, not `count`; then the others have magnitude 0.
template <bool kWhole>
GRADCOMP_LEVEL inline Vector note(const Contexts& contexts, std::size_t at, std::size_t count,
                                  const Vector* means, Vector row, const Vector* magnitudes) {
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
  const Vector mean =
      kWhole ? slli_epi32<kMeanBits - 5>(broadcastd_epi32(sum))
             : set1_epi32((_mm_cvtsi128_si32(sum) << kMeanBits) / static_cast<std::int32_t>(count));
  return add_epi32(row, srai_epi32<kRowShift>(sub_epi32(mean, row)));
}

// As take_note_of_zeros(). Returns the new mean of the row, in all elements.
GRADCOMP_LEVEL inline Vector note_zeros(const Contexts& contexts, std::size_t at, Vector row) {
  const __m128i shift = _mm_cvtsi32_si128(static_cast<int>(contexts.shift));
  Vector means[kParts];
  load_means(contexts, at, means);
  const Vector zero = {};
  for (Vector& mean : means) mean = add_epi32(mean, sra_epi32(sub_epi32(zero, mean), shift));
  for (std::size_t k = 0; k < kParts; k += 2) {
    store_vector(contexts.columns + at + kFloats * k,
                 order_epi64(packs_epi32(means[k], means[k + 1])));
  }
  return add_epi32(row, srai_epi32<kRowShift>(sub_epi32(zero, row)));
}

// As classify_group(), with the mean of the row in all elements of a register. kWhole: count is
// kGroup.
template <bool kWhole>
GRADCOMP_LEVEL inline Vector classify_in_registers(const float* x, std::size_t at,
                                                   std::size_t count, const DeadZone& zone,
                                                   const Thresholds& thresholds,
                                                   const Contexts& contexts, Vector row,
                                                   std::uint8_t* symbols) {
  Vector means[kParts];
  Vector magnitudes[kParts];
  Vector found[kParts];
  load_means(contexts, at, means);
  for (std::size_t k = 0; k < kParts; ++k) {
    magnitudes[k] = quantize(load_floats(x + kFloats * k), halves_of(means[k], row), zone,
                             thresholds, found + k);
  }
  store_bytes(symbols, found);
  return note<kWhole>(contexts, at, count, means, row, magnitudes);
}

GRADCOMP_LEVEL void classify(const float* x, std::size_t n, const DeadZone& zone,
                             Contexts& contexts, std::uint8_t* symbols) {
  const Thresholds thresholds(zone);
  Vector row = set1_epi32(contexts.row);
  std::size_t at = 0;
  for (; at + kGroup <= n; at += kGroup) {
    row = classify_in_registers<true>(x + at, at, kGroup, zone, thresholds, contexts, row,
                                      symbols + at);
  }
  if (at < n) {
    // Elements of 0 are in the dead zone.
    float padded[kGroup] = {};
    std::uint8_t found[kGroup];
    std::memcpy(padded, x + at, sizeof(float) * (n - at));
    row = classify_in_registers<false>(padded, at, n - at, zone, thresholds, contexts, row, found);
    std::memcpy(symbols + at, found, n - at);
  }
  contexts.row = static_cast<std::int32_t>(row[0]);
}

// As decode_group() for one register of states; without kWhole only for those that are `used`: the
// others get level 0.
template <bool kWhole>
GRADCOMP_LEVEL inline Vector pop_class(Vector state, Vector classes, Mask32 used,
                                       const Table* tables, const Words& words,
                                       const std::uint8_t** from, Vector* level, Vector* found) {
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
  const Vector before = state;
  state = add_epi32(mullo_epi32(frequency, srli_epi32<kRansBits>(state)), offset);
  *found = magnitude;
  *level = negate_epi32(negative, magnitude);
  if (!kWhole) {
    // A state that is not used is valid, so that no word is read into it.
    state = blend_epi32(used, before, state);
    *found = keep_epi32(used, *found);
    *level = keep_epi32(used, *level);
  }
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

// As decode_group(), with states in kRegisters and the mean of the row in all elements of a
// register. kWhole: count is kGroup.
template <std::size_t kRegisters, bool kWhole>
GRADCOMP_LEVEL inline Vector decode_in_registers(const std::uint8_t** from, const Table* tables,
                                                 const Words& words, Vector* states, std::size_t at,
                                                 std::size_t count, const Contexts& contexts,
                                                 Vector row, std::int8_t* levels) {
  Vector means[kParts];
  Vector magnitudes[kParts];
  Vector found[kParts];
  load_means(contexts, at, means);
  const auto pop = [&](std::size_t k) GRADCOMP_LEVEL {
    const Vector classes = classes_of(halves_of(means[k], row));
    const Mask32 used = first_numbers(static_cast<std::ptrdiff_t>(count) -
                                      static_cast<std::ptrdiff_t>(kFloats * k));
    Vector* const state = states + k % kRegisters;
    *state =
        pop_class<kWhole>(*state, classes, used, tables, words, from, found + k, magnitudes + k);
  };
  // A step of all states begins with the last ones.
  for (std::size_t step = 0; step < kParts; step += kRegisters) {
    for (std::size_t k = kRegisters; k-- > 0;) pop(step + k);
  }
  std::uint8_t bytes[kGroup];
  auto* const to = reinterpret_cast<std::uint8_t*>(levels);
  store_bytes(kWhole ? to : bytes, found);
  if (!kWhole) std::memcpy(to, bytes, count);
  return note<kWhole>(contexts, at, count, means, row, magnitudes);
}

// As CodingKernels::decode_row, with kRegisters of states.
template <std::size_t kRegisters>
GRADCOMP_LEVEL bool decode_row_in_registers(const std::uint8_t* begin, const std::uint8_t** from,
                                            const ClassTables& tables, std::uint32_t* states,
                                            const std::uint8_t* flags, Contexts& contexts,
                                            std::int8_t* levels, std::size_t n) {
  const Words words;
  Table of[kTopMagnitude + 1];
  for (unsigned m = 0; m <= kTopMagnitude; ++m) of[m] = load_table(tables.of[m]);
  Vector parts[kRegisters];
  for (std::size_t k = 0; k < kRegisters; ++k) parts[k] = load_vector(states + kFloats * k);
  Vector row = set1_epi32(contexts.row);
  const std::uint8_t* next = *from;
  std::size_t at = 0;
  const auto skipped = [&] { return flags != nullptr && flags[at / kGroup] == 0; };
  for (; at + kGroup <= n && next >= begin; at += kGroup) {
    if (skipped()) {
      std::memset(levels + at, 0, kGroup);
      row = note_zeros(contexts, at, row);
      continue;
    }
    row = decode_in_registers<kRegisters, true>(&next, of, words, parts, at, kGroup, contexts, row,
                                                levels + at);
  }
  if (at < n && next >= begin && skipped()) {
    std::memset(levels + at, 0, n - at);
    row = note_zeros(contexts, at, row);
  } else if (at < n && next >= begin) {
    row = decode_in_registers<kRegisters, false>(&next, of, words, parts, at, n - at, contexts, row,
                                                 levels + at);
  }
  contexts.row = static_cast<std::int32_t>(row[0]);
  for (std::size_t k = 0; k < kRegisters; ++k) store_vector(states + kFloats * k, parts[k]);
  *from = next;
  return next >= begin;
}

GRADCOMP_LEVEL bool decode_row(const std::uint8_t* begin, const std::uint8_t** from,
                               const ClassTables& tables, std::uint32_t* states, std::size_t lanes,
                               const std::uint8_t* flags, Contexts& contexts, std::int8_t* levels,
                               std::size_t n) {
  if (lanes == kRansLanes) {
    return decode_row_in_registers<kParts>(begin, from, tables, states, flags, contexts, levels, n);
  }
  if (lanes == kFewLanes && kFloats == kFewLanes) {
    return decode_row_in_registers<1>(begin, from, tables, states, flags, contexts, levels, n);
  }
  return decode_groups_of_row(begin, from, tables, states, lanes, flags, contexts, levels, n);
}
