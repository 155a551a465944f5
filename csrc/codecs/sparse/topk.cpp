// The k elements of largest magnitude, exactly.
#include "codecs/codecs.hpp"
#include "codecs/sparse/keep.hpp"
#include "codecs/sparse/selection.hpp"
#include "codecs/sparse/sparse_codec.hpp"

namespace gradcomp {
namespace {

class TopK final : public SparseCodec {
 public:
  explicit TopK(const Recipe& recipe) : SparseCodec(recipe), keep_(recipe.params) {}

 private:
  std::size_t min_kept(std::size_t n) const noexcept override { return keep_.count(n); }
  std::size_t max_kept(std::size_t n) const noexcept override { return keep_.count(n); }

  Status select(Span<const float> x, const Call& call, Selection* kept) const override {
    return select_largest(x, keep_.count(x.size()), call, kept);
  }

  Keep keep_;
};

}  // namespace

StageInfo topk_stage() {
  StageInfo stage;
  stage.name = "topk";
  stage.id = 4;
  stage.summary = "exactly the k elements of largest magnitude; ties go to the lower index";
  stage.paper = "Aji, Heafield: Sparse Communication for Distributed Gradient Descent, EMNLP 2017";
  stage.nonfinite = "NaN ranks above Inf and Inf above all finite values, so they are sent first";
  stage.example = "topk(ratio=0.01)";
  stage.params = {ratio_param(), k_param(), values_param()};
  stage.exactly_one_of = {"ratio", "k"};
  stage.symbols = Symbols::kIndices;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<TopK>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
