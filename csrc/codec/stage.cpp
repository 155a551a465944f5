#include "codec/stage.hpp"

namespace gradcomp {

const char* Recipe::coder_name(const char* standard) const {
  return coder == nullptr ? standard : coder->info->name;
}

std::string Stage::text() const {
  std::string text;
  for (const auto& [name, value] : params.values()) {
    text += (text.empty() ? "(" : ",") + name + "=" + value.text();
  }
  return info->name + (text.empty() ? text : text + ")");
}

const char* kind_name(StageKind kind) noexcept {
  switch (kind) {
    case StageKind::kPreset:
      return "preset";
    case StageKind::kMemory:
      return "memory";
    case StageKind::kTransform:
      return "transform";
    case StageKind::kCodec:
      return "codec";
    case StageKind::kAlgorithm:
      return "algorithm";
    case StageKind::kCoder:
      break;
  }
  return "coder";
}

const char* origin_name(Origin origin) noexcept {
  switch (origin) {
    case Origin::kCore:
      return "core";
    case Origin::kLibrary:
      return "library";
    case Origin::kPython:
      break;
  }
  return "python";
}

}  // namespace gradcomp
