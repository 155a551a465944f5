// About k elements of large magnitude: the threshold is estimated on a sample, and adapted if it is
// too far off (Lin et al.: Deep Gradient Compression).
#include <algorithm>
#include <cmath>
#include <string>

#include "base/bytes.hpp"
#include "base/rng.hpp"
#include "codecs/codecs.hpp"
#include "codecs/sparse/keep.hpp"
#include "codecs/sparse/sample.hpp"
#include "codecs/sparse/sparse_codec.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

class SampledTopK final : public SparseCodec {
 public:
  explicit SampledTopK(const Recipe& recipe)
      : SparseCodec(recipe),
        keep_(recipe.params),
        sample_ratio_(recipe.params.real("sample_ratio")),
        strided_(recipe.params.boolean("strided_sample")),
        upper_(recipe.params.real("upper_bound")),
        lower_(recipe.params.real("lower_bound")),
        iterations_(recipe.params.integer("max_adaptation_iters")),
        resample_(recipe.params.boolean("resample")) {}

  Caps caps() const noexcept override {
    Caps caps = SparseCodec::caps();
    caps.private_noise = true;
    return caps;
  }

 private:
  std::size_t min_kept(std::size_t n) const noexcept override {
    const std::size_t k = keep_.count(n);
    const Sample sample = sample_of(sample_ratio_, k, n);
    if (sample.stride == 1) return k;
    // The sample itself has `rank` elements that reach the threshold, and with `resample` it only
    // ever falls. Drawn with replacement, they may all be the same.
    return resample_ ? std::min(k, strided_ ? sample.rank : 1) : 0;
  }
  std::size_t max_kept(std::size_t n) const noexcept override { return keep_.count(n); }

  Status select(Span<const float> x, const Call& call, Selection* kept) const override {
    const std::size_t k = keep_.count(x.size());
    const Sample sample = sample_of(sample_ratio_, k, x.size());
    if (sample.stride == 1) return select_largest(x, k, call, kept);
    std::uint32_t threshold = 0;
    GRADCOMP_TRY(estimate(x, sample, call, &threshold));
    const double most = upper_ * static_cast<double>(k);
    const std::size_t cap = std::max(2 * k, static_cast<std::size_t>(most)) + 4096;
    const Excess excess = resample_ ? Excess::kLargest : Excess::kFirst;
    Candidates found;
    for (std::int64_t i = 0;; ++i) {
      GRADCOMP_TRY(find_candidates(x, threshold, k, cap, excess, call, &found));
      const bool many = found.more || static_cast<double>(found.size) > most;
      if (many && resample_) {
        keep_largest(&found, k);
        break;
      }
      const bool few = static_cast<double>(found.size) < lower_ * static_cast<double>(k);
      if ((!many && !few) || i == iterations_) break;
      threshold = scaled(threshold, many ? upper_ : lower_);
    }
    *kept = found.first(std::min(found.size, k));
    return {};
  }

  // At most the largest finite magnitude, so that NaN and Inf always reach it.
  Status estimate(Span<const float> x, const Sample& sample, const Call& call,
                  std::uint32_t* threshold) const {
    Stream stream(call.stream);
    const std::size_t start =
        strided_ ? static_cast<std::size_t>(stream.below(sample.stride)) : std::size_t{0};
    const std::size_t size = strided_ ? (x.size() - start + sample.stride - 1) / sample.stride
                                      : x.size() / sample.stride;
    Span<std::uint32_t> magnitudes = call.scratch->get<std::uint32_t>(0, size);
    if (magnitudes.empty()) {
      return capacity_error("out of memory: a sample of " + std::to_string(size) + " elements");
    }
    if (strided_) {
      // Each element may be in a different cache line, so prefetch early.
      const std::size_t ahead = 32 * sample.stride;
      for (std::size_t i = 0; i < size; ++i) {
        const std::size_t at = start + i * sample.stride;
        __builtin_prefetch(x.data() + std::min(at + ahead, x.size() - 1));
        magnitudes[i] = float_bits(x[at]) & kMagnitudeMask;
      }
    } else {
      for (std::size_t i = 0; i < size; ++i) {
        magnitudes[i] = float_bits(x[stream.below(x.size())]) & kMagnitudeMask;
      }
    }
    const std::uint32_t reached = kth_largest(magnitudes.data(), size, sample.rank).number;
    *threshold = std::min(reached, kInfBits - 1);
    return {};
  }

  static std::uint32_t scaled(std::uint32_t threshold, double factor) {
    const float product = bits_float(threshold) * static_cast<float>(factor);
    return std::min(float_bits(product), kInfBits - 1);
  }

  Keep keep_;
  double sample_ratio_;
  bool strided_;
  double upper_;
  double lower_;
  std::int64_t iterations_;
  bool resample_;
};

}  // namespace

StageInfo sampled_topk_stage() {
  StageInfo stage;
  stage.name = "sampled_topk";
  stage.id = 6;
  stage.summary = "at most k elements of large magnitude, above a threshold estimated on a sample";
  stage.paper =
      "Lin, Han, Mao, Wang, Dally: Deep Gradient Compression, ICLR 2018, section 5; sample size "
      "and adaptation as in the authors' code";
  stage.nonfinite = "NaN and Inf reach every threshold";
  stage.example = "sampled_topk(ratio=0.01)";
  ParamInfo strided =
      boolean_param("strided_sample", "true",
                    "sample elements at equal distances; false: elements drawn with replacement");
  strided.omits_default = true;
  stage.params = {
      ratio_param(),
      k_param(),
      real_param("sample_ratio", "0.01", 0, 1,
                 "fraction of the elements that is sampled, at least 2 numel/k of them", true),
      real_param("upper_bound", "1.3", 1, 100,
                 "more than upper_bound * k elements above the threshold: resample, or raise the "
                 "threshold by this factor"),
      real_param("lower_bound", "0.8", 0, 1,
                 "fewer than lower_bound * k elements: lower the threshold by this factor", true),
      integer_param("max_adaptation_iters", "10", 0, 100,
                    "largest number of adaptations of the threshold"),
      boolean_param("resample", "true",
                    "if too many elements exceed the threshold: keep exactly the k largest; false: "
                    "raise the threshold"),
      strided,
      values_param()};
  stage.exactly_one_of = {"ratio", "k"};
  stage.symbols = Symbols::kIndices;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<SampledTopK>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
