#include <cmath>
#include <cstdio>
#include <string_view>

#include "codecs/codecs.hpp"
#include "stages/rows.hpp"

namespace gradcomp {
namespace {

// "as=value" with the value of the parameter `name`.
std::string given(const Params& params, const char* name, const char* as) {
  return std::string(as) + "=" + params.values().find(name)->second.text();
}
std::string given(const Params& params, const char* name) { return given(params, name, name); }

std::string ratio_text(const Params& params) {
  const double ratio = params.real("ratio");
  const std::int64_t steps = params.integer("warmup_steps");
  const std::int64_t epochs = params.integer("warmup_epochs");
  Schedule warmup;
  warmup.unit = steps > 0 ? Schedule::Unit::kSteps : Schedule::Unit::kEpochs;
  warmup.length = steps > 0 ? steps : epochs;
  if (warmup.length == 0) return number_text(ratio);
  if (!params.list("warmup_coeff").empty()) {
    warmup.shape = Schedule::Shape::kStairs;
    warmup.length = 1;
    warmup.values = params.list("warmup_coeff");
    warmup.values.push_back(ratio);
    return warmup.text();
  }
  // With a warm-up of E epochs, the authors' code sends ratio^((e + 1) / (E + 1)) in epoch e. A
  // warm-up in steps starts at the ratio of E = 5, the paper's number of epochs.
  const double stairs = 1.0 + static_cast<double>(steps > 0 ? 5 : epochs);
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", std::pow(ratio, 1.0 / stairs));
  return std::string("ramp(from=") + buffer + ",to=" + number_text(ratio) + "," +
         (steps > 0 ? "steps=" : "epochs=") + std::to_string(warmup.length) + ")";
}

// Parameters of a preset's second stage that the preset takes as they are: all but the number of
// elements, which follows from `ratio` and the warm-up.
std::vector<ParamInfo> forwarded(const StageInfo& second) {
  std::vector<ParamInfo> params;
  for (const ParamInfo& param : second.params) {
    const std::string_view name = param.name;
    if (name != "ratio" && name != "k") params.push_back(param);
  }
  return params;
}

std::string expand(const Params& params, const StageInfo& second) {
  std::string text = "momentum_correction(";
  for (const char* name : {"momentum", "nesterov", "clip", "clip_norm"}) {
    text += given(params, name) + ",";
  }
  text += given(params, "momentum_masking", "masking") + ")|" + second.name + "(";
  for (const ParamInfo& param : forwarded(second)) text += given(params, param.name) + ",";
  return text + "ratio=" + ratio_text(params) + ")";
}

// Parameters of a preset: its ratio and warm-up, then those of its second stage and its memory.
std::vector<ParamInfo> preset_params(const StageInfo& second) {
  std::vector<ParamInfo> params = {
      real_param("ratio", "0.001", 0, 1, "fraction of the elements that is sent after warm-up",
                 true),
      integer_param("warmup_epochs", "5", 0, 1000000,
                    "epochs of warm-up, in which the ratio falls"),
      integer_param("warmup_steps", "0", 0, std::int64_t{1} << 53,
                    "steps of warm-up; above 0, used instead of warmup_epochs"),
      list_param("warmup_coeff", 0, 1, "ratio of each warm-up epoch; auto: equal factors", true),
  };
  for (const ParamInfo& param : forwarded(second)) params.push_back(param);
  for (const ParamInfo& param : momentum_params("momentum_masking")) params.push_back(param);
  return params;
}

const char* refuse(const Params& params, const StageInfo*) {
  const std::size_t listed = params.list("warmup_coeff").size();
  if (listed == 0) return nullptr;
  if (params.integer("warmup_steps") > 0) {
    return "warmup_coeff holds one ratio for each epoch: use it without warmup_steps";
  }
  return listed == static_cast<std::size_t>(params.integer("warmup_epochs"))
             ? nullptr
             : "warmup_coeff must hold one ratio for each of the warmup_epochs";
}

}  // namespace

StageInfo dgc_stage() {
  StageInfo stage;
  stage.name = "dgc";
  stage.kind = StageKind::kPreset;
  stage.summary =
      "Deep Gradient Compression: momentum correction, factor masking, sampled top-k, and a ratio "
      "that falls during warm-up";
  stage.paper =
      "Lin, Han, Mao, Wang, Dally: Deep Gradient Compression, ICLR 2018; defaults as in the "
      "authors' code";
  stage.nonfinite = "as in the stages that it expands to";
  stage.example = "dgc(ratio=0.001)";
  stage.params = preset_params(sampled_topk_stage());
  stage.expand = [](const Params& params) { return expand(params, sampled_topk_stage()); };
  stage.refuse = refuse;
  return stage;
}

StageInfo chunk_dgc_stage() {
  StageInfo stage;
  stage.name = "chunk_dgc";
  stage.kind = StageKind::kPreset;
  stage.summary =
      "Deep Gradient Compression of chunks that all ranks choose together and all-reduce: the "
      "volume does not grow with the number of ranks";
  stage.paper =
      "Sun, Feng, Han, Yan, Wen: Optimizing Network Performance for Distributed DNN Training on "
      "GPU Clusters, arXiv:1902.06855, section 3.2";
  stage.nonfinite = "as in the stages that it expands to";
  stage.example = "chunk_dgc(ratio=0.001)";
  stage.params = preset_params(chunk_allreduce_stage());
  stage.expand = [](const Params& params) { return expand(params, chunk_allreduce_stage()); };
  stage.refuse = refuse;
  return stage;
}

}  // namespace gradcomp
