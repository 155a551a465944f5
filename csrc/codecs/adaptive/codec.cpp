// adaptive: a low-rank part and, for the rest, a dead-zone quantizer with one step for all tensors
// of a bucket. The levels are entropy-coded with tables that follow the sizes of the levels around
// them.
//
// RateControl plans a bucket, encoder.hpp and decoder.hpp write and read a tensor's payload.
// docs/adaptive.md explains the method, docs/wire-format.md#adaptive is the norm.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "codec/bucket_codec.hpp"
#include "codec/feedback.hpp"
#include "codec/payload.hpp"
#include "codecs/adaptive/decoder.hpp"
#include "codecs/adaptive/encoder.hpp"
#include "codecs/adaptive/learned_basis.hpp"
#include "codecs/adaptive/payload.hpp"
#include "codecs/adaptive/rate_control.hpp"
#include "codecs/codecs.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// The plans of a bucket, made by plan() for encode(), with the memory that they point to. The
// thread's next bucket reuses that memory, as to allocate it again costs more than the arithmetic.
struct BucketPlans final : public BucketWork {
  std::vector<TensorPlan> of;
  std::unique_ptr<Scratch> memory;

  BucketPlans() : memory(std::move(spare())) {
    if (memory == nullptr) memory = std::make_unique<Scratch>();
  }
  ~BucketPlans() override { spare() = std::move(memory); }

 private:
  static std::unique_ptr<Scratch>& spare() {
    thread_local std::unique_ptr<Scratch> kept;
    return kept;
  }
};

constexpr double kMostRate = 4;

bool chosen(const Recipe& recipe, const char* param, const char* value) {
  return recipe.params.has(param) && recipe.params.choice(param) == value;
}

double given(const Recipe& recipe, const char* param, double otherwise) {
  return recipe.params.has(param) ? recipe.params.real(param) : otherwise;
}

RateTarget rate_target(const Recipe& recipe) {
  const double rate = given(recipe, "rate", kMostRate);
  return {given(recipe, "max_rate", rate), given(recipe, "error", 0), given(recipe, "min_rate", 0)};
}

const char* refuse(const Params& params, const StageInfo*) {
  const bool bounded = params.has("min_rate") || params.has("max_rate");
  if (!params.has("error")) {
    return bounded ? "min_rate and max_rate are bounds of a spec with error" : nullptr;
  }
  if (params.has("coder") && params.choice("coder") == "polar") {
    return "coder=polar needs a rate, not an error";
  }
  const double most = params.has("max_rate") ? params.real("max_rate") : kMostRate;
  if (params.has("min_rate") && params.real("min_rate") > most) {
    return "min_rate is above max_rate";
  }
  return nullptr;
}

SearchOptions search_options(const Recipe& recipe) {
  const std::string rank = recipe.params.choice("rank");
  return {rank == "auto" ? SearchOptions::kAuto : std::stoi(rank), chosen(recipe, "coder", "polar"),
          chosen(recipe, "step", "energy")};
}

class Adaptive final : public Codec, public BucketCodec {
 public:
  explicit Adaptive(const Recipe& recipe)
      : points_(chosen(recipe, "coder", "polar")),
        learns_(chosen(recipe, "preset", "basis")),
        averages_(recipe.params.has("error")),
        control_(rate_target(recipe), search_options(recipe)) {}

  Caps caps() const noexcept override {
    Caps caps;
    caps.decodes_slowly = true;
    // The encoder knows the levels that a decoder would have to read. Points are known to their
    // coder alone.
    caps.fuses_feedback = !points_;
    caps.whole_bucket = true;
    caps.learns = learns_;
    return caps;
  }

  const BucketCodec* bucket() const noexcept override { return this; }

  std::size_t max_encoded_size(std::size_t n) const noexcept override {
    return n < kMinAdaptive ? 4 * n : 3 * n + kMinAdaptive;
  }

  // BucketCall::plan is the tensor's index in the bucket's plans.
  Status plan(Span<const BucketTensor> tensors, const Call&, Span<std::uint64_t> plans,
              std::unique_ptr<BucketWork>* work) const override {
    auto bucket_plans = std::make_unique<BucketPlans>();
    GRADCOMP_TRY(control_.plan(tensors, *bucket_plans->memory, &bucket_plans->of));
    for (std::size_t i = 0; i < plans.size(); ++i) plans[i] = i;
    *work = std::move(bucket_plans);
    return {};
  }

  std::size_t carried() const noexcept override {
    return CarriedState::kNumbers + (averages_ ? EnergyMean::kNumbers : 0);
  }

  std::size_t basis_size(std::size_t n, std::size_t cols) const noexcept override {
    if (!learns_ || n < kMinAdaptive) return 0;
    const MatrixShape shape = MatrixShape::of(n, cols);
    return learned_basis_size(shape.rows, shape.cols);
  }

