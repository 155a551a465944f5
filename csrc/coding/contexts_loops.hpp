// Loops over contexts, shared by all levels. No include guard: each level includes this file inside
// its own namespace, with GRADCOMP_LEVEL as the functions' attribute.

// Half octave of class 0. As no mean is below 0, no sum of two lies below it, and all lie less than
// 32 above.
constexpr std::int32_t kLowestHalf = 2 * 127 + kFirstClass;

// The class of an element by the sum of both means and kMeanFloor.
GRADCOMP_LEVEL inline std::uint8_t class_of_sum(std::int32_t sum) {
  constexpr std::int32_t kTop = static_cast<std::int32_t>(kClasses) - 1;
  const auto value = static_cast<float>(sum);
  std::int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const std::int32_t halves = (bits >> 22) - kLowestHalf;
  const std::int32_t capped = halves > kTop ? kTop : halves;
  return static_cast<std::uint8_t>(capped < 0 ? 0 : capped);
}

// Classes of the group of columns from `at` on.
GRADCOMP_LEVEL inline void find_classes(const Contexts& contexts, std::size_t at,
                                        std::uint8_t* classes) {
  const std::int16_t* const means = contexts.columns + at;
  const std::int32_t row = contexts.row + kMeanFloor;
  for (std::size_t k = 0; k < kGroup; ++k) classes[k] = class_of_sum(means[k] + row);
}

// Updates the means with a group's magnitudes: `count` of the row; the others are 0.
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

// The same for a group without magnitudes.
GRADCOMP_LEVEL inline void take_note_of_zeros(Contexts& contexts, std::size_t at) {
  std::int16_t* const means = contexts.columns + at;
  for (std::size_t k = 0; k < kGroup; ++k) {
    means[k] = static_cast<std::int16_t>(means[k] + (-means[k] >> contexts.shift));
  }
  contexts.row += -contexts.row >> kRowShift;
}

// As CodingKernels::classify, for one group of `count` elements.
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

// Decodes the next element, which is of this class, with its sign.
GRADCOMP_LEVEL inline int pop_level(const ClassTables& tables, std::size_t in_class,
                                    const std::uint8_t** from, std::uint32_t* state) {
  const std::uint32_t slot = *state & (kRansTotal - 1);
  unsigned magnitude = 0;
  while (magnitude < kTopMagnitude && slot >= tables.of[magnitude + 1][in_class] >> 16) {
    ++magnitude;
  }
  const std::uint32_t interval = tables.of[magnitude][in_class];
  const std::uint32_t frequency = interval & 0xFFFFu;
  std::uint32_t offset = slot - (interval >> 16);
  const bool negative = offset >= frequency;
  if (negative) offset -= frequency;
  std::uint32_t next = frequency * (*state >> kRansBits) + offset;
  // This branch can be predicted, unlike with symbols of many bits: a word lasts for many elements.
  if (next < kRansLowest) {
    *from -= kRansWord;
    next = next << 16 | load<std::uint16_t>(*from);
  }
  *state = next;
  const int level = static_cast<int>(magnitude);
  return negative ? -level : level;
}

// Decodes a whole group with few enough states to stay in registers.
template <std::size_t kLanes>
GRADCOMP_LEVEL inline void pop_group(const std::uint8_t** from, const ClassTables& tables,
                                     std::uint32_t* states, const std::uint8_t* classes,
                                     std::int8_t* levels) {
  std::uint32_t own[kLanes];
  std::memcpy(own, states, sizeof own);
  const std::uint8_t* words = *from;
  for (std::size_t begin = 0; begin < kGroup; begin += kLanes) {
    for (std::size_t k = kLanes; k-- > 0;) {
      const int level = pop_level(tables, classes[begin + k], &words, own + k);
      levels[begin + k] = static_cast<std::int8_t>(level);
    }
  }
  *from = words;
  std::memcpy(states, own, sizeof own);
}

// As CodingKernels::decode_row, for one group of `count` elements and any number of states. Element
// k has the state k % lanes.
GRADCOMP_LEVEL inline void decode_group(const std::uint8_t** from, const ClassTables& tables,
                                        std::uint32_t* states, std::size_t lanes, std::size_t at,
                                        std::size_t count, Contexts& contexts,
                                        std::int8_t* levels) {
  std::uint8_t classes[kGroup];
  find_classes(contexts, at, classes);
  if (count == kGroup && lanes == 1) {
    pop_group<1>(from, tables, states, classes, levels);
  } else if (count == kGroup && lanes == 2) {
    pop_group<2>(from, tables, states, classes, levels);
  } else {
    for (std::size_t begin = 0; begin < count; begin += lanes) {
      const std::size_t end = begin + lanes < count ? begin + lanes : count;
      for (std::size_t k = end; k-- > begin;) {
        const int level = pop_level(tables, classes[k], from, states + (k - begin));
        levels[k] = static_cast<std::int8_t>(level);
      }
    }
  }
  std::uint8_t magnitudes[kGroup] = {};
  for (std::size_t k = 0; k < count; ++k) {
    magnitudes[k] = static_cast<std::uint8_t>(levels[k] < 0 ? -levels[k] : levels[k]);
  }
  take_note(contexts, at, count, magnitudes);
}

// As CodingKernels::decode_row, group by group.
GRADCOMP_LEVEL inline bool decode_groups_of_row(const std::uint8_t* begin,
                                                const std::uint8_t** from,
                                                const ClassTables& tables, std::uint32_t* states,
                                                std::size_t lanes, const std::uint8_t* flags,
                                                Contexts& contexts, std::int8_t* levels,
                                                std::size_t n) {
  for (std::size_t at = 0; at < n && *from >= begin; at += kGroup) {
    const std::size_t count = n - at < kGroup ? n - at : kGroup;
    if (flags != nullptr && flags[at / kGroup] == 0) {
      std::memset(levels + at, 0, count);
      take_note_of_zeros(contexts, at);
    } else {
      decode_group(from, tables, states, lanes, at, count, contexts, levels + at);
    }
  }
  return *from >= begin;
}
