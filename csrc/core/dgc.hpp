// Deep Gradient Compression (Lin et al., ICLR 2018): its memory, and the preset for all of it.
#pragma once

#include "core/registry.hpp"

namespace gradcomp {

StageInfo momentum_correction_stage();
StageInfo dgc_stage();
StageInfo chunk_dgc_stage();

}  // namespace gradcomp
