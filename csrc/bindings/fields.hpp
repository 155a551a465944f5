// Reading the named tuples of gradcomp/codec/batch_items.py and frame_parts.py.
#pragma once

#include "bindings/common.hpp"
#include "codec/feedback.hpp"

namespace gradcomp::bindings {

// A field of a named tuple. The name is interned: lookups use the cache of the type, and do not
// create a string.
class Field {
 public:
  explicit Field(const char* name) : name_(PyUnicode_InternFromString(name)) {
    if (name_ == nullptr) throw py::error_already_set();
  }
  py::object of(py::handle tuple) const { return py::getattr(tuple, name_); }

 private:
  PyObject* name_;  // never freed: fields are static
};

// Reads a Correction, whose momentum must have the gradient's size.
inline Correction correction_of(py::handle given, const Floats& grad) {
  static const Field momentum("momentum"), factor("factor"), scale("scale"), nesterov("nesterov"),
      masking("masking");
  auto array = array_of<Floats>(momentum.of(given));
  check_equal_size(array, grad);
  Correction correction;
  correction.momentum = output(array);
  correction.factor = factor.of(given).cast<float>();
  correction.scale = scale.of(given).cast<float>();
  correction.nesterov = nesterov.of(given).cast<bool>();
  correction.masking = masking.of(given).cast<bool>();
  return correction;
}

}  // namespace gradcomp::bindings
