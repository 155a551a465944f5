// Registry rows of all stages except codecs; codecs/codecs.hpp has the rows of codecs.
#pragma once

#include <vector>

#include "codec/stage.hpp"

namespace gradcomp {

// presets.cpp
StageInfo dgc_stage();
StageInfo chunk_dgc_stage();
// memories.cpp
StageInfo residual_stage();
StageInfo signum_stage();
StageInfo momentum_correction_stage();
StageInfo ef21_stage();
// transforms.cpp
StageInfo rotate_stage();
// algorithms.cpp
StageInfo powersgd_stage();
StageInfo atomo_stage();
StageInfo chunk_allreduce_stage();
StageInfo signsgd_mv_stage();
StageInfo dion_stage();
StageInfo dion2_stage();
StageInfo demo_stage();
// coders.cpp
std::vector<StageInfo> coder_stages();

// Whether error feedback follows the learning rate.
ParamInfo residual_lr_param();

// Parameters of momentum correction. The preset `dgc` has them too, with a different name for
// `masking`.
std::vector<ParamInfo> momentum_params(const char* masking);

}  // namespace gradcomp
