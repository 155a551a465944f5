// Registry rows of all codecs; each is defined in the codec's own file.
#pragma once

#include "codec/codec.hpp"
#include "codec/stage.hpp"

namespace gradcomp {

StageInfo identity_stage();
StageInfo fp16_stage();
StageInfo bf16_stage();
StageInfo lossless_stage();
StageInfo topk_stage();
StageInfo randomk_stage();
StageInfo sign_stage();
StageInfo onebit_stage();
StageInfo terngrad_stage();
StageInfo natural_stage();
StageInfo int8_stage();
StageInfo int4_stage();
StageInfo fp8_stage();
StageInfo blockwise8_stage();
StageInfo qsgd_stage();
StageInfo dither_stage();
StageInfo uniform_stage();
StageInfo eden_stage();
StageInfo drive_stage();
StageInfo sampled_topk_stage();
StageInfo threshold_stage();
StageInfo randomblock_stage();
StageInfo chunktopk_stage();
StageInfo blocktopk_stage();
StageInfo globaltopk_stage();
StageInfo adaq_stage();
StageInfo inceptionn_stage();
StageInfo sketch_stage();
StageInfo polar_b_stage();
StageInfo polar_ec_stage();
StageInfo polar_stage();
StageInfo adaptive_stage();

}  // namespace gradcomp
