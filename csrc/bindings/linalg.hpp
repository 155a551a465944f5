// Products and orthonormal bases of low-rank algorithms: what gradcomp.linalg stands on.
#pragma once

#include <pybind11/pybind11.h>

namespace gradcomp {

void bind_linalg(pybind11::module_& m);

}  // namespace gradcomp
