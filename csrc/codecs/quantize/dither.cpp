// BytePS' dithering: linear or natural levels of a norm, rounded at random.
#include "codecs/codecs.hpp"
#include "codecs/quantize/dithered_codec.hpp"

namespace gradcomp {
namespace {

Norm norm_of(const Params& params) {
  return params.choice("normalize") == "l2" ? Norm::kL2 : Norm::kMax;
}

Partition partition_of(const Params& params) {
  return params.choice("partition") == "natural" ? Partition::kNatural : Partition::kLinear;
}

}  // namespace

StageInfo dither_stage() {
  StageInfo stage;
  stage.name = "dither";
  stage.id = 15;
  stage.summary =
      "BytePS' dithering: linear levels or powers of two of a norm, rounded at random: unbiased";
  stage.paper =
      "Horvath et al.: Natural Compression for Distributed Deep Learning, MSML 2022 (natural "
      "dithering); Alistarh et al.: QSGD, NeurIPS 2017, section 3.1 (linear)";
  stage.nonfinite = kDitheredNonfinite;
  stage.example = "dither(levels=4,partition=natural)";
  stage.params = {
      levels_param("4", "levels above zero; a level has ceil(log2(2 * levels + 1)) bits"),
      choice_param("partition", "linear", "linear|natural",
                   "levels 1/s, 2/s, ..., 1, or 2^(1-s), ..., 1/2, 1, of the norm"),
      choice_param("normalize", "max", "max|l2", "the norm"),
      bucket_param("1024000", "elements that share a norm; BytePS' default partition"),
  };
  stage.symbols = Symbols::kLevels;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<DitheredCodec>(recipe, norm_of(recipe.params),
                                           partition_of(recipe.params));
  };
  stage.refuse = [](const Params& params, const StageInfo* memory) {
    return refuse_dithered(norm_of(params), partition_of(params), params, memory);
  };
  return stage;
}

}  // namespace gradcomp
