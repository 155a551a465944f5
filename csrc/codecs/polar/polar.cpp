// polar_b below half a bit per element, polar_ec from there on: one name for all rates.
// docs/wire-format.md#polar is the norm.
#include "codecs/codecs.hpp"

namespace gradcomp {
namespace {

constexpr double kEntropyCodedFrom = 0.5;

}  // namespace

StageInfo polar_stage() {
  StageInfo stage = polar_ec_stage();
  stage.name = "polar";
  stage.id = 34;  // 28 had the payloads of 26
  stage.summary =
      "polar codes at 1/32 to 4 bits per element: 'polar_b' below 0.5 bits, else 'polar_ec'";
  stage.example = "polar(rate=0.5)";
  for (ParamInfo& param : stage.params) {
    if (std::string_view(param.name) != "rate") continue;
    param.default_text = "0.5";
    param.min = 0.03125;
  }
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    static const StageInfo below = polar_b_stage();
    static const StageInfo above = polar_ec_stage();
    const double rate = recipe.params.real("rate");
    return (rate < kEntropyCodedFrom ? below : above).make(recipe);
  };
  return stage;
}

}  // namespace gradcomp
