// gradcomp._core: checks buffers, releases the GIL and turns a Status into an exception of
// gradcomp.errors. The Python package above it is the public interface.
#include "bindings/bindings.hpp"

namespace py = pybind11;

namespace gradcomp::bindings {

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of gradcomp. Private: use the gradcomp package.";
  bind_codec(m);
  bind_batch(m);
  bind_spec(m);
  bind_frame(m);
  bind_arrays(m);
  bind_memory(m);
  bind_settings(m);
  bind_linalg(m);
  bind_polar(m);
  bind_kept_memory(m);
  bind_plugins(m);
}

}  // namespace gradcomp::bindings
