#include "coding/values.hpp"

#include <cmath>
#include <cstring>

#include "base/bytes.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr unsigned kBins = 4;

// Step of int8 values: the largest magnitude / 127. NaN if a value is not finite, so that receivers
// see the fault.
float int8_step(Span<const float> values) {
  const std::uint32_t largest = kernels().max_magnitude(values.data(), values.size());
  if (largest >= kInfBits) return bits_float(kNanBits);
  return std::fmin(bits_float(largest) / 127.0f, 0x1.020406p121f);  // 127 steps stay finite
}

void encode_int8(Span<const float> values, std::uint8_t* out) {
  const float step = int8_step(values);
  store(out, step);
  // A step below the normal range has no finite inverse: such values are sent as zeros.
  const float inverse = step >= 0x1p-126f ? 1.0f / step : 0.0f;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float scaled = values[i] * inverse;
    const float bounded = scaled > 127.0f ? 127.0f : scaled < -127.0f ? -127.0f : scaled;
    out[4 + i] = static_cast<std::uint8_t>(bounded == bounded ? std::lrintf(bounded) : 0);
  }
}

void encode_sign(Span<const float> values, std::uint8_t* out) {
  const std::size_t n = values.size();
  const double sum = kernels().sum_magnitudes(values.data(), n);
  const float mean = n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(n));
  store(out, std::isfinite(mean) ? mean : bits_float(kNanBits));
  if (n > 0) std::memset(out + 4, 0, (n + 7) / 8);
  for (std::size_t i = 0; i < n; ++i) {
    out[4 + i / 8] =
        static_cast<std::uint8_t>(out[4 + i / 8] | (float_bits(values[i]) >> 31) << i % 8);
  }
}

void encode_means(Span<const float> values, std::uint8_t* out) {
  const std::size_t n = values.size();
  const SignedSums sums = kernels().sum_by_sign(values.data(), n);
  std::size_t negatives = 0;
  for (float value : values) negatives += value < 0 ? 1 : 0;
  const bool finite = std::isfinite(sums.negative) && std::isfinite(sums.others);
  const auto mean = [finite](double sum, std::size_t count) {
    if (!finite) return bits_float(kNanBits);
    return count == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(count));
  };
  store(out, mean(sums.negative, negatives));
  store(out + 4, mean(sums.others, n - negatives));
  kernels().pack_negative(values.data(), out + 8, n);
}

// Bins of 1.5 standard deviations around the mean: 6 in all, as in SparseLoCo. Sums are in the
// order of the values.
void encode_bins(Span<const float> values, std::uint8_t* out) {
  const std::size_t n = values.size();
  double sum = 0;
  for (float value : values) sum += double{value};
  const double mean = n == 0 ? 0 : sum / static_cast<double>(n);
  double squares = 0;
  for (float value : values) squares += (double{value} - mean) * (double{value} - mean);
  const double deviation = n < 2 ? 0 : std::sqrt(squares / static_cast<double>(n - 1));
  const bool finite = std::isfinite(deviation);
  const double width = finite && deviation > 0 ? 6.0 * deviation / kBins : 1.0;
  double sums[kBins] = {};
  std::size_t counts[kBins] = {};
  std::uint8_t* const packed = out + 4 * kBins;
  if (n > 0) std::memset(packed, 0, (n + 3) / 4);
  for (std::size_t i = 0; i < n; ++i) {
    const double place = (double{values[i]} - mean) / width + 2;
    const double bounded = place > 3 ? 3 : place > 0 ? place : 0;  // NaN becomes 0
    const auto bin = static_cast<unsigned>(std::lrint(bounded));
    sums[bin] += double{values[i]};
    ++counts[bin];
    packed[i / 4] = static_cast<std::uint8_t>(packed[i / 4] | bin << 2 * (i % 4));
  }
  for (unsigned bin = 0; bin < kBins; ++bin) {
    const double of_bin = counts[bin] == 0 ? 0 : sums[bin] / static_cast<double>(counts[bin]);
    store(out + 4 * bin, finite ? static_cast<float>(of_bin) : bits_float(kNanBits));
  }
}

}  // namespace

ValueType value_type(std::string_view name) {
  return name == "fp16"    ? ValueType::kFp16
         : name == "bf16"  ? ValueType::kBf16
         : name == "int8"  ? ValueType::kInt8
         : name == "sign"  ? ValueType::kSign
         : name == "means" ? ValueType::kMeans
         : name == "2bit"  ? ValueType::kBins
                           : ValueType::kFp32;
}

std::size_t value_bytes(ValueType type, std::size_t count) {
  switch (type) {
    case ValueType::kFp32:
      break;
    case ValueType::kFp16:
    case ValueType::kBf16:
      return 2 * count;
    case ValueType::kInt8:
      return 4 + count;
    case ValueType::kSign:
      return 4 + (count + 7) / 8;
    case ValueType::kMeans:
      return 8 + (count + 7) / 8;
    case ValueType::kBins:
      return 4 * kBins + (count + 3) / 4;
  }
  return 4 * count;
}

bool value_finite(ValueType type) { return type != ValueType::kBf16; }

void encode_values(ValueType type, Span<const float> values, std::uint8_t* out) {
  switch (type) {
    case ValueType::kFp32:
      if (!values.empty()) std::memcpy(out, values.data(), 4 * values.size());
      break;
    case ValueType::kFp16:
      kernels().f32_to_f16(values.data(), out, values.size(), true);
      break;
    case ValueType::kBf16:
      kernels().f32_to_bf16(values.data(), out, values.size());
      break;
    case ValueType::kInt8:
      encode_int8(values, out);
      break;
    case ValueType::kSign:
      encode_sign(values, out);
      break;
    case ValueType::kMeans:
      encode_means(values, out);
      break;
    case ValueType::kBins:
      encode_bins(values, out);
      break;
  }
}

void decode_values(ValueType type, const std::uint8_t* in, Span<float> values) {
  const std::size_t n = values.size();
  switch (type) {
    case ValueType::kFp32:
      if (n > 0) std::memcpy(values.data(), in, 4 * n);
      break;
    case ValueType::kFp16:
      kernels().f16_to_f32(in, values.data(), n);
      break;
    case ValueType::kBf16:
      kernels().bf16_to_f32(in, values.data(), n);
      break;
    case ValueType::kInt8: {
      const float step = load<float>(in);
      for (std::size_t i = 0; i < n; ++i) {
        values[i] = step * static_cast<float>(static_cast<std::int8_t>(in[4 + i]));
      }
      break;
    }
    case ValueType::kSign: {
      const std::uint32_t magnitude = load<std::uint32_t>(in);
      for (std::size_t i = 0; i < n; ++i) {
        values[i] = bits_float(magnitude ^ (in[4 + i / 8] >> i % 8 & 1u) << 31);
      }
      break;
    }
    case ValueType::kMeans:
      kernels().select_bits(in + 8, load<float>(in + 4), load<float>(in), values.data(), n);
      break;
    case ValueType::kBins:
      for (std::size_t i = 0; i < n; ++i) {
        const unsigned bin = in[4 * kBins + i / 4] >> 2 * (i % 4) & 3u;
        values[i] = load<float>(in + 4 * bin);
      }
      break;
  }
}

}  // namespace gradcomp
