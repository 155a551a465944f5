// Compiles a spec string to a codec.
#pragma once

#include <string_view>

#include "base/status.hpp"
#include "codec/compiled.hpp"

namespace gradcomp {

// Refuses specs with a memory, an algorithm or a schedule: a codec holds no state.
Status compile_codec(std::string_view spec, CompiledCodec* out);

}  // namespace gradcomp
