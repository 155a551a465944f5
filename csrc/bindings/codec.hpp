// gradcomp._core.Codec: a compiled codec as a Python object.
#pragma once

#include <string>

#include "bindings/common.hpp"
#include "stages/compile.hpp"

namespace gradcomp::bindings {

class PyCodec {
 public:
  explicit PyCodec(const std::string& spec) { raise_unless_ok(compile_codec(spec, &compiled_)); }

  const CompiledCodec& compiled() const { return compiled_; }
  const Codec& codec() const { return *compiled_.codec; }

 private:
  CompiledCodec compiled_;
};

}  // namespace gradcomp::bindings
