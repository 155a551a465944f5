// Reading CPU tensors through the DLPack protocol, for the dtype numpy lacks: bfloat16. The struct
// layouts are those of the DLPack specification, version 0.8 (unversioned capsules).
#pragma once

#include <pybind11/numpy.h>

#include <cstdint>

namespace gradcomp::dlpack {

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; nullptr means row-major
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor*);
};

inline constexpr std::int32_t kCpu = 1;
inline constexpr std::uint8_t kBfloat = 4;

// A bfloat16 CPU tensor as a uint16 array that shares its memory and keeps it alive.
inline pybind11::array bfloat16_bits(pybind11::capsule capsule) {
  namespace py = pybind11;
  if (!PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    throw py::type_error("not an unused DLPack capsule");
  }
  auto* managed = static_cast<ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  const Tensor& tensor = managed->tensor;
  if (tensor.device.type != kCpu || tensor.dtype.code != kBfloat || tensor.dtype.bits != 16 ||
      tensor.dtype.lanes != 1) {
    throw py::type_error("not a bfloat16 tensor in CPU memory");
  }
  std::vector<py::ssize_t> shape(tensor.shape, tensor.shape + tensor.ndim);
  std::vector<py::ssize_t> strides(shape.size());
  py::ssize_t next = 2;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = tensor.strides != nullptr ? 2 * tensor.strides[i] : next;
    next *= shape[i];
  }
  // From here on the capsule is used up, and the array's base owns the tensor.
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  py::capsule owner(managed, [](void* pointer) {
    auto* tensor_to_free = static_cast<ManagedTensor*>(pointer);
    if (tensor_to_free->deleter != nullptr) tensor_to_free->deleter(tensor_to_free);
  });
  auto* data = static_cast<std::uint8_t*>(tensor.data) + tensor.byte_offset;
  return py::array(py::dtype::of<std::uint16_t>(), shape, strides, data, owner);
}

}  // namespace gradcomp::dlpack
