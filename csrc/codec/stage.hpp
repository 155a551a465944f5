// Stages of a spec: StageInfo is a row of the registry, Stage one with the parameters of a spec.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codec/codec.hpp"
#include "codec/params.hpp"

namespace gradcomp {

struct Stage;

// In the order of a spec: at most one stage of each kind, and exactly one codec. An algorithm, in
// place of a codec, is a reduction of several phases that aggregators run. A preset is short for a
// memory and a codec, and does not appear in a parsed spec.
enum class StageKind { kPreset, kMemory, kTransform, kCodec, kAlgorithm, kCoder };
// Symbols that a codec leaves to a lossless coder, and that a coder codes.
enum class Symbols { kNone, kIndices, kLevels };
// Arguments of a codec's constructor: its parameters, and the stages around it.
struct Recipe {
  const Params& params;
  const Stage* transform;  // nullptr if the spec has none
  const Stage* coder;      // nullptr if the spec has none

  // The name of the coder; `standard` if the spec has none.
  const char* coder_name(const char* standard) const;
};

// Source of a stage; plug-ins bring codecs only.
enum class Origin { kCore, kLibrary, kPython };

struct StageInfo {
  const char* name = "";
  StageKind kind = StageKind::kCodec;
  // Codecs only: the codec id of their frames, 1 to 0x7FFF; ids from 0x8000 on are users' own.
  std::uint16_t id = 0;
  const char* summary = "";
  const char* paper = "";
  const char* nonfinite = "";  // treatment of NaN and Inf
  const char* example = "";    // a valid spec; of a codec or an algorithm: without other stages
  std::vector<ParamInfo> params = {};
  std::vector<const char*> exactly_one_of = {};  // parameters of which a spec gives exactly one
  std::function<std::unique_ptr<Codec>(const Recipe&)> make = nullptr;  // codecs only
  // Codecs and algorithms only: why the parameters are invalid, alone or with this memory (nullptr:
  // the spec has none); nullptr if valid.
  const char* (*refuse)(const Params&, const StageInfo* memory) = nullptr;
  std::string (*expand)(const Params&) = nullptr;  // presets only: the full spec
  Symbols symbols = Symbols::kNone;                // codecs and coders only
  bool is_default = false;                         // coders only: the coder of specs without one
  bool rotatable = false;                          // codecs only: may follow 'rotate'
  bool feeds_back = false;  // memories only: the unsent part is added to the next gradient
  bool masks = false;       // memories only: has the parameter `masking`, which needs sent indices
  Origin origin = Origin::kCore;
  std::uint32_t version = 0;  // of a plug-in's codec: its payload format
};

struct Stage {
  const StageInfo* info = nullptr;
  Params params;

  std::string text() const;
};

// Frame codec ids: 1..0x7FFF are gradcomp's own, from 0x8000 on they are those of plug-ins.
inline constexpr std::uint16_t kFirstPluginId = 0x8000;

const char* kind_name(StageKind kind) noexcept;
const char* origin_name(Origin origin) noexcept;

}  // namespace gradcomp
