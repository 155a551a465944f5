// Every element whose magnitude exceeds a fixed threshold.
#include <algorithm>
#include <limits>

#include "base/bytes.hpp"
#include "codecs/codecs.hpp"
#include "codecs/sparse/sparse_codec.hpp"

namespace gradcomp {
namespace {

class Threshold final : public SparseCodec {
 public:
  explicit Threshold(const Recipe& recipe)
      : SparseCodec(recipe),
        tau_(static_cast<float>(
            std::min<double>(recipe.params.real("tau"), std::numeric_limits<float>::max()))) {}

 private:
  std::size_t min_kept(std::size_t) const noexcept override { return 0; }
  std::size_t max_kept(std::size_t n) const noexcept override { return n; }

  Status select(Span<const float> x, const Call& call, Selection* kept) const override {
    Candidates found;
    GRADCOMP_TRY(find_candidates(x, float_bits(tau_) + 1, 1, x.size(), Excess::kFirst, call,
                                 &found));  // the next larger magnitude: > tau, not >=
    *kept = found.first(found.size);
    return {};
  }

  float tau_;
};

}  // namespace

StageInfo threshold_stage() {
  StageInfo stage;
  stage.name = "threshold";
  stage.id = 7;
  stage.summary = "every element with |x| > tau; their number varies from step to step";
  stage.paper =
      "Strom: Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, INTERSPEECH "
      "2015; values travel as in GRACE (Xu et al., ICDCS 2021)";
  stage.nonfinite = "NaN and Inf are always sent";
  stage.example = "threshold(tau=0.01)";
  stage.params = {real_param("tau", "0.01", 0, std::numeric_limits<double>::infinity(),
                             "magnitudes above this are sent; rounded to float32"),
                  values_param()};
  stage.symbols = Symbols::kIndices;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Threshold>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
