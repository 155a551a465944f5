// The table of every stage a spec may name. Explicit: static registrars vanish in static links.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/codec.hpp"

namespace gradcomp {

class Params;
struct Stage;

// In the order in which stages may stand in a spec; at most one of each, and exactly one codec. An
// algorithm stands where a codec would: a reduction of several phases that aggregators run. A
// preset is short for a memory and a codec, and does not appear in a parsed spec.
enum class StageKind { kPreset, kMemory, kTransform, kCodec, kAlgorithm, kCoder };
// What a codec leaves to a lossless coder, and what a coder codes.
enum class Symbols { kNone, kIndices, kLevels };
// A list is that of numbers, [0.25,0.1], or "auto", which is empty.
enum class ParamType { kReal, kInteger, kBoolean, kChoice, kList };

struct ParamInfo {
  const char* name;
  ParamType type;
  const char* default_text;  // as written in a spec; nullptr: no default
  const char* doc;
  double min = 0;              // inclusive, numbers only
  double max = 0;              // inclusive, numbers only
  bool min_exclusive = false;  // min itself is refused
  const char* choices = "";    // "a|b", kChoice only

  std::string range_text() const;  // "(0, 1]", "true|false", ...
};

// A number's parameter; the range is [min, max], or (min, max] with min_exclusive.
ParamInfo real_param(const char* name, const char* default_text, double min, double max,
                     const char* doc, bool min_exclusive = false);
ParamInfo integer_param(const char* name, const char* default_text, std::int64_t min,
                        std::int64_t max, const char* doc);
ParamInfo boolean_param(const char* name, const char* default_text, const char* doc);
ParamInfo list_param(const char* name, double min, double max, const char* doc,
                     bool min_exclusive = false);
ParamInfo choice_param(const char* name, const char* default_text, const char* choices,
                       const char* doc);

// What a codec is made from: its parameters, and the stages around it.
struct Recipe {
  const Params& params;
  const Stage* transform;  // nullptr when the spec has none
  const Stage* coder;      // nullptr when the spec has none
};

struct StageInfo {
  const char* name = "";
  StageKind kind = StageKind::kCodec;
  std::uint16_t id = 0;  // of a codec: its frames' codec id; else 0
  const char* summary = "";
  const char* paper = "";
  const char* nonfinite = "";  // what happens to NaN and Inf
  const char* example = "";    // a valid spec; of a codec or an algorithm alone
  std::vector<ParamInfo> params = {};
  std::vector<const char*> exactly_one_of = {};  // parameters of which a spec gives exactly one
  std::unique_ptr<Codec> (*make)(const Recipe&) = nullptr;  // codecs only
  // Codecs and algorithms only: why these parameters make no sense, or make none after this memory
  // (nullptr: the spec has none); nullptr when they do.
  const char* (*refuse)(const Params&, const StageInfo* memory) = nullptr;
  std::string (*expand)(const Params&) = nullptr;  // presets only: the spec it is short for
  Symbols symbols = Symbols::kNone;                // codecs and coders only
  bool is_default = false;     // coders only: a spec without a coder means this one
  bool rotatable = false;      // codecs only: after 'rotate'
  bool needs_indices = false;  // memories only: must know which elements a payload carries
};

// Frame codec ids: 1..0x7FFF are gradcomp's own, from 0x8000 on they are free for users.
inline constexpr std::uint16_t kFirstUserCodecId = 0x8000;

const std::vector<StageInfo>& registry();
const char* kind_name(StageKind kind) noexcept;
const StageInfo* find_stage(std::string_view name) noexcept;
const StageInfo* find_stage(std::uint16_t codec_id) noexcept;

}  // namespace gradcomp
