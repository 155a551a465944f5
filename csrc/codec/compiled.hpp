// A codec ready for use: built from a spec, with the fields of its frames' headers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "codec/stage.hpp"

namespace gradcomp {

struct CompiledCodec {
  std::string spec;                 // canonical
  const StageInfo* info = nullptr;  // the codec stage
  std::uint32_t spec_hash = 0;      // CRC32C of `spec` (of a plug-in's codec with its version)
  std::unique_ptr<const Codec> codec;
};

}  // namespace gradcomp
