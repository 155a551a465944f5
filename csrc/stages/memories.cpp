#include "stages/rows.hpp"

namespace gradcomp {

ParamInfo residual_lr_param() {
  ParamInfo lr = choice_param("lr", "ignore", "ignore|scale",
                              "scale: the residual is multiplied by the learning rate of the last "
                              "step over the present one (blockwise EF-SGD)");
  lr.omits_default = true;
  return lr;
}

StageInfo residual_stage() {
  ParamInfo average = real_param(
      "average", "0.0", 0, 0.9999,
      "share of the residual that waits for later steps: LoCo's moving average of errors");
  average.omits_default = true;
  ParamInfo limit = real_param(
      "limit", "0.0", 0, 1e6,
      "a gradient with an L2 norm above limit times the running mean of its tensor's norms is "
      "scaled down to that, so that one spike leaves little behind; 0: never");
  limit.omits_default = true;
  ParamInfo reset_every = integer_param(
      "reset_every", "0", 0, std::int64_t{1} << 53,
      "LoCo's resets: the residual is dropped before each step whose number is a multiple "
      "of this; 0: never");
  reset_every.omits_default = true;
  StageInfo stage;
  stage.name = "residual";
  stage.kind = StageKind::kMemory;
  stage.summary =
      "error feedback: the part of a gradient that one step does not send is added to the next";
  stage.paper =
      "Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018; Karimireddy et al.: "
      "Error Feedback Fixes SignSGD, ICML 2019; lr=scale: Zheng, Huang, Kwok: "
      "Communication-Efficient Distributed Blockwise Momentum SGD with Error-Feedback, NeurIPS "
      "2019; average: Xie, Lin, Toh, Zhou: LoCo: Low-Bit Communication Adaptor for Large-Scale "
      "Model Training, arXiv:2407.04480";
  stage.nonfinite =
      "elements that are not finite after the update are reset to 0, so they never stay in memory";
  stage.example = "residual|topk(ratio=0.01)";
  stage.feeds_back = true;
  stage.params = {
      real_param("beta", "1.0", 0, 1, "weight of the residual in the corrected gradient"),
      real_param("gamma", "1.0", 1e-6, 1e6, "weight of the gradient in the corrected gradient"),
      residual_lr_param(),
      average,
      limit,
      reset_every,
  };
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
  stage.params = {real_param("momentum", "0.9", 0, 0.9999,
                             "weight of the past average; the gradient has weight 1 - momentum")};
  return stage;
}

std::vector<ParamInfo> momentum_params(const char* masking) {
  return {
      real_param("momentum", "0.9", 0, 0.9999, "momentum of the optimizer, which this replaces"),
      boolean_param("nesterov", "false", "Nesterov's momentum"),
      boolean_param(masking, "true",
                    "elements that are sent are also cleared from the momentum (factor masking)"),
      choice_param("clip", "none", "none|local_norm|scaled_norm|joint_norm",
                   "clip a tensor's gradient before it is accumulated, on each rank: to clip_norm; "
                   "to sqrt(world size) * clip_norm (the paper's N^-1/2 of the threshold for "
                   "the share g/N of a sum); or by one factor for all ranks, so that the root "
                   "mean square of their norms is at most clip_norm"),
      real_param("clip_norm", "1.0", 0, 1e30, "largest L2 norm of a tensor's averaged gradient",
                 true),
  };
}

StageInfo momentum_correction_stage() {
  StageInfo stage;
  stage.name = "momentum_correction";
  stage.kind = StageKind::kMemory;
  stage.summary =
      "error feedback that accumulates the momentum instead of the gradient: each rank applies the "
      "optimizer's momentum itself, before elements are chosen";
  stage.paper =
      "Lin, Han, Mao, Wang, Dally: Deep Gradient Compression, ICLR 2018, sections 3.1 to 3.3";
  stage.nonfinite =
      "elements that are not finite after the update are reset to 0, so they never stay in memory";
  stage.example = "momentum_correction|topk(ratio=0.001)";
  stage.params = momentum_params("masking");
  stage.feeds_back = true;
  stage.masks = true;
  return stage;
}

StageInfo ef21_stage() {
  ParamInfo momentum = real_param("momentum", "0.0", 0, 0.9999,
                                  "above 0, EF21-SGDM: each rank sends differences to the moving "
                                  "average of its gradients, in which the past has this weight and "
                                  "the gradient 1 - momentum (the paper's eta)");
  momentum.omits_default = true;
  StageInfo stage;
  stage.name = "ef21";
  stage.kind = StageKind::kMemory;
  stage.summary =
      "error feedback by differences: a rank sends its gradient less an estimate that all ranks' "
      "average follows; the result is the mean of all estimates";
  stage.paper =
      "Richtarik, Sokolov, Fatkhullin: EF21: A New, Simpler, Theoretically Better, and Practically "
      "Faster Error Feedback, NeurIPS 2021; momentum: Fatkhullin, Tyurin, Richtarik: Momentum "
      "Provably Improves Error Feedback!, NeurIPS 2023";
  stage.nonfinite =
      "a tensor with an element that is not finite is sent as NaN; elements with a result that is "
      "not finite start again from 0 on every rank";
  stage.example = "ef21|topk(ratio=0.01)";
  stage.feeds_back = true;
  stage.params = {momentum};
  return stage;
}

}  // namespace gradcomp
