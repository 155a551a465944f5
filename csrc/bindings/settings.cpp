#include <string>

#include "base/thread_pool.hpp"
#include "bindings/bindings.hpp"
#include "bindings/common.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp::bindings {
namespace {

py::list simd_levels() {
  const char* const* names = nullptr;
  const std::size_t count = available_levels(&names);
  py::list list;
  for (std::size_t i = 0; i < count; ++i) list.append(names[i]);
  return list;
}

void set_simd_level(const std::string& name) {
  if (!select_level(name.c_str())) {
    throw py::value_error("SIMD level '" + name + "' is not available here; available: " +
                          std::string(py::str(simd_levels())));
  }
}

}  // namespace

void bind_settings(py::module_& m) {
  m.def("simd_levels", &simd_levels);
  m.def("simd_level", [] { return kernels().name; });
  m.def("set_simd_level", &set_simd_level, py::arg("name"));
  m.def("thread_count", &thread_count);
  m.def("set_thread_count", &set_thread_count, py::arg("count"));
}

}  // namespace gradcomp::bindings
