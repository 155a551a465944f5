// The codec of a named tuple.
#pragma once

#include "bindings/codec.hpp"
#include "bindings/fields.hpp"

namespace gradcomp::bindings {

// The codec in the field `codec` of a gradcomp named tuple, which owns it.
inline const CompiledCodec& codec_of(py::handle tuple) {
  static const Field codec("codec"), core("core");
  return core.of(codec.of(tuple)).cast<const PyCodec&>().compiled();
}

}  // namespace gradcomp::bindings
