#include "bindings/common.hpp"

namespace gradcomp::bindings {
namespace {

const char* exception_name(Code code) {
  switch (code) {
    case Code::kSpec:
      return "SpecError";
    case Code::kWire:
      return "WireError";
    case Code::kCapacity:
      return "CapacityError";
    case Code::kOk:
    case Code::kArgument:
      break;
  }
  return "GradcompError";
}

}  // namespace

void raise_unless_ok(const Status& status) {
  if (status.ok()) return;
  const py::object type =
      py::module_::import("gradcomp.errors").attr(exception_name(status.code()));
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw py::error_already_set();
}

}  // namespace gradcomp::bindings
