#include "elements.hpp"

#include <cstdint>
#include <cstring>

#include "core.hpp"

namespace gradcomp_byteps {
namespace {

template <typename T>
void to_floats(const char* from, float* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = static_cast<float>(value);
  }
}

template <typename T>
void from_floats(const float* from, char* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const T value = static_cast<T>(from[i]);
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

// The codec "fp16", used to convert float16; it rounds to nearest even, as IEEE 754.
const gradcomp_codec* half() {
  static const Codec codec = make_codec(make_spec("fp16").get(), 0, 0);
  return codec.get();
}

}  // namespace

ElementType element_type(DataType type) {
  switch (type) {
    case byteps::common::BYTEPS_FLOAT32:
      return {4, true};
    case byteps::common::BYTEPS_FLOAT64:
      return {8, true};
    case byteps::common::BYTEPS_FLOAT16:
      return {2, true};
    case byteps::common::BYTEPS_INT32:
      return {4, false};
    case byteps::common::BYTEPS_INT64:
      return {8, false};
    case byteps::common::BYTEPS_UINT8:
    case byteps::common::BYTEPS_INT8:
      break;
  }
  return {1, false};
}

void load(DataType type, const char* from, float* to, std::size_t n) {
  switch (type) {
    case byteps::common::BYTEPS_FLOAT64:
      return to_floats<double>(from, to, n);
    case byteps::common::BYTEPS_FLOAT16:
      return check(gradcomp_decode(half(), reinterpret_cast<const std::uint8_t*>(from), 2 * n,
                                   nullptr, to, n),
                   "float16");
    default:
      std::memcpy(to, from, 4 * n);
  }
}

void store(DataType type, const float* from, char* to, std::size_t n) {
  std::size_t written = 0;
  switch (type) {
    case byteps::common::BYTEPS_FLOAT64:
      return from_floats<double>(from, to, n);
    case byteps::common::BYTEPS_FLOAT16:
      return check(gradcomp_encode(half(), from, n, nullptr, reinterpret_cast<std::uint8_t*>(to),
                                   2 * n, &written),
                   "float16");
    default:
      std::memcpy(to, from, 4 * n);
  }
}

}  // namespace gradcomp_byteps
