// Access to gradcomp's C interface: owners of its handles, and failures as BytePS reports them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "byteps/common/logging.h"
#include "gradcomp/gradcomp.h"

namespace gradcomp_byteps {

// Ends the process: BytePS' compressors cannot report errors in another way.
[[noreturn]] inline void fail(const std::string& reason) {
  byteps::common::LogMessageFatal("gradcomp", 0) << reason;
  std::abort();  // not reached; the destructor above aborts
}

inline void check(gradcomp_status status, const char* doing) {
  if (status != GRADCOMP_OK) fail(std::string(doing) + ": " + gradcomp_last_error());
}

inline std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

inline std::uint64_t number(const std::string& text, const char* name) {
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0') {
    fail(std::string(name) + " is '" + text + "'; it must be a whole number");
  }
  return value;
}

struct Destroy {
  void operator()(gradcomp_codec* codec) const { gradcomp_codec_destroy(codec); }
  void operator()(gradcomp_spec* spec) const { gradcomp_spec_destroy(spec); }
};
using Codec = std::unique_ptr<gradcomp_codec, Destroy>;
using Spec = std::unique_ptr<gradcomp_spec, Destroy>;

inline Spec make_spec(const std::string& text) {
  gradcomp_spec* spec = nullptr;
  check(gradcomp_spec_create(text.c_str(), &spec), "gradcomp_spec");
  return Spec(spec);
}

inline Codec make_codec(const gradcomp_spec* spec, std::uint64_t step, std::uint64_t epoch) {
  gradcomp_codec* codec = nullptr;
  check(gradcomp_spec_codec(spec, step, epoch, &codec), "codec");
  return Codec(codec);
}

}  // namespace gradcomp_byteps
