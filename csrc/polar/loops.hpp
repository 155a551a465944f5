// Loops of PolarKernels, shared by AVX2 and AVX-512. No include guard: each level includes this
// file inside its own namespace, after the header of its registers (kernels/registers.hpp), with
//   repeat()    16 bytes, repeated to fill a register,
//   look_up()   elements of a table of 64 bytes, in four registers of repeat(), and
//   flip()      floats with the other sign where a bit is set, the lowest bit for the first float.

constexpr std::size_t kParts = kLanes / kBytes;  // registers of a row
constexpr std::size_t kAhead = 1024;  // floats; hardware prefetching stops at pages' ends

// Saturating sums are at least -128.
GRADCOMP_LEVEL inline Vector limited(Vector sum) { return max_epi8(sum, set1_epi8(-127)); }

// Bits of a part of a row, and the inverse, which adds them to the row's word.
inline Bits part_of(const std::uint64_t* word, std::size_t part) {
  Bits bits;
  std::memcpy(&bits, reinterpret_cast<const char*>(word) + sizeof bits * part, sizeof bits);
  return bits;
}
inline void join(std::uint64_t* word, std::size_t part, Bits bits) {
  *word |= std::uint64_t{bits} << kBytes * part;
}

GRADCOMP_LEVEL inline Vector levels_of(const float* x, Floats scale, Floats* squares) {
  const Floats scaled = load_floats(x) * scale;
  *squares += scaled * scaled;
  // Values far below the range become the least integer, and NaN becomes 127.
  return cvtps_epi32(min_ps(scaled, set1_ps(127.0f)));
}

GRADCOMP_LEVEL float quantize(const float* x, const std::uint64_t* mask, float scale,
                              std::int8_t* llr, std::size_t n) {
  constexpr std::size_t kSums = 16 / kFloats;
  const Floats factor = set1_ps(scale);
  Floats squares[kSums] = {};
  std::size_t i = 0;
  for (; i + kBytes <= n; i += kBytes) {
    prefetch(x, i + kAhead, kBytes);
    Vector levels[4];
    for (std::size_t k = 0; k < 4; ++k) {
      levels[k] = levels_of(x + i + kFloats * k, factor, squares + k % kSums);
    }
    const Vector low = packs_epi32(levels[0], levels[1]);
    const Vector high = packs_epi32(levels[2], levels[3]);
    const Bits flipped = part_of(mask + i / kLanes, i % kLanes / kBytes);
    store_vector(llr + i,
                 negate_epi8(to_mask(flipped), limited(order_epi32(packs_epi16(low, high)))));
  }
  float partial[16];
  for (std::size_t k = 0; k < kSums; ++k) store_floats(partial + kFloats * k, squares[k]);
  return finish_quantize(x, mask, scale, llr, i, n, partial);
}

GRADCOMP_LEVEL void check(const std::int8_t* llr, std::int8_t* out, std::size_t count) {
  for (std::size_t i = 0; i < kLanes * count; i += kBytes) {
    const Vector a = load_vector(llr + i);
    const Vector b = load_vector(llr + kLanes * count + i);
    store_vector(out + i, max_epi8(min_epi8(a, b), sub_epi8(Vector{}, max_epi8(a, b))));
  }
}

GRADCOMP_LEVEL void add(const std::int8_t* llr, const std::uint64_t* bits, std::int8_t* out,
                        std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t at = kLanes * i + kBytes * part;
      const Vector a = negate_epi8(to_mask(part_of(bits + i, part)), load_vector(llr + at));
      const Vector b = load_vector(llr + kLanes * count + at);
      store_vector(out + at, limited(adds_epi8(b, a)));
    }
  }
}

GRADCOMP_LEVEL void add_frozen(const std::int8_t* llr, std::int8_t* out, std::size_t count) {
  for (std::size_t i = 0; i < kLanes * count; i += kBytes) {
    const Vector b = load_vector(llr + kLanes * count + i);
    store_vector(out + i, limited(adds_epi8(load_vector(llr + i), b)));
  }
}

GRADCOMP_LEVEL void decide(const std::int8_t* llr, std::uint64_t* bits, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t word = 0;
    for (std::size_t part = 0; part < kParts; ++part) {
      join(&word, part, movemask_epi8(load_vector(llr + kLanes * i + kBytes * part)));
    }
    bits[i] = word;
  }
}

GRADCOMP_LEVEL void decide_repetition(const std::int8_t* llr, std::uint64_t* bits,
                                      std::size_t count) {
  Vector sums[2 * kParts] = {};
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < 2 * kParts; ++k) {
      const Half half = load_half(llr + kLanes * i + sizeof(Half) * k);
      sums[k] = add_epi16(sums[k], cvtepi8_epi16(half));
    }
  }
  std::uint64_t word = 0;
  for (std::size_t part = 0; part < kParts; ++part) {
    join(&word, part, bits_of(signs_epi16(sums[2 * part], sums[2 * part + 1])));
  }
  for (std::size_t i = 0; i < count; ++i) bits[i] = word;
}

