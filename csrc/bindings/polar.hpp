// Polar codes for study: what gradcomp.polar stands on.
#pragma once

#include <pybind11/pybind11.h>

namespace gradcomp {

void bind_polar(pybind11::module_& m);

}  // namespace gradcomp
