#include <string_view>
#include <utility>

#include "stages/rows.hpp"

namespace gradcomp {
namespace {

const char* refuse_another_momentum(const Params& params, const StageInfo* memory) {
  if (memory != nullptr) return "its momentum is its error feedback; leave out the memory";
  return params.real("momentum") < 1 ? nullptr : "momentum must be below 1";
}

}  // namespace

StageInfo powersgd_stage() {
  ParamInfo batched =
      boolean_param("batched", "false",
                    "all tensors of a bucket are one square matrix, as in PyTorch's batched hook");
  batched.omits_default = true;
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
      "NaN and Inf spread over rows and columns of the average on every rank; the matrix's "
      "residual "
      "is reset to 0";
  stage.example = "powersgd(rank=4)";
  stage.params = {
      integer_param("rank", "4", 1, 1024,
                    "columns of the factors; at most the smaller matrix side"),
      integer_param(
          "iters_per_step", "1", 1, 64,
          "iterations per step, each with a product from one side (library) or from both (paper)"),
      real_param("min_compression_rate", "2", 0, 1e9,
                 "matrices with a compression rate up to this are sent dense"),
      integer_param("start_step", "100", 0, std::int64_t{1} << 53, "earlier steps are sent dense"),
      choice_param("orthogonalization", "gram_schmidt", "gram_schmidt|qr|cholesky",
                   "method that makes a factor's columns orthonormal"),
      choice_param("variant", "paper", "library|paper",
                   "library: one product per iteration, alternating sides, residual of the rank's "
                   "own product; paper: both products, residual of their average"),
      boolean_param("warm_start", "true",
                    "a step starts from the factor of the previous step; false: from a random one"),
      choice_param("values", "fp32", "fp32|fp16|bf16",
                   "elements of the factors on the wire; bf16 is all-gathered"),
      residual_lr_param(),
      std::move(batched),
  };
  stage.refuse = [](const Params& params, const StageInfo* memory) -> const char* {
    if (memory == nullptr) return nullptr;
    if (memory->name != std::string_view("ef21")) {
      return "it keeps its own error feedback; leave out the memory, or use ef21 instead of it";
    }
    if (params.choice("lr") == "ignore") return nullptr;
    return "ef21 takes the place of the residual that lr=scale would scale; leave out lr";
  };
  return stage;
}

StageInfo atomo_stage() {
  StageInfo stage;
  stage.name = "atomo";
  stage.kind = StageKind::kAlgorithm;
  stage.summary =
      "a few singular values and vectors of each rank's matrix: an unbiased sample, or the largest";
  stage.paper =
      "Wang, Sievert, Charles, Liu, Wright, Papailiopoulos: ATOMO: Communication-efficient "
      "Learning via Atomic Sparsification, NeurIPS 2018";
  stage.nonfinite = "the whole matrix becomes NaN, on every rank";
  stage.example = "atomo(rank=3)";
  stage.params = {
      integer_param("rank", "3", 1, 1024, "singular values sent; at most the smaller matrix side"),
      boolean_param(
          "unbiased", "true",
          "singular values are sampled and divided by their probabilities; false: the largest"),
      real_param("min_compression_rate", "2", 0, 1e9,
                 "matrices with a compression rate up to this are sent dense"),
      choice_param("values", "fp32", "fp32|fp16|bf16", "elements of the vectors on the wire"),
  };
  stage.refuse = [](const Params& params, const StageInfo* memory) -> const char* {
    if (memory == nullptr || !memory->feeds_back) return nullptr;
    if (!params.boolean("unbiased")) return nullptr;
    return "error feedback diverges with unbiased=true, because the scaled singular values may "
           "exceed the gradient; leave out the memory, or use unbiased=false";
  };
  return stage;
}

StageInfo chunk_allreduce_stage() {
  StageInfo stage;
  stage.name = "chunk_allreduce";
  stage.kind = StageKind::kAlgorithm;
  stage.summary =
      "all ranks send the same chunks, with the largest average L1 norms: norms are all-reduced, "
      "then elements";
  stage.paper =
      "Sun, Feng, Han, Yan, Wen: Optimizing Network Performance for Distributed DNN Training on "
      "GPU Clusters, arXiv:1902.06855, section 3.2 (coarse-grained sparse communication)";
  stage.nonfinite = "a chunk with a NaN or Inf is sent first, and memories drop it";
  stage.example = "chunk_allreduce(ratio=0.001)";
  stage.params = {
      real_param("ratio", "0.001", 0, 1,
                 "fraction of the chunks that is sent, rounded to nearest, at least one chunk",
                 true),
      integer_param("chunk", "512", 1, 65536, "elements per chunk"),
      choice_param("values", "fp32", "fp32|fp16", "elements on the wire"),
  };
  stage.refuse = [](const Params& params, const StageInfo* memory) -> const char* {
    const bool ef21 = memory != nullptr && memory->name == std::string_view("ef21");
    if (!ef21 || params.choice("values") == "fp32") return nullptr;
    return "ef21 adds up what the ranks have sent, and none knows what a sum of float16 has "
           "rounded; use values=fp32, or residual";
  };
  stage.symbols = Symbols::kIndices;  // every rank knows the indices of the elements sent
  return stage;
}

StageInfo signsgd_mv_stage() {
  StageInfo stage;
  stage.name = "signsgd_mv";
  stage.kind = StageKind::kAlgorithm;
  stage.summary = "majority vote over the signs of all ranks: the average becomes +1 or -1";
  stage.paper =
      "Bernstein, Wang, Azizzadenesheli, Anandkumar: signSGD: Compressed Optimisation for "
      "Non-Convex Problems, ICML 2018, algorithm 3; Bernstein, Zhao, Azizzadenesheli, Anandkumar: "
      "signSGD with Majority Vote is Communication Efficient and Fault Tolerant, ICLR 2019";
  stage.nonfinite = "every element of the same frame becomes NaN, on every rank";
  stage.example = "signsgd_mv";
  stage.params = {
      choice_param("ties", "random", "random|plus", "sign of zero elements and of tied votes"),
  };
  stage.refuse = [](const Params&, const StageInfo* memory) -> const char* {
    if (memory == nullptr || !memory->feeds_back) return nullptr;
    if (memory->name == std::string_view("residual")) return nullptr;
    return "a vote has no scale, so this error feedback would be meaningless; leave out the "
           "memory, or use signum or residual";
  };
  return stage;
}

StageInfo dion_stage() {
  StageInfo stage;
  stage.name = "dion";
  stage.kind = StageKind::kAlgorithm;
  stage.summary =
      "orthonormal low-rank steps from the momentum: two thin factors are all-reduced; the result "
      "is the step of the optimizer Dion, not an average";
  stage.paper =
      "Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan, Langford: Dion: Distributed Orthonormalized "
      "Updates, arXiv:2504.05295";
  stage.nonfinite =
      "the whole matrix becomes NaN, on every rank; its momentum then starts again from 0";
  stage.example = "dion(rank_fraction=0.25)";
  stage.params = {
      real_param("rank_fraction", "0.25", 0, 1,
                 "columns of the factors over the smaller matrix side, rounded up", true),
      real_param("momentum", "0.95", 0, 1, "part of the step's low-rank matrix that stays"),
      choice_param("orthogonalization", "qr", "gram_schmidt|qr|cholesky",
                   "method that makes a factor's columns orthonormal"),
      choice_param("values", "fp32", "fp32|fp16|bf16",
                   "elements of the factors on the wire; bf16 is all-gathered"),
  };
  stage.refuse = refuse_another_momentum;
  return stage;
}

StageInfo dion2_stage() {
  StageInfo stage;
  stage.name = "dion2";
  stage.kind = StageKind::kAlgorithm;
  stage.summary =
      "orthonormal steps from the largest rows of the momentum, which alone are all-reduced; the "
      "result is the step of the optimizer Dion, not an average";
  stage.paper =
      "Ahn, Amsel, Langford: Dion2: A Simple Method to Shrink Matrix in Muon, arXiv:2512.16928";
  stage.nonfinite =
      "the whole matrix becomes NaN, on every rank; its momentum then starts again from 0";
  stage.example = "dion2(fraction=0.25)";
  stage.params = {
      real_param("fraction", "0.25", 0, 1,
                 "part of the rows, or of the columns where these are fewer, that is sent; rounded "
                 "up",
                 true),
      real_param("momentum", "0.95", 0, 1, "part of the sent rows that stays"),
      choice_param("values", "fp32", "fp32|fp16|bf16",
                   "elements of the rows on the wire; bf16 is all-gathered"),
  };
  stage.refuse = refuse_another_momentum;
  return stage;
}

StageInfo demo_stage() {
  StageInfo stage;
  stage.name = "demo";
  stage.kind = StageKind::kAlgorithm;
  stage.summary =
      "the largest coefficients of the momentum under a fixed rotation are all-gathered; the "
      "result "
      "is the step of the optimizer DeMo, not an average";
  stage.paper =
      "Peng, Lester, Quesnelle, Kingma: DeMo: Decoupled Momentum Optimization, arXiv:2411.19870";
  stage.nonfinite =
      "the blocks of a NaN or Inf become NaN, on every rank; their momentum becomes 0";
  stage.example = "demo(k=32)";
  stage.params = {
      integer_param("k", "32", 1, 4096, "coefficients sent of a block of 4096"),
      real_param("momentum", "0.95", 0, 1, "part of the momentum that stays from step to step"),
      choice_param("values", "sign", "fp32|fp16|bf16|int8|sign|means|2bit",
                   "coefficients on the wire, as in blocktopk"),
      choice_param("update", "sign", "sign|plain",
                   "step: the sign of the average, or the average itself"),
  };
  stage.refuse = refuse_another_momentum;
  return stage;
}

}  // namespace gradcomp