GRADCOMP_LEVEL void decide_parity(const std::int8_t* llr, std::uint64_t* bits, std::size_t count) {
  Vector least[kParts];
  Vector place[kParts] = {};
  for (Vector& magnitudes : least) magnitudes = set1_epi8(127);
  std::uint64_t odd = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t word = 0;
    for (std::size_t part = 0; part < kParts; ++part) {
      const Vector row = load_vector(llr + kLanes * i + kBytes * part);
      const Vector magnitude = abs_epi8(row);
      const Mask8 less = cmpgt_epi8(least[part], magnitude);
      least[part] = min_epi8(least[part], magnitude);
      place[part] = blend_epi8(less, place[part], set1_epi8(static_cast<int>(i)));
      join(&word, part, movemask_epi8(row));
    }
    bits[i] = word;
    odd ^= word;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t least_reliable = 0;
    for (std::size_t part = 0; part < kParts; ++part) {
      join(&least_reliable, part, bits_of(cmpeq_epi8(place[part], set1_epi8(static_cast<int>(i)))));
    }
    bits[i] ^= odd & least_reliable;
  }
}

GRADCOMP_LEVEL void xor_words(std::uint64_t* a, const std::uint64_t* b, std::size_t count) {
  constexpr std::size_t kWords = kBytes / sizeof(std::uint64_t);
  std::size_t i = 0;
  for (; i + kWords <= count; i += kWords) {
    store_vector(a + i, load_vector(a + i) ^ load_vector(b + i));
  }
  for (; i < count; ++i) a[i] ^= b[i];
}

GRADCOMP_LEVEL std::int32_t agreement(const std::int8_t* llr, const std::uint64_t* bits,
                                      std::size_t count) {
  Vector sums = Vector{};
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const Vector row = load_vector(llr + kLanes * i + kBytes * part);
      const Vector signed_llr = negate_epi8(to_mask(part_of(bits + i, part)), row);
      const Vector pairs = maddubs_epi16(set1_epi8(1), signed_llr);
      sums = add_epi32(sums, madd_epi16(pairs, set1_epi16(1)));
    }
  }
  return reduce_add_epi32(sums);
}

GRADCOMP_LEVEL void penalties(const std::int8_t* llr, const std::uint64_t* bits, std::int32_t* sums,
                              std::size_t count) {
  std::size_t i = 0;
  while (i < count) {
    Vector words[2 * kParts] = {};
    // Number of rows whose sums in 16 bits do not overflow.
    for (const std::size_t stop = std::min(count, i + 256); i < stop; ++i) {
      for (std::size_t part = 0; part < kParts; ++part) {
        const Vector row = load_vector(llr + kLanes * i + kBytes * part);
        const Vector most = max_epi8(negate_epi8(to_mask(~part_of(bits + i, part)), row), Vector{});
        Vector* const of_part = words + 2 * part;
        of_part[0] = add_epi16(of_part[0], cvtepu8_epi16(low_half(most)));
        of_part[1] = add_epi16(of_part[1], cvtepu8_epi16(high_half(most)));
      }
    }
    std::uint16_t found[kLanes];
    for (std::size_t k = 0; k < 2 * kParts; ++k) store_vector(found + kBytes / 2 * k, words[k]);
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += found[lane];
  }
}

GRADCOMP_LEVEL void move_llr(const std::uint8_t* from, std::int8_t* llr, std::size_t count) {
  for (std::size_t part = 0; part < kParts; ++part) {
    const Vector order = load_vector(from + kBytes * part);  // only the last 4 bits count
    for (std::size_t i = 0; i < count; ++i) {
      std::int8_t* const at = llr + kLanes * i + kBytes * part;
      store_vector(at, shuffle_epi8(load_vector(at), order));
    }
  }
}

GRADCOMP_LEVEL void move_bits(const std::uint8_t* from, std::uint64_t* bits, std::size_t count) {
  Vector order[kParts];
  for (std::size_t part = 0; part < kParts; ++part) order[part] = load_vector(from + kBytes * part);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t word = 0;
    for (std::size_t part = 0; part < kParts; ++part) {
      const Vector set = movm_epi8(to_mask(part_of(bits + i, part)));
      join(&word, part, movemask_epi8(shuffle_epi8(set, order[part])));
    }
    bits[i] = word;
  }
}

GRADCOMP_LEVEL inline Vector places_of(const float* x, Floats scale, Vector* largest) {
  const Vector bits = load_vector(x);
  const Vector magnitude = bits & set1_epi32(0x7FFFFFFF);
  *largest = max_epu32(*largest, magnitude);
  const Floats scaled = to_floats(magnitude) * scale;
  const Vector place = cvttps_epi32(min_ps(scaled, set1_ps(kLatticeTop)));
  return place ^ srai_epi32<31>(bits);
}

