// The largest elements of each sign, a given proportion of them, sent as two means.
#include <algorithm>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codecs/codecs.hpp"
#include "codecs/sparse/keep.hpp"
#include "codecs/sparse/sparse_codec.hpp"

namespace gradcomp {
namespace {

class AdaQ final : public SparseCodec {
 public:
  explicit AdaQ(const Recipe& recipe)
      : SparseCodec(recipe, ValueType::kMeans), keep_(recipe.params) {}

 private:
  std::size_t min_kept(std::size_t) const noexcept override { return 0; }  // all may be zeros
  // The counts of the two signs are rounded separately, and at least 1 each.
  std::size_t max_kept(std::size_t n) const noexcept override {
    return std::min(n, keep_.count(n) + 1);
  }

  Status select(Span<const float> x, const Call& call, Selection* kept) const override {
    Span<SignCounts> parts = call.scratch->get<SignCounts>(0, chunk_count(x.size()) + 1);
    if (parts.empty()) return capacity_error("out of memory while counting positive elements");
    for_chunks(x.size(), [&](std::size_t chunk, std::size_t begin, std::size_t end) {
      parts[chunk] = count_signs(x.data() + begin, end - begin);
    });
    SignCounts k;
    for (std::size_t i = 0; i < chunk_count(x.size()); ++i) {
      k.positive += parts[i].positive;
      k.negative += parts[i].negative;
    }
    k = {keep_.count(k.positive), keep_.count(k.negative)};
    return select_largest_by_sign(x, k, call, kept);
  }

  // Counts at most kChunk elements by sign bit, NaN included; zeros count for neither sign.
  static SignCounts count_signs(const float* x, std::size_t n) {
    std::uint32_t positive = 0;
    std::uint32_t negative = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t bits = float_bits(x[i]);
      positive += static_cast<std::int32_t>(bits) > 0 ? 1 : 0;
      negative += bits > 0x80000000u ? 1 : 0;
    }
    return {positive, negative};
  }

  Keep keep_;
};

}  // namespace

StageInfo adaq_stage() {
  StageInfo stage;
  stage.name = "adaq";
  stage.id = 22;
  stage.summary =
      "a fraction of the elements of each sign, the largest, as two means and one bit each; use "
      "with residual";
  stage.paper =
      "Dryden, Moon, Jacobs, Van Essen: Communication Quantization for Data-Parallel Training of "
      "Deep Neural Networks, MLHPC 2016 (adaptive quantization); as in GRACE (Xu et al., ICDCS "
      "2021), but that the selection is exact";
  stage.nonfinite =
      "NaN ranks above Inf and Inf above all finite values of its sign; when one is kept, all kept "
      "elements become NaN";
  stage.example = "adaq(ratio=0.01)";
  stage.params = {real_param("ratio", nullptr, 0, 1,
                             "fraction of the positive and of the negative elements that is kept; "
                             "each count is rounded to nearest, at least 1",
                             true)};
  stage.exactly_one_of = {"ratio"};
  stage.symbols = Symbols::kIndices;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<AdaQ>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
