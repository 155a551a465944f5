// Levels of quantizers, and sums. No include guard: each level of instructions includes this file
// inside its namespace, after its vectors.

#include "kernels/sum_loops.hpp"

GRADCOMP_LEVEL double level_error(const float* x, const std::uint8_t* symbols, std::size_t n,
                                  float inverse, float bias) {
  const Words top = broadcast(std::uint32_t{kTopMagnitude});
  Sums sums;
  sums.clear();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t part = 0; part < 16 / kWidth; ++part) {
      const std::size_t at = i + part * kWidth;
      const Floats size = absolute(load(x + at)) * inverse;
      const Words symbol = load_bytes(symbols + at) & (std::uint32_t{kClassSymbols} - 1);
      const Words found = (symbol + 1) >> 1;
      const Words rounded = max(truncate(size + bias), top);
      const Floats off = size - to_floats(select(greater(found, top - 1), rounded, found));
      sums.add(part, off * off);
    }
  }
  PartialSums all;
  sums.store_to(&all);
  for (; i < n; ++i) {
    const float squared = squared_level_error(x[i], symbols[i], inverse, bias);
    all.add(i, static_cast<double>(squared));
  }
  return all.total();
}

GRADCOMP_LEVEL void quantize_uniform(const float* x, float scale, float top,
                                     const std::uint32_t* noise, std::uint8_t* symbols,
                                     std::size_t n) {
  const Floats most = broadcast(top);
  const Floats middle = broadcast(0.5f * top);
  std::size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    Floats at = min(max(scale * load(x + i) + middle, Floats{}), most);
    if (noise == nullptr) {
      store_bytes(symbols + i, nearest(at));
    } else {
      at += to_floats(load(noise + i) >> 8) * 0x1p-24f;
      store_bytes(symbols + i, truncate(min(at, most)));
    }
  }
  kScalarKernels.quantize_uniform(x + i, scale, top, noise == nullptr ? nullptr : noise + i,
                                  symbols + i, n - i);
}

// Few levels per sign, up to kWidth: compares with every bound.
template <std::size_t kBounds>
struct FewLevels {
  Floats positive;
  Floats bounds[kBounds + 1];

  GRADCOMP_LEVEL void start(const Centroids& c) {
    positive = load(c.positive);
    for (std::size_t k = 0; k < kBounds; ++k) bounds[k] = broadcast(c.bounds[k]);
  }

  GRADCOMP_LEVEL Words level(Floats magnitude) const {
    Words level{};
    for (std::size_t k = 0; k < kBounds; ++k) level = add_one(greater(magnitude, bounds[k]), level);
    return level;
  }

  GRADCOMP_LEVEL Floats centroid(Words level) const { return pick(positive, level); }
};

template <typename Levels, bool kWithEnergy>
GRADCOMP_LEVEL inline CentroidSums quantize_run(const float* x, float scale, const Centroids& c,
                                                std::uint8_t* symbols, std::size_t n) {
  Levels levels;
  levels.start(c);
  const Words flip_positive = broadcast(c.half);
  const Words flip_negative = broadcast(c.half - 1);
  Sums dots, energies;
  dots.clear();
  energies.clear();
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t part = 0; part < 16 / kWidth; ++part) {
      const std::size_t at = i + part * kWidth;
      const Floats v = load(x + at);
      const Floats size = absolute(v);
      const Words level = levels.level(size * scale);
      const Floats centroid = levels.centroid(level);
      store_bytes(symbols + at, level ^ select(sign_bit(v), flip_negative, flip_positive));
      dots.add(part, size * centroid);
      if (kWithEnergy) energies.add(part, centroid * centroid);
    }
  }
  PartialSums dot, energy;
  dots.store_to(&dot);
  energies.store_to(&energy);
  for (; i < n; ++i) {
    // i % 16 starts at 0: a run of one is element i of the sums.
    const CentroidSums one =
        kScalarKernels.quantize_centroids(x + i, scale, c, kWithEnergy, symbols + i, 1);
    dot.add(i, one.dot);
    energy.add(i, one.energy);
  }
  return {dot.total(), energy.total()};
}

template <typename Levels>
GRADCOMP_LEVEL inline CentroidSums quantize_with(const float* x, float scale, const Centroids& c,
                                                 bool with_energy, std::uint8_t* symbols,
                                                 std::size_t n) {
  return with_energy ? quantize_run<Levels, true>(x, scale, c, symbols, n)
                     : quantize_run<Levels, false>(x, scale, c, symbols, n);
}

GRADCOMP_LEVEL void look_up(const std::uint8_t* symbols, const float* table, unsigned bits,
                            float* y, std::size_t n) {
  std::size_t i = 0;
  if (__builtin_expect(bits <= 4, 1)) {  // most tables are small
    Table16 few;
    few.load_from(table, std::size_t{1} << bits);
    for (; i + kWidth <= n; i += kWidth) store(y + i, few[load_bytes(symbols + i)]);
  } else {
    for (; i + kWidth <= n; i += kWidth) store(y + i, gather(table, load_bytes(symbols + i)));
  }
  kScalarKernels.look_up(symbols + i, table, bits, y + i, n - i);
}

// See Dynamic8Lines; Lines has the same members, or vectors of each number.
template <typename Lines>
struct Dynamic8Levels {
  Lines lines;

  GRADCOMP_LEVEL Floats line(int k, Floats x) const {
    return multiply_add(x, lines.slopes[k], lines.intercepts[k]);
  }

  GRADCOMP_LEVEL Floats lower(int k, Floats x) const { return min(line(k, x), line(k + 1, x)); }

  // Levels of magnitudes, in units of 2^-16.
  GRADCOMP_LEVEL Words fixed(Floats x) const {
    static_assert(Dynamic8Lines::kFirstLarge == 7 && Dynamic8Lines::kTop == 13, "as unrolled here");
    Floats least = min(min(lower(7, x), lower(9, x)), lower(11, x));
    if (any(greater(broadcast(Dynamic8Lines::kLeastLarge), least))) {
      const Floats low = min(min(lower(0, x), lower(2, x)), lower(4, x));
      least = min(least, min(low, line(6, x)));
    }
    return truncate(max(least, line(13, x)));
  }
};
