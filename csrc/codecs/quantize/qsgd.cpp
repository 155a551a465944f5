// QSGD: linear levels of a bucket's norm, rounded at random.
#include "codecs/codecs.hpp"
#include "codecs/quantize/dithered_codec.hpp"
#include "codecs/quantize/wide_qsgd.hpp"

namespace gradcomp {
namespace {

constexpr std::int64_t kMostByteLevels = 127;

Norm norm_of(const Params& params) {
  return params.choice("norm") == "l2" ? Norm::kL2 : Norm::kMax;
}

}  // namespace

StageInfo qsgd_stage() {
  StageInfo stage;
  stage.name = "qsgd";
  stage.id = 14;
  stage.summary = "signed multiples of norm / levels per bucket, rounded at random: unbiased";
  stage.paper =
      "Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD: Communication-Efficient SGD via Gradient "
      "Quantization and Encoding, NeurIPS 2017, section 3.1";
  stage.nonfinite = kDitheredNonfinite;
  stage.example = "qsgd(levels=127)";
  stage.params = {
      integer_param("levels", "127", 1, 65535,
                    "levels above zero; a level has ceil(log2(2 * levels + 1)) bits"),
      bucket_param("512", "elements that share a norm"),
      choice_param("norm", "max", "max|l2", "norm that the levels are fractions of"),
  };
  stage.symbols = Symbols::kLevels;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    if (recipe.params.integer("levels") > kMostByteLevels) {
      return make_wide_qsgd(recipe, norm_of(recipe.params));
    }
    return std::make_unique<DitheredCodec>(recipe, norm_of(recipe.params), Partition::kLinear);
  };
  stage.refuse = [](const Params& params, const StageInfo* memory) {
    return refuse_dithered(norm_of(params), Partition::kLinear, params, memory);
  };
  return stage;
}

}  // namespace gradcomp
