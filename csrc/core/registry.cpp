#include "core/registry.hpp"

#include "codecs/codecs.hpp"
#include "core/dgc.hpp"
#include "core/spec.hpp"

namespace gradcomp {
namespace {

StageInfo residual_stage() {
  StageInfo stage;
  stage.name = "residual";
  stage.kind = StageKind::kMemory;
  stage.summary = "error feedback: what one step does not send is added to the next";
  stage.paper =
      "Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018; Karimireddy et al.: "
      "Error Feedback Fixes SignSGD, ICML 2019";
  stage.nonfinite =
      "an element that is not finite after the update is reset to 0: it never stays in memory";
  stage.example = "residual|topk(ratio=0.01)";
  stage.params = {
      real_param("beta", "1.0", 0, 1, "weight of the residual in the corrected gradient"),
      real_param("gamma", "1.0", 1e-6, 1e6, "weight of the gradient in the corrected gradient"),
  };
  return stage;
}

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

StageInfo signum_stage() {
  StageInfo stage;
  stage.name = "signum";
  stage.kind = StageKind::kMemory;
  stage.summary = "momentum before compression: a rank sends the moving average of its gradients";
  stage.paper =
      "Bernstein, Wang, Azizzadenesheli, Anandkumar: signSGD: Compressed Optimisation for "
      "Non-Convex Problems, ICML 2018, algorithm 2 (Signum)";
  stage.nonfinite = "an element that is not finite is sent once and then reset to 0";
  stage.example = "signum|sign";
  stage.params = {
      real_param("momentum", "0.9", 0, 0.9999, "weight of the past; the gradient has the rest")};
  return stage;
}

StageInfo powersgd_stage() {
  StageInfo stage;
  stage.name = "powersgd";
  stage.kind = StageKind::kAlgorithm;
  stage.summary =
      "low-rank approximation by power iteration: two thin factors are all-reduced instead of a "
      "matrix, with error feedback";
  stage.paper =
      "Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression for "
      "Distributed Optimization, NeurIPS 2019";
  stage.nonfinite =
      "spread over rows and columns of the average on every rank; what is kept for the next step "
      "is reset to 0 there";
  stage.example = "powersgd(rank=4)";
  stage.params = {
      integer_param("rank", "4", 1, 1024,
                    "columns of the factors; at most the smaller matrix side"),
      integer_param("iters_per_step", "1", 1, 64,
                    "iterations in a step: a product from one side (library) or both (paper)"),
      real_param("min_compression_rate", "2", 0, 1e9,
                 "matrices that would not shrink by more than this travel dense"),
      integer_param("start_step", "100", 0, std::int64_t{1} << 53, "steps before travel dense"),
      choice_param("orthogonalization", "gram_schmidt", "gram_schmidt|qr|cholesky",
                   "how a factor's columns are made orthonormal"),
      choice_param("variant", "library", "library|paper",
                   "one product an iteration, sides in turn, error of the rank's own product; or "
                   "both products, error of their average"),
      boolean_param("warm_start", "true",
                    "a step begins with the factor that the last one left; else with a random one"),
      choice_param("values", "fp32", "fp32|fp16|bf16",
                   "elements of the factors on the wire; bf16 is all-gathered"),
  };
  stage.refuse = [](const Params&, const StageInfo* memory) -> const char* {
    return memory == nullptr ? nullptr : "it keeps its own error feedback; leave out the memory";
  };
  return stage;
}

StageInfo atomo_stage() {
  StageInfo stage;
  stage.name = "atomo";
  stage.kind = StageKind::kAlgorithm;
  stage.summary =
      "a few singular values and vectors of each rank's matrix, drawn without bias or the largest";
  stage.paper =
      "Wang, Sievert, Charles, Liu, Wright, Papailiopoulos: ATOMO: Communication-efficient "
      "Learning "
      "via Atomic Sparsification, NeurIPS 2018";
  stage.nonfinite = "the whole matrix becomes NaN, on every rank";
  stage.example = "atomo(rank=3)";
  stage.params = {
      integer_param("rank", "3", 1, 1024, "singular values sent; at most the smaller matrix side"),
      boolean_param("unbiased", "true",
                    "singular values are drawn and scaled by their odds; else the largest"),
      real_param("min_compression_rate", "2", 0, 1e9,
                 "matrices that would not shrink by more than this travel dense"),
      choice_param("values", "fp32", "fp32|fp16|bf16", "elements of the vectors on the wire"),
  };
  stage.refuse = [](const Params& params, const StageInfo* memory) -> const char* {
    if (memory == nullptr || std::string_view(memory->name) != "residual") return nullptr;
    if (!params.boolean("unbiased")) return nullptr;
    return "error feedback after scaling by the odds diverges, since what is sent may exceed the "
           "gradient; leave out the memory, or take unbiased=false";
  };
  return stage;
}

StageInfo chunk_allreduce_stage() {
  StageInfo stage;
  stage.name = "chunk_allreduce";
  stage.kind = StageKind::kAlgorithm;
  stage.summary =
      "all ranks send the same chunks, those of the largest average L1 norm: norms are "
      "all-reduced, "
      "then the elements";
  stage.paper =
      "Sun, Feng, Han, Yan, Wen: Optimizing Network Performance for Distributed DNN Training on "
      "GPU "
      "Clusters, arXiv:1902.06855, section 3.2 (coarse-grained sparse communication)";
  stage.nonfinite = "a chunk with a NaN or Inf is sent first; memories forget it then";
  stage.example = "chunk_allreduce(ratio=0.001)";
  stage.params = {
      real_param("ratio", "0.001", 0, 1,
                 "fraction of the chunks that is sent; to the nearest, at least one", true),
      integer_param("chunk", "512", 1, 65536, "elements of a chunk"),
      choice_param("values", "fp32", "fp32|fp16", "elements on the wire"),
  };
  stage.symbols = Symbols::kIndices;  // every rank knows which elements are sent
  return stage;
}

StageInfo signsgd_mv_stage() {
  StageInfo stage;
  stage.name = "signsgd_mv";
  stage.kind = StageKind::kAlgorithm;
  stage.summary =
      "signs of all ranks are put to the vote: the average becomes the majority's +1 or -1";
  stage.paper =
      "Bernstein, Wang, Azizzadenesheli, Anandkumar: signSGD: Compressed Optimisation for "
      "Non-Convex Problems, ICML 2018, algorithm 3; Bernstein, Zhao, Azizzadenesheli, Anandkumar: "
      "signSGD with Majority Vote is Communication Efficient and Fault Tolerant, ICLR 2019";
  stage.nonfinite = "every element that travels in the same frame becomes NaN, on every rank";
  stage.example = "signsgd_mv";
  stage.params = {
      choice_param("ties", "random", "random|plus",
                   "sign of an element that is zero, and of a tied vote"),
  };
  stage.refuse = [](const Params&, const StageInfo* memory) -> const char* {
    if (memory == nullptr || std::string_view(memory->name) == "signum") return nullptr;
    return "a vote has no scale, so error feedback would keep differences of unrelated sizes; "
           "leave "
           "out the memory, or take signum";
  };
  return stage;
}

StageInfo index_coder(const char* name, const char* example, const char* summary,
                      const char* paper) {
  StageInfo stage;
  stage.name = name;
  stage.kind = StageKind::kCoder;
  stage.summary = summary;
  stage.paper = paper;
  stage.nonfinite = "not concerned";
  stage.example = example;
  stage.symbols = Symbols::kIndices;
  stage.is_default = stage.name == std::string_view("auto");
  return stage;
}

StageInfo level_coder(const char* name, const char* example, const char* summary,
                      const char* paper) {
  StageInfo stage;
  stage.name = name;
  stage.kind = StageKind::kCoder;
  stage.summary = summary;
  stage.paper = paper;
  stage.nonfinite = "not concerned";
  stage.example = example;
  stage.symbols = Symbols::kLevels;
  stage.is_default = stage.name == std::string_view("packed");
  return stage;
}

}  // namespace

const std::vector<StageInfo>& registry() {
  // In the order that people see; ids are given once and never change.
  static const std::vector<StageInfo> rows = {
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
      index_coder("auto", "topk(ratio=0.01)|auto",
                  "codes indices in the way that is smallest, each time; what a spec without an "
                  "index coder means",
                  "none"),
      index_coder("raw32", "topk(ratio=0.01)|raw32", "codes indices as 32 bits each", "none"),
      index_coder("bitmask", "topk(ratio=0.01)|bitmask", "codes indices as one bit per element",
                  "none"),
      index_coder("elias_fano", "topk(ratio=0.01)|elias_fano",
                  "codes indices in at most 2 + log2(n / k) bits each",
                  "Elias: Efficient Storage and Retrieval by Content and Address of Static Files, "
                  "JACM 1974; Fano, 1971"),
      index_coder("rice", "topk(ratio=0.01)|rice",
                  "codes gaps between indices by Golomb-Rice codes, one parameter per 512",
                  "Golomb: Run-Length Encodings, IEEE Trans. Inf. Theory 1966; Rice, Plaunt, 1971"),
      level_coder("packed", "qsgd(levels=7)|packed",
                  "codes levels in the same number of bits each; what a spec without a level coder "
                  "means",
                  "none"),
      level_coder("rans", "qsgd(levels=7)|rans",
                  "codes levels close to their entropy, by frequencies counted in every 64Ki",
                  "Duda: Asymmetric numeral systems, 2013; Giesen: Interleaved entropy coders, "
                  "2014"),
      level_coder("elias_delta", "qsgd(levels=7,norm=l2)|elias_delta",
                  "codes levels in few bits near zero and more far from it, without a table",
                  "Elias: Universal Codeword Sets and Representations of the Integers, IEEE Trans. "
                  "Inf. Theory 1975"),
  };
  return rows;
}

ParamInfo real_param(const char* name, const char* default_text, double min, double max,
                     const char* doc, bool min_exclusive) {
  ParamInfo param{name, ParamType::kReal, default_text, doc};
  param.min = min;
  param.max = max;
  param.min_exclusive = min_exclusive;
  return param;
}

ParamInfo integer_param(const char* name, const char* default_text, std::int64_t min,
                        std::int64_t max, const char* doc) {
  ParamInfo param{name, ParamType::kInteger, default_text, doc};
  param.min = static_cast<double>(min);
  param.max = static_cast<double>(max);
  return param;
}

ParamInfo boolean_param(const char* name, const char* default_text, const char* doc) {
  return {name, ParamType::kBoolean, default_text, doc};
}

ParamInfo list_param(const char* name, double min, double max, const char* doc,
                     bool min_exclusive) {
  ParamInfo param = real_param(name, "auto", min, max, doc, min_exclusive);
  param.type = ParamType::kList;
  return param;
}

ParamInfo choice_param(const char* name, const char* default_text, const char* choices,
                       const char* doc) {
  ParamInfo param{name, ParamType::kChoice, default_text, doc};
  param.choices = choices;
  return param;
}

const char* kind_name(StageKind kind) noexcept {
  switch (kind) {
    case StageKind::kPreset:
      return "preset";
    case StageKind::kMemory:
      return "memory";
    case StageKind::kTransform:
      return "transform";
    case StageKind::kCodec:
      return "codec";
    case StageKind::kAlgorithm:
      return "algorithm";
    case StageKind::kCoder:
      break;
  }
  return "coder";
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