// Index of lattice_llr for each place.
GRADCOMP_LEVEL inline Vector folded(Vector places) {
  const Vector magnitude = places ^ srai_epi16<15>(places);
  const Vector last = (magnitude & set1_epi16(31)) | set1_epi16(32);
  return min_epu16(magnitude, last);
}

GRADCOMP_LEVEL std::uint32_t lattice_places(const float* x, const std::uint64_t* mask, float scale,
                                            const LatticeRule& rule, std::int16_t* places,
                                            std::int8_t* llr, std::size_t n) {
  const Floats factor = set1_ps(scale);
  Vector table[4];
  for (std::size_t k = 0; k < 4; ++k) table[k] = repeat(rule.llr + 16 * k);
  Vector largest = Vector{};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t at = i + kBytes * part;
      prefetch(x, at + kAhead, kBytes);
      Vector place[4];
      for (std::size_t k = 0; k < 4; ++k) {
        place[k] = places_of(x + at + kFloats * k, factor, &largest);
      }
      const Vector low = order_epi64(packs_epi32(place[0], place[1]));
      const Vector high = order_epi64(packs_epi32(place[2], place[3]));
      store_vector(places + at, low);
      store_vector(places + at + kBytes / 2, high);
      const Vector ratio = look_up(table, order_epi64(packus_epi16(folded(low), folded(high))));
      const Mask8 set = to_mask(part_of(mask + i / kLanes, part));
      const Mask8 flipped = signs_epi16(low, high) ^ set;
      store_vector(llr + at, negate_epi8(flipped, ratio));
    }
  }
  return finish_places(x + i, mask + i / kLanes, scale, rule, places + i, llr + i, n - i,
                       reduce_max_epu32(largest));
}

// Number of elements whose sums in 32 bits do not overflow.
constexpr std::size_t kLatticeRun = 2048;

GRADCOMP_LEVEL LatticeSums lattice_indices(const std::int16_t* places, const std::uint64_t* bits,
                                           const LatticeRule& rule, std::uint8_t* indices,
                                           std::size_t n) {
  const Vector same = set1_epi16(rule.same);
  const Vector others = set1_epi16(rule.other);
  std::int64_t product = 0;
  std::int64_t energy = 0;
  std::size_t i = 0;
  while (i + kLanes <= n) {
    Vector products = Vector{};
    Vector energies = Vector{};
    for (const std::size_t stop = i + kLatticeRun; i < stop && i + kLanes <= n; i += kLanes) {
      for (std::size_t part = 0; part < kParts; ++part) {
        Vector index[2];
        for (std::size_t half = 0; half < 2; ++half) {
          const std::size_t at = kBytes * part + kBytes / 2 * half;
          const Vector place = load_vector(places + i + at);
          const Mask16 set = to_mask16(bits[i / kLanes] >> at);
          const Mask16 other = set ^ signs_epi16(place);
          const Vector magnitude = place ^ srai_epi16<15>(place);
          const Vector pairs =
              srai_epi16<5>(add_epi16(magnitude, blend_epi16(other, same, others)));
          const Vector twice = add_epi16(slli_epi16<2>(pairs), sign_of(other));
          index[half] = max_epi16(decrement_epi16(other, slli_epi16<1>(pairs)), Vector{});
          const Vector centre = add_epi16(slli_epi16<1>(magnitude), set1_epi16(1));
          products = add_epi32(products, madd_epi16(centre, twice));
          energies = add_epi32(energies, madd_epi16(twice, twice));
        }
        store_vector(indices + i + kBytes * part, order_epi64(packus_epi16(index[0], index[1])));
      }
    }
    product += wide_sum(products);
    energy += wide_sum(energies);
  }
  const LatticeSums rest = finish_indices(places + i, bits + i / kLanes, rule, indices + i, n - i);
  return {product + rest.product, energy + rest.energy};
}

GRADCOMP_LEVEL void lattice_points(const std::uint8_t* indices, const std::uint64_t* bits,
                                   float scale, float* y, std::size_t n) {
  const Floats factor = set1_ps(scale);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t part = 0; part < kLanes; part += kFloats) {
      const Vector index = cvtepu8_epi32(load_quarter(indices + i + part));
      const Floats point = factor * (cvtepi32_ps(index) + set1_ps(0.5f));
      const Vector flipped = from_floats(point) ^ slli_epi32<31>(index);
      const auto set = static_cast<unsigned>(bits[i / kLanes] >> part);
      store_vector(y + i + part, flip(set, flipped));
    }
  }
  finish_points(indices + i, bits + i / kLanes, scale, y + i, n - i);
}
