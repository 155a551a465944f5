// libFuzzer target: arbitrary text for the spec parser. Run by scripts/test cpp.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "stages/spec.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  gradcomp::Spec spec;
  if (!gradcomp::parse_spec(text, &spec).ok()) return 0;
  gradcomp::Spec again;
  if (!gradcomp::parse_spec(spec.text(), &again).ok()) std::abort();
  if (again.text() != spec.text()) std::abort();
  return 0;
}
