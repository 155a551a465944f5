// Conversion between float32 and the element types of BytePS' tensors.
#pragma once

#include <cstddef>

#include "byteps/common/common.h"

namespace gradcomp_byteps {

using byteps::common::DataType;

struct ElementType {
  std::size_t width;
  bool compressible;  // false for integers, which travel raw: they are no gradients
};

ElementType element_type(DataType type);

// Converts n elements to float32.
void load(DataType type, const char* from, float* to, std::size_t n);

// Converts n elements from float32.
void store(DataType type, const float* from, char* to, std::size_t n);

}  // namespace gradcomp_byteps