  Status learn(Span<const float> average, const Call& call, Span<float> basis) const override {
    const std::size_t size = basis_size(average.size(), call.cols);
    if (size == 0 || basis.size() != size) {
      return argument_error("a basis of " + std::to_string(basis.size()) + " numbers; '" +
                            "adaptive' keeps " + std::to_string(size) + " of this tensor");
    }
    const MatrixShape shape = MatrixShape::of(average.size(), call.cols);
    return learn_basis(average.data(), shape.rows, shape.cols, *call.scratch, basis);
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    const std::size_t n = x.size();
    const std::size_t most = max_encoded_size(n);
    GRADCOMP_TRY(check_room(out, most));
    if (call.feedback != nullptr) call.feedback->correct_all();
    if (n < kMinAdaptive) {
      for (std::size_t i = 0; i < n; ++i) store(out.data() + 4 * i, x[i]);
      *written = 4 * n;
      if (call.feedback == nullptr) return {};
      return subtract_payload(*this, {out.data(), *written}, call, *call.feedback);
    }
    std::vector<TensorPlan> alone;
    TensorPlan* plan = nullptr;
    BucketWork* const work = work_of(call);
    if (work == nullptr) {
      const BucketTensor tensor{x, call.cols, {}, basis_of(call)};
      GRADCOMP_TRY(control_.plan({&tensor, 1}, *call.scratch, &alone));
      plan = alone.data();
    } else {
      plan = &static_cast<BucketPlans*>(work)->of[plan_of(call)];
    }
    for (;; plan->step *= 2) {
      write_payload(plan, points_, {out.data(), most}, written);
      if (*written != 0) break;
      // It does not fit: again with a larger step, without the low-rank part.
      plan->quantized = Quantized(x.data(), plan->quantized.shape());
      plan->counted = {};
    }
    if (call.feedback == nullptr) return {};
    const MatrixShape& shape = plan->quantized.shape();
    return reconstruct(*plan, LearnedBasis::of(basis_of(call), shape.rows, shape.cols))
        .add(-1, call.feedback->decoded(), *call.scratch, call.feedback->residual());
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    if (y.size() >= kMinAdaptive) {
      return decode_payload(in, {points_, learns_, basis_of(call)}, *call.scratch, y);
    }
    GRADCOMP_TRY(check_payload_size(in, 4 * y.size(), y.size()));
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = load<float>(in.data() + 4 * i);
    return {};
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override {
    if (acc.size() >= kMinAdaptive) {
      return decode_payload_add(in, {points_, learns_, basis_of(call)}, *call.scratch, weight, acc);
    }
    GRADCOMP_TRY(check_payload_size(in, 4 * acc.size(), acc.size()));
    kernels().f32_add(in.data(), weight, acc.data(), acc.size());
    return {};
  }

 private:
  bool points_;    // coder=polar
  bool learns_;    // preset=basis
  bool averages_;  // with an error: carries mean energies
  RateControl control_;
};

}  // namespace

StageInfo adaptive_stage() {
  StageInfo stage;
  stage.name = "adaptive";
  stage.id = 29;
  stage.summary =
      "a low rank part and, for what it leaves, an entropy-coded quantizer whose tables follow the "
      "sizes of rows and columns; one step for all tensors of a bucket, at a given rate";
  stage.paper =
      "none; its parts: Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS 2019; Sullivan: Efficient "
      "Scalar Quantization of Exponential and Laplacian Random Variables, IEEE Trans. Inf. Theory "
      "1996; Wu, Memon: Context-Based, Adaptive, Lossless Image Coding, IEEE Trans. Commun. 1997";
  stage.nonfinite =
      "a NaN or Inf makes the whole tensor NaN; tensors of fewer than 64 elements keep it";
  stage.example = "adaptive(rate=0.25)";
  ParamInfo rate = real_param(
      "rate", "0.25", 0.02, kMostRate,
      "bits per element of a bucket on the wire, within 3 %, all included, where frames alone do "
      "not take more than half of it");
  rate.unless = "error";
  stage.params = {
      rate,
      real_param("error", nullptr, 0.001, 0.9,
                 "instead of a rate: the part of the gradients' mean energy that may stay unsent "
                 "in a bucket"),
      real_param("min_rate", nullptr, 0.02, kMostRate,
                 "with error: at least so many bits per element"),
      real_param("max_rate", nullptr, 0.02, kMostRate,
                 "with error: at most so many bits per element; without: 4"),
      choice_param("rank", "auto", "auto|0|1|2|4|8|16",
                   "pairs of vectors; auto: what costs least, for each tensor"),
      // Without a default, so that specs without it, and their hashes in frames, are what they were
      // before there was a choice.
      choice_param("coder", nullptr, "ecsq|polar",
                   "of what pairs leave; polar: points of a lattice, half chosen by polar codes, "
                   "where that costs less; without: ecsq"),
      choice_param("step", nullptr, "bucket|energy",
                   "of the quantizer; energy: each tensor's grows with the square root of its root "
                   "mean square, for AdamW; without: bucket, one for all its tensors"),
      choice_param(
          "preset", nullptr, "default|basis",
          "basis: all ranks keep directions of past averages, and see gradients from them; "
          "without state (Codec.encode, BytePS, gossip) and without: default"),
  };
  stage.refuse = refuse;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Adaptive>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
