// globaltopk: keeps the elements of largest magnitude of all tensors in a bucket.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/bytes.hpp"
#include "codec/bucket_codec.hpp"
#include "codecs/codecs.hpp"
#include "codecs/sparse/keep.hpp"
#include "codecs/sparse/selection.hpp"
#include "codecs/sparse/sparse_codec.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

std::uint32_t magnitude(float x) { return float_bits(x) & kMagnitudeMask; }

// BucketCall::plan is the number of the tensor's elements that are kept.
class GlobalTopK final : public SparseCodec, public BucketCodec {
 public:
  explicit GlobalTopK(const Recipe& recipe) : SparseCodec(recipe), keep_(recipe.params) {}

  Caps caps() const noexcept override {
    Caps caps = SparseCodec::caps();
    caps.whole_bucket = true;
    return caps;
  }

  const BucketCodec* bucket() const noexcept override { return this; }

  Status plan(Span<const BucketTensor> tensors, const Call& call, Span<std::uint64_t> plans,
              std::unique_ptr<BucketWork>*) const override {
    std::size_t n = 0;
    std::vector<Span<const float>> values;
    for (const BucketTensor& tensor : tensors) {
      n += tensor.x.size();
      values.push_back(tensor.x);
    }
    const std::size_t k = keep_.count(n);
    std::vector<std::uint32_t> reached;  // magnitudes (bits) of the candidates, tensor after tensor
    std::vector<std::size_t> ends;       // end of each tensor's part of `reached`
    GRADCOMP_TRY(find(tensors, guess_threshold({values.data(), values.size()}, k), k, call,
                      &reached, &ends));
    if (reached.size() < k) GRADCOMP_TRY(find(tensors, 0, k, call, &reached, &ends));
    Rank least{0, 0};
    if (k != 0) {
      std::vector<std::uint32_t> work = reached;
      least = kth_largest(work.data(), work.size(), k);
    }
    // Ties keep the first elements, as topk does in a single tensor.
    std::size_t at = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      plans[i] = 0;
      for (; at < ends[i]; ++at) {
        const bool tie = reached[at] == least.number && least.ties > 0;
        if (tie) --least.ties;
        plans[i] += tie || reached[at] > least.number ? 1 : 0;
      }
    }
    return {};
  }

 private:
  std::size_t min_kept(std::size_t) const noexcept override { return 0; }
  std::size_t max_kept(std::size_t n) const noexcept override { return n; }

  Status select(Span<const float> x, const Call& call, Selection* kept) const override {
    const std::uint64_t plan = plan_of(call);
    const std::size_t k = plan == kNoPlan ? keep_.count(x.size())
                                          : std::min(static_cast<std::size_t>(plan), x.size());
    if (k == 0) {
      *kept = {};
      return {};
    }
    return select_largest(x, k, call, kept);
  }

  // Collects the magnitudes of all elements that reach the threshold. From a tensor with very many
  // of them it takes only some, the k largest included.
  static Status find(Span<const BucketTensor> tensors, std::uint32_t threshold, std::size_t k,
                     const Call& call, std::vector<std::uint32_t>* reached,
                     std::vector<std::size_t>* ends) {
    reached->clear();
    ends->clear();
    for (const BucketTensor& tensor : tensors) {
      const Span<const float> x = tensor.x;
      if (!x.empty()) {
        const std::size_t most = std::min(k, x.size());
        Candidates found;
        GRADCOMP_TRY(
            find_candidates(x, threshold, most, 2 * most + 4096, Excess::kLargest, call, &found));
        for (std::size_t i = 0; i < found.size; ++i) reached->push_back(magnitude(found.values[i]));
      }
      ends->push_back(reached->size());
    }
    return {};
  }

  Keep keep_;
};

}  // namespace

StageInfo globaltopk_stage() {
  StageInfo stage;
  stage.name = "globaltopk";
  stage.id = 25;
  stage.summary =
      "the k elements of largest magnitude of all tensors in a bucket, exactly; so layers compete";
  stage.paper =
      "Shi et al.: A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for "
      "Low "
      "Bandwidth Networks, ICDCS 2019; Lin et al.: Deep Gradient Compression, ICLR 2018";
  stage.nonfinite = "NaN ranks above Inf and Inf above all finite values, so they are sent first";
  stage.example = "globaltopk(ratio=0.01)";
  stage.params = {ratio_param(), k_param(), values_param()};
  stage.exactly_one_of = {"ratio", "k"};
  stage.symbols = Symbols::kIndices;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<GlobalTopK>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
