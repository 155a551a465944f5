#include "codec/stage.hpp"

#include <algorithm>

namespace gradcomp {

const char* Recipe::coder_name(const char* standard) const {
  return coder == nullptr ? standard : coder->info->name;
}

std::string Stage::text() const {
  std::string text;
  for (const auto& [name, value] : params.values()) {
    const auto param =
        std::find_if(info->params.begin(), info->params.end(),
                     [&, &key = name](const ParamInfo& one) { return key == one.name; });
    if (param != info->params.end() && param->omits_default &&
        value.text() == param->default_text) {
      continue;
    }
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
