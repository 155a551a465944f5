// Plug-ins: codecs in Python, and shared libraries. gradcomp/codec/plugins.py is the layer above.
#pragma once

#include <pybind11/pybind11.h>

namespace gradcomp {

void bind_plugins(pybind11::module_& m);

}  // namespace gradcomp
