#include "codecs/polar/polar_codec.hpp"

namespace gradcomp {

StageInfo polar_family_stage(ParamInfo rate) {
  StageInfo stage;
  stage.nonfinite =
      "a NaN or Inf makes its segment of up to 2^20 elements NaN; tensors of fewer than 64 "
      "elements keep it";
  stage.params = {
      std::move(rate),
      choice_param("n", "auto", "auto|1024|4096|16384",
                   "length of the codes, 64 of which form a block; auto: by the tensor's size"),
      boolean_param("unbiased", "false",
                    "rotate whole blocks, and use the scale that makes the expectation exact"),
      // No default: specs without it, and their hashes in frames, stay as they were before the
      // parameter existed.
      choice_param("preset", nullptr, "best",
                   "best: 8 candidate codewords per code, for a smaller error and a slower "
                   "encoder; default: one"),
  };
  stage.refuse = [](const Params& params, const StageInfo* memory) -> const char* {
    if (!params.boolean("unbiased") || memory == nullptr) return nullptr;
    return "error feedback diverges with unbiased=true, because values with that scale exceed the "
           "gradient; leave out the memory, or unbiased=true";
  };
  stage.rotatable = true;
  return stage;
}

PolarParams::PolarParams(const Recipe& recipe)
    : rate(recipe.params.real("rate")),
      n(recipe.params.choice("n")),
      unbiased(recipe.params.boolean("unbiased")),
      rotated(recipe.transform != nullptr || unbiased),
      best(recipe.params.has("preset")) {}

}  // namespace gradcomp
