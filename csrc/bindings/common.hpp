// Arrays, errors and the GIL: helpers for all files of this folder, the only one that uses
// pybind11.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"
#include "codec/codec.hpp"

namespace gradcomp::bindings {

namespace py = pybind11;

template <typename T>
using Array = py::array_t<T, py::array::c_style>;
using Floats = Array<float>;
using Bytes = Array<std::uint8_t>;

template <typename T>
Span<const T> input(const Array<T>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

template <typename T>
Span<T> output(Array<T>& array) {
  return {array.mutable_data(), static_cast<std::size_t>(array.size())};
}

// Casts an attribute or an element of a list, which pybind11 would copy if the dtype differed.
template <typename ArrayType>
ArrayType array_of(const py::handle& object) {
  if (!ArrayType::check_(object)) {
    throw py::type_error("not a C-contiguous array of the right dtype");
  }
  return py::reinterpret_borrow<ArrayType>(object);
}

// Call::cols of a tensor: elements of a row of [shape[0], rest], 0 for a vector.
inline std::size_t cols_of(const Floats& x) {
  if (x.ndim() < 2 || x.shape(0) == 0) return 0;
  return static_cast<std::size_t>(x.size() / x.shape(0));
}

inline void check_equal_size(const Floats& residual, const Floats& grad) {
  if (residual.size() != grad.size()) throw py::value_error("residual and gradient differ in size");
}

// Raises the exception of gradcomp.errors that belongs to the status.
void raise_unless_ok(const Status& status);

template <typename Fn>
void call_without_gil(Fn&& fn) {
  Status status;
  {
    py::gil_scoped_release release;
    status = fn();
  }
  raise_unless_ok(status);
}

// The call of this thread, which must be the one that runs it.
inline Call make_call(std::uint64_t stream) {
  Call call;
  call.stream = stream;
  call.scratch = &thread_scratch();
  return call;
}

}  // namespace gradcomp::bindings
