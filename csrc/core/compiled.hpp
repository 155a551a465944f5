// A codec ready for use: built from a spec, with what its frames carry in their header.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/codec.hpp"
#include "core/registry.hpp"

namespace gradcomp {

struct CompiledCodec {
  std::string spec;                 // canonical
  const StageInfo* info = nullptr;  // the codec stage
  std::uint32_t spec_hash = 0;      // CRC32C of `spec`
  std::unique_ptr<const Codec> codec;
};

// Refuses specs with a memory: a codec holds no state.
Status compile_codec(std::string_view spec, CompiledCodec* out);

}  // namespace gradcomp
