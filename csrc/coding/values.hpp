// Wire types of the values that a sparsifier keeps. docs/wire-format.md#value-types is the norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/span.hpp"

namespace gradcomp {

// These numbers are part of the wire format.
enum class ValueType : std::uint8_t {
  kFp32 = 0,
  kFp16 = 1,  // beyond 65504: saturated
  kBf16 = 2,
  kInt8 = 3,   // a shared float32 step, then one signed byte each
  kSign = 4,   // a shared float32 magnitude (their mean), then one bit each
  kMeans = 5,  // two float32, the means of values below 0 and of all others, then one bit each
  kBins = 6,   // the means of four bins of equal widths, as float32, then two bits each
};

// Type for the parameter `values`: "fp32", "fp16", "bf16", "int8", "sign", "means" or "2bit".
ValueType value_type(std::string_view name);

std::size_t value_bytes(ValueType type, std::size_t count);
// True if finite values decode to finite values.
bool value_finite(ValueType type);
// `out` has value_bytes(type, values.size()).
void encode_values(ValueType type, Span<const float> values, std::uint8_t* out);
// `in` has value_bytes(type, values.size()).
void decode_values(ValueType type, const std::uint8_t* in, Span<float> values);

}  // namespace gradcomp
