#include "stages/registry.hpp"

#include <utility>

#include "codecs/codecs.hpp"
#include "stages/rows.hpp"

namespace gradcomp {

const std::vector<StageInfo>& registry() {
  // In the order of `gradcomp list`; ids never change.
  static const std::vector<StageInfo> rows = [] {
    std::vector<StageInfo> all = {
        dgc_stage(),
        chunk_dgc_stage(),
        residual_stage(),
        signum_stage(),
        momentum_correction_stage(),
        rotate_stage(),
        identity_stage(),
        fp16_stage(),
        bf16_stage(),
        topk_stage(),
        randomk_stage(),
        sign_stage(),
        onebit_stage(),
        terngrad_stage(),
        natural_stage(),
        int8_stage(),
        int4_stage(),
        blockwise8_stage(),
        qsgd_stage(),
        dither_stage(),
        uniform_stage(),
        eden_stage(),
        drive_stage(),
        sampled_topk_stage(),
        threshold_stage(),
        randomblock_stage(),
        chunktopk_stage(),
        globaltopk_stage(),
        adaq_stage(),
        inceptionn_stage(),
        sketch_stage(),
        polar_b_stage(),
        polar_ec_stage(),
        polar_stage(),
        adaptive_stage(),
        powersgd_stage(),
        atomo_stage(),
        chunk_allreduce_stage(),
        signsgd_mv_stage(),
    };
    for (StageInfo& coder : coder_stages()) all.push_back(std::move(coder));
    return all;
  }();
  return rows;
}

const StageInfo* find_stage(std::string_view name) noexcept {
  for (const StageInfo& info : registry()) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

const StageInfo* find_stage(std::uint16_t codec_id) noexcept {
  for (const StageInfo& info : registry()) {
    if (info.kind == StageKind::kCodec && info.id == codec_id) return &info;
  }
  return nullptr;
}

}  // namespace gradcomp
