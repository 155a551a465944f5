// The chunks of consecutive elements with the largest L1 norms.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "base/chunks.hpp"
#include "codecs/codecs.hpp"
#include "codecs/sparse/keep.hpp"
#include "codecs/sparse/sparse_codec.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Integer key with the order of the norms, NaN above Inf.
std::uint64_t norm_key(double norm) {
  if (std::isnan(norm)) return ~std::uint64_t{0};
  std::uint64_t bits;
  std::memcpy(&bits, &norm, sizeof bits);
  return bits;
}

class ChunkTopK final : public SparseCodec {
 public:
  explicit ChunkTopK(const Recipe& recipe)
      : SparseCodec(recipe, static_cast<std::size_t>(recipe.params.integer("chunk"))),
        keep_(recipe.params),
        chunk_(static_cast<std::size_t>(recipe.params.integer("chunk"))) {}

 private:
  std::size_t min_kept(std::size_t chunks) const noexcept override { return keep_.count(chunks); }
  std::size_t max_kept(std::size_t chunks) const noexcept override { return keep_.count(chunks); }

  Status select(Span<const float> x, const Call& call, Selection* kept) const override {
    const std::size_t chunks = (x.size() + chunk_ - 1) / chunk_;
    const std::size_t k = keep_.count(chunks);
    Span<std::uint64_t> keys = call.scratch->get<std::uint64_t>(0, chunks + 1);
    Span<std::uint64_t> order = call.scratch->get<std::uint64_t>(1, chunks + 1);
    Span<std::uint32_t> indices = call.scratch->get<std::uint32_t>(2, k + 1);
    Span<float> values = call.scratch->get<float>(3, std::min(x.size(), k * chunk_) + 1);
    if (keys.empty() || order.empty() || indices.empty() || values.empty()) {
      return capacity_error("out of memory: choosing among " + std::to_string(chunks) + " chunks");
    }
    for_ranges(x.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
      // Chunks that begin in this range.
      for (std::size_t c = (begin + chunk_ - 1) / chunk_; c * chunk_ < end; ++c) {
        const std::size_t length = std::min(chunk_, x.size() - c * chunk_);
        keys[c] = norm_key(kernels().sum_magnitudes(x.data() + c * chunk_, length));
      }
    });
    std::uint64_t least = 0;
    std::size_t ties = 0;
    if (k > 0) {
      std::copy_n(keys.data(), chunks, order.data());
      std::nth_element(order.begin(), order.begin() + (k - 1), order.begin() + chunks,
                       std::greater<std::uint64_t>());
      least = order[k - 1];
      ties = static_cast<std::size_t>(std::count(order.begin(), order.begin() + k, least));
    }
    std::size_t count = 0;
    std::size_t written = 0;
    for (std::size_t c = 0; c < chunks; ++c) {
      if (keys[c] < least) continue;
      if (keys[c] == least) {
        if (ties == 0) continue;
        --ties;
      }
      const std::size_t length = std::min(chunk_, x.size() - c * chunk_);
      std::memcpy(values.data() + written, x.data() + c * chunk_, 4 * length);
      written += length;
      indices[count++] = static_cast<std::uint32_t>(c);
    }
    *kept = {{indices.data(), count}, {values.data(), written}};
    return {};
  }

  Keep keep_;
  std::size_t chunk_;
};

}  // namespace

StageInfo chunktopk_stage() {
  StageInfo stage;
  stage.name = "chunktopk";
  stage.id = 9;
  stage.summary =
      "chunks of consecutive elements with the largest L1 norms; ties go to the lower index";
  stage.paper =
      "Sun, Feng, Han, Yan, Wen: Optimizing Network Performance for Distributed DNN Training on "
      "GPU Clusters (GradientFlow), 2019, coarse-grained sparse communication";
  stage.nonfinite =
      "a chunk with a NaN ranks above one with an Inf, and that above all finite ones";
  stage.example = "chunktopk(ratio=0.01)";
  stage.params = {
      real_param("ratio", nullptr, 0, 1,
                 "fraction of the chunks that is kept, rounded to nearest, at least one chunk",
                 true),
      integer_param("chunk", "256", 1, kMaxUnit, "elements per chunk"), values_param()};
  stage.exactly_one_of = {"ratio"};
  stage.symbols = Symbols::kIndices;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<ChunkTopK>(recipe);
  };
  return stage;
}

}  // namespace gradcomp
