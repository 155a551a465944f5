// What all levels share of contexts. No include guard: each level includes this file inside its own
// namespace, with GRADCOMP_LEVEL, the functions' attribute.

// The classes of the group of columns from `at` on.
GRADCOMP_LEVEL inline void find_classes(const Contexts& contexts, std::size_t at,
                                        std::uint8_t* classes) {
  const std::int16_t* const means = contexts.columns + at;
  const std::int32_t row = contexts.row + kMeanFloor;
  constexpr std::int32_t kTop = static_cast<std::int32_t>(kClasses) - 1;
  std::int32_t found[kGroup];
  for (std::size_t k = 0; k < kGroup; ++k) {
    const auto mean = static_cast<float>(means[k] + row);
    std::int32_t bits;
    std::memcpy(&bits, &mean, sizeof bits);
    const std::int32_t halves = (bits >> 22) - (2 * 127 + kFirstClass);
    const std::int32_t capped = halves > kTop ? kTop : halves;
    found[k] = capped < 0 ? 0 : capped;
  }
  for (std::size_t k = 0; k < kGroup; ++k) classes[k] = static_cast<std::uint8_t>(found[k]);
}

// Takes note of a group's magnitudes, of which the row has `count`; the others are 0.
GRADCOMP_LEVEL inline void take_note(Contexts& contexts, std::size_t at, std::size_t count,
                                     const std::uint8_t* magnitudes) {
  std::int16_t* const means = contexts.columns + at;
  std::int32_t sum = 0;
  for (std::size_t k = 0; k < kGroup; ++k) sum += magnitudes[k];
  for (std::size_t k = 0; k < kGroup; ++k) {
    const int difference = (magnitudes[k] << kMeanBits) - means[k];
    means[k] = static_cast<std::int16_t>(means[k] + (difference >> contexts.shift));
  }
  const std::int32_t mean = (sum << kMeanBits) / static_cast<std::int32_t>(count);
  contexts.row += (mean - contexts.row) >> kRowShift;
}

// As CodingKernels::classify, for one group of `count` elements, of any level.
GRADCOMP_LEVEL inline void classify_group(const float* x, std::size_t at, std::size_t count,
                                          const DeadZone& zone, Contexts& contexts,
                                          std::uint8_t* symbols) {
  std::uint8_t classes[kGroup];
  std::uint8_t magnitudes[kGroup] = {};
  find_classes(contexts, at, classes);
  for (std::size_t k = 0; k < count; ++k) {
    const float size = std::fabs(x[k]) * zone.inverse;
    const int rounded = static_cast<int>(size + zone.bias);
    int magnitude = rounded < 1 ? 1 : rounded;
    if (magnitude > static_cast<int>(kTopMagnitude)) magnitude = kTopMagnitude;
    if (size < zone.threshold[classes[k]]) magnitude = 0;
    const int negative = std::signbit(x[k]) ? 1 : 0;
    magnitudes[k] = static_cast<std::uint8_t>(magnitude);
    const int symbol = magnitude == 0 ? 0 : 2 * magnitude - 1 + negative;
    symbols[k] = static_cast<std::uint8_t>(classes[k] * static_cast<int>(kClassSymbols) + symbol);
  }
  take_note(contexts, at, count, magnitudes);
}

// As CodingKernels::decode_row, for one group of `count` elements and any number of states: element
// k has the state k % lanes.
GRADCOMP_LEVEL inline void decode_group(const std::uint8_t** from, const ClassTables& tables,
                                        std::uint32_t* states, std::size_t lanes, std::size_t at,
                                        std::size_t count, Contexts& contexts,
                                        std::int8_t* levels) {
  std::uint8_t classes[kGroup];
  std::uint8_t magnitudes[kGroup] = {};
  find_classes(contexts, at, classes);
  for (std::size_t begin = 0; begin < count; begin += lanes) {
    const std::size_t end = begin + lanes < count ? begin + lanes : count;
    for (std::size_t k = end; k-- > begin;) {
      std::uint32_t state = states[k - begin];
      const std::uint32_t slot = state & (kRansTotal - 1);
      unsigned magnitude = 0;
      while (magnitude < kTopMagnitude && slot >= tables.of[magnitude + 1][classes[k]] >> 16) {
        ++magnitude;
      }
      const std::uint32_t interval = tables.of[magnitude][classes[k]];
      const std::uint32_t frequency = interval & 0xFFFFu;
      std::uint32_t offset = slot - (interval >> 16);
      const bool negative = offset >= frequency;
      if (negative) offset -= frequency;
      state = frequency * (state >> kRansBits) + offset;
      const unsigned empty = state < kRansLowest ? 1 : 0;
      const std::uint32_t word = load<std::uint16_t>(*from - kRansWord);
      *from -= kRansWord * empty;
      states[k - begin] = state << 16 * empty | (word & ~(empty - 1));
      magnitudes[k] = static_cast<std::uint8_t>(magnitude);
      const int level = static_cast<int>(magnitude);
      levels[k] = static_cast<std::int8_t>(negative ? -level : level);
    }
  }
  take_note(contexts, at, count, magnitudes);
}
