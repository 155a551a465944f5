// Memory of averages, used again: what gradcomp.runtime.pipeline hands to aggregators.
#pragma once

#include <pybind11/pybind11.h>

namespace gradcomp {

void bind_buffer_pool(pybind11::module_& m);

}  // namespace gradcomp
