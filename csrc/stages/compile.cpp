#include "stages/compile.hpp"

#include <string>

#include "kernels/crc32c.hpp"
#include "stages/spec.hpp"

namespace gradcomp {

Status compile_codec(std::string_view text, CompiledCodec* out) {
  Spec spec;
  GRADCOMP_TRY(parse_spec(text, &spec));
  if (const Stage* memory = spec.find(StageKind::kMemory)) {
    return {Code::kSpec, "'" + spec.text() + "' has a memory ('" + std::string(memory->info->name) +
                             "'), and a codec holds no state: give the codec part alone, '" +
                             spec.text_without_memory() +
                             "', or use the whole spec in a Pipeline, a Loopback or an adapter"};
  }
  const Stage* const codec = spec.find(StageKind::kCodec);
  if (codec == nullptr) {
    return {Code::kSpec, "'" + spec.text() +
                             "' is no codec but an algorithm of several phases, which only "
                             "aggregators run: use it in a Pipeline, a Loopback or an adapter"};
  }
  if (spec.scheduled_by(Schedule::Unit::kSteps) || spec.scheduled_by(Schedule::Unit::kEpochs)) {
    return {Code::kSpec, "'" + spec.text() +
                             "' has a schedule, and a codec knows no steps: give the codec of one "
                             "step, or use the spec in a Pipeline, a Loopback or an adapter"};
  }
  out->spec = spec.text();
  out->info = codec->info;
  const std::uint32_t version = out->info->version;
  const std::string hashed = out->spec + (version == 0 ? "" : "@" + std::to_string(version));
  out->spec_hash = crc32c(reinterpret_cast<const std::uint8_t*>(hashed.data()), hashed.size());
  out->codec = out->info->make(
      {codec->params, spec.find(StageKind::kTransform), spec.find(StageKind::kCoder)});
  return {};
}

}  // namespace gradcomp
