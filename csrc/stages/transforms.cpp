#include "stages/rows.hpp"

namespace gradcomp {

StageInfo rotate_stage() {
  StageInfo stage;
  stage.name = "rotate";
  stage.kind = StageKind::kTransform;
  stage.summary =
      "a random rotation before the codec and its inverse after it (signs and a Hadamard "
      "transform, in blocks of 4096): the codec sees nearly normal values for any gradient";
  stage.paper =
      "Ailon, Chazelle: The Fast Johnson-Lindenstrauss Transform, SIAM J. Comput. 2009; Suresh et "
      "al.: Distributed Mean Estimation with Limited Communication, ICML 2017, section 3";
  stage.nonfinite = "a NaN or Inf spreads over its block";
  stage.example = "rotate|uniform(bits=4)";
  return stage;
}

}  // namespace gradcomp
