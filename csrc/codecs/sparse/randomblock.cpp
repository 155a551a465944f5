// k consecutive elements from a random position on. The tensor is a ring, so every element is kept
// with the same probability.
#include "base/rng.hpp"
#include "codecs/codecs.hpp"
#include "codecs/sparse/seeded_codec.hpp"

namespace gradcomp {
namespace {

class RandomBlock final : public SeededCodec {
 public:
  using SeededCodec::SeededCodec;

 private:
  Status choose(std::size_t n, const Call& call, Span<std::uint32_t> indices) const override {
    const std::size_t k = indices.size();
    const auto start = static_cast<std::size_t>(Stream(call.stream).below(n));
    const std::size_t wrapped = start + k > n ? start + k - n : 0;
    for (std::size_t i = 0; i < wrapped; ++i) indices[i] = static_cast<std::uint32_t>(i);
    for (std::size_t i = wrapped; i < k; ++i) {
      indices[i] = static_cast<std::uint32_t>(start + i - wrapped);
    }
    return {};
  }
};

}  // namespace

StageInfo randomblock_stage() {
  StageInfo stage;
  stage.name = "randomblock";
  stage.id = 8;
  stage.summary =
      "k consecutive elements from a random position on, the same on every rank, so no index is "
      "sent; unbiased with unbiased=true";
  stage.paper =
      "Vogels, Karimireddy, Jaggi: PowerSGD, NeurIPS 2019, section 4.1 (Random Block); a block "
      "wraps around the tensor's end as in the authors' code";
  stage.nonfinite = "kept inside the block; with values=int8 or sign the whole block becomes NaN";
  stage.example = "randomblock(ratio=0.01)";
  stage.params = seeded_params();
  stage.exactly_one_of = {"ratio", "k"};
  stage.refuse = refuse_seeded;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<RandomBlock>(recipe.params);
  };
  return stage;
}

}  // namespace gradcomp
