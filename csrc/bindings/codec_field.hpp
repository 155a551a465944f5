// The codec of a named tuple.
#pragma once

#include "bindings/codec.hpp"
#include "bindings/fields.hpp"

namespace gradcomp::bindings {

// Of a gradcomp named tuple with a field `codec`, which keeps it.
inline const CompiledCodec& codec_of(py::handle tuple) {
  static const Field codec("codec"), core("core");
  return core.of(codec.of(tuple)).cast<const PyCodec&>().compiled();
}

}  // namespace gradcomp::bindings
