// Philox random words. No include guard: each level includes this file inside its namespace, after
// its vectors.

// Words of kDoubles blocks in the lower halves of the 64-bit lanes. In between, the upper halves
// are undefined: the multiplier reads only the lower ones.
struct PhiloxLanes {
  Longs c0, c1, c2, c3;

  GRADCOMP_LEVEL void start(Longs block, Longs block_upper, std::uint32_t use) {
    c0 = block;
    c1 = block_upper;
    c2 = Longs{} + use;
    c3 = Longs{};
  }

  GRADCOMP_LEVEL void step(Longs key0, Longs key1) {
    const Longs product0 = multiply(c0, 0xD2511F53u);
    const Longs product1 = multiply(c2, 0xCD9E8D57u);
    c0 = exclusive_or(swap_halves(product1), c1, key0);
    c2 = exclusive_or(swap_halves(product0), c3, key1);
    c1 = product1;
    c3 = product0;
  }
};

// Philox blocks of one stream and use.
struct Philox {
  Longs keys[20];  // of ten rounds
  std::uint32_t use;

  GRADCOMP_LEVEL void start(std::uint64_t stream, std::uint32_t of_use) {
    auto key0 = static_cast<std::uint32_t>(stream);
    auto key1 = static_cast<std::uint32_t>(stream >> 32);
    for (int round = 0; round < 10; ++round) {
      keys[2 * round] = Longs{} + key0;
      keys[2 * round + 1] = Longs{} + key1;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    use = of_use;
  }

  // The 2 * kSets vectors of words of kSets * kDoubles blocks. While one set waits for its
  // multiplications, the others continue. kShort: all blocks are below 2^32, which saves the
  // constant part of the first two rounds.
  template <std::size_t kSets, bool kShort>
  GRADCOMP_LEVEL void words(std::uint64_t block, Words* out) const {
    PhiloxLanes sets[kSets];
    for (std::size_t j = 0; j < kSets; ++j) {
      const Longs blocks = count_from(block + j * kDoubles);
      sets[j].start(blocks, kShort ? Longs{} : blocks >> 32, use);
    }
    for (int round = 0; round < 10; ++round) {
      for (std::size_t j = 0; j < kSets; ++j) sets[j].step(keys[2 * round], keys[2 * round + 1]);
    }
    for (std::size_t j = 0; j < kSets; ++j) {
      interleave(sets[j].c0, sets[j].c1, sets[j].c2, sets[j].c3, out + 2 * j);
    }
  }
};

// Writes a multiple of 2 * kPhiloxSets vectors, and returns the number of words.
GRADCOMP_LEVEL inline std::size_t philox_words(std::uint64_t stream, std::uint32_t use,
                                               std::uint64_t first_block, std::uint32_t* out,
                                               std::size_t n) {
  constexpr std::size_t kStep = 2 * kPhiloxSets * kWidth;
  Philox philox;
  philox.start(stream, use);
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    Words words[2 * kPhiloxSets];
    philox.words<kPhiloxSets, false>(first_block + i / 4, words);
    for (std::size_t j = 0; j < 2 * kPhiloxSets; ++j) store(out + i + j * kWidth, words[j]);
  }
  return i;
}

template <std::size_t kSets>
GRADCOMP_LEVEL inline void store_rounding_words(const Philox& philox, std::uint64_t first,
                                                std::uint32_t* out) {
  Words words[2 * kSets];
  philox.words<kSets, true>(first / 8, words);
  for (std::size_t j = 0; j < 2 * kSets; ++j) {
    const std::size_t at = j * kWidth;
    std::uint32_t* const to = out + 2 * (at - at % 16) + at % 16;
    store(to, words[j]);
    store(to + 16, rotate_by_16(words[j]));
  }
}

GRADCOMP_LEVEL void rounding_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                                   std::size_t n, const float* ahead) {
  constexpr std::size_t kStep = 4 * kPhiloxSets * kWidth;
  Philox philox;
  philox.start(stream, kRoundingBlocks);
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    prefetch(ahead, i, kStep);
    store_rounding_words<kPhiloxSets>(philox, first + i, out + i);
  }
  for (; i < n; i += kRoundingStep) {
    prefetch(ahead, i, kRoundingStep);
    store_rounding_words<kRoundingStep / (4 * kWidth)>(philox, first + i, out + i);
  }
}

GRADCOMP_LEVEL void random_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                                 std::size_t n) {
  const std::size_t done = philox_words(stream, kWordBlocks, first / 4, out, n);
  kScalarKernels.random_words(stream, first + done, out + done, n - done);
}

GRADCOMP_LEVEL void draw_words(std::uint64_t stream, std::uint64_t first, std::uint32_t* out,
                               std::size_t n) {
  const std::size_t done = philox_words(stream, kDrawBlocks, first / 2, out, n);
  kScalarKernels.draw_words(stream, first + done / 2, out + done, n - done);
}
