// The search's decisions for one tensor: all that the encoder needs to write its payload.
#pragma once

#include <cstdint>

#include "codecs/adaptive/payload.hpp"
#include "codecs/adaptive/quantized.hpp"

namespace gradcomp {

// Value of TensorPlan::groups if every group of elements may become points.
inline constexpr std::uint8_t kAllGroups = 255;

struct TensorPlan {
  float step = 0;  // 0: all elements become 0; NaN: all become NaN
  Quantized quantized{nullptr, {}};
  std::uint32_t basis = 0;          // of a turned matrix: LearnedBasis::check
  std::uint8_t* symbols = nullptr;  // a buffer of a byte for each element
  SymbolCounts counted;             // of the symbols in the buffer
  ZeroGroups zero_groups = {};
  // coder=polar: of every 255 groups for which points cost less, at most this many become points.
  std::uint8_t groups = kAllGroups;
  // Set by write_payload(); without a step above 0 that step is the value of all elements.
  LevelValues values;

  // Fills the buffer with the symbols of this step, unless it already has them.
  void quantize(float at) {
    if (counted.step != at) counted = quantized.quantize(at, symbols, &zero_groups);
  }
};

}  // namespace gradcomp
