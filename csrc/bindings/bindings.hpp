// The parts of gradcomp._core, each in its own file; module.cpp calls them in turn.
#pragma once

#include <pybind11/pybind11.h>

namespace gradcomp::bindings {

void bind_codec(pybind11::module_& m);        // Codec
void bind_batch(pybind11::module_& m);        // many tensors in one call
void bind_spec(pybind11::module_& m);         // the grammar, the table of stages
void bind_frame(pybind11::module_& m);        // headers of frames
void bind_arrays(pybind11::module_& m);       // passes over flat arrays, bfloat16
void bind_memory(pybind11::module_& m);       // arithmetic of memories
void bind_settings(pybind11::module_& m);     // instruction set, threads
void bind_linalg(pybind11::module_& m);       // products and bases of low-rank algorithms
void bind_polar(pybind11::module_& m);        // gradcomp.polar: polar codes for study
void bind_kept_memory(pybind11::module_& m);  // memory that is reused
void bind_plugins(pybind11::module_& m);      // plug-ins: codecs in Python, shared libraries

}  // namespace gradcomp::bindings
