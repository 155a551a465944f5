#include "stages/rows.hpp"

namespace gradcomp {

StageInfo rotate_stage() {
  StageInfo stage;
  stage.name = "rotate";
  stage.kind = StageKind::kTransform;
  stage.summary =
      "a random rotation (signs and a Hadamard transform, in blocks of 4096) before the codec and "
      "back after it, so that the codec sees nearly normal values whatever the gradient's shape";
  stage.paper =
      "Ailon, Chazelle: The Fast Johnson-Lindenstrauss Transform, SIAM J. Comput. 2009; Suresh et "
      "al.: Distributed Mean Estimation with Limited Communication, ICML 2017, section 3";
  stage.nonfinite = "a NaN or Inf spreads over its block";
  stage.example = "rotate|uniform(bits=4)";
  return stage;
}

}  // namespace gradcomp
