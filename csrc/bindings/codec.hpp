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

// derive_stream() of whole numbers in [0, 2**64); raises TypeError for anything else.
std::uint64_t stream_of(py::handle seed, py::handle step, py::handle tensor_id);

}  // namespace gradcomp::bindings
