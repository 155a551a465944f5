// k elements drawn without replacement.
//
// The subset comes from Floyd's algorithm (Bentley, Floyd: "A Sample of Brilliance", CACM 30(9),
// 1987) on the call's stream; when k > n/2 the n - k elements left out are drawn instead.
#include <algorithm>
#include <string>

#include "codecs/codecs.hpp"
#include "codecs/seeded.hpp"
#include "core/bytes.hpp"
#include "core/rng.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Marks `draws` of the n bits; draws <= n.
void draw_bits(std::size_t n, std::size_t draws, std::uint64_t stream, std::uint64_t* bits) {
  constexpr std::size_t kPiece = 512;
  std::uint32_t words[2 * kPiece];
  std::uint32_t drawn[kPiece];
  for (std::size_t first = 0; first < draws; first += kPiece) {
    const std::size_t count = std::min(kPiece, draws - first);
    const std::size_t bound = n - draws + first;
    kernels().draw_words(stream, first, words, 2 * count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t draw = std::uint64_t{words[2 * i + 1]} << 32 | words[2 * i];
      drawn[i] = static_cast<std::uint32_t>(scale_draw(draw, bound + i + 1));
    }
    for (std::size_t i = 0; i < count; ++i) {
      const bool taken = (bits[drawn[i] / 64] >> drawn[i] % 64 & 1) != 0;
      const std::size_t mark = taken ? bound + i : drawn[i];
      bits[mark / 64] |= std::uint64_t{1} << mark % 64;
    }
  }
}

// Writes the positions of all ones, ascending; `positions` has room for one more.
void list_bits(const std::uint64_t* bits, std::size_t words, std::uint32_t* positions) {
  for (std::size_t w = 0; w < words; ++w) {
    std::uint64_t word = bits[w];
    const auto take = [&] {
      const auto bit = static_cast<unsigned>(__builtin_ctzll(word | std::uint64_t{1} << 63));
      *positions = static_cast<std::uint32_t>(64 * w) + bit;
      positions += word != 0 ? 1 : 0;
      word &= word - 1;
    };
    // Twice without a branch: whether a word of a sparse set has any is as good as random.
    take();
    take();
    while (word != 0) take();
  }
}

class RandomK final : public SeededCodec {
 public:
  using SeededCodec::SeededCodec;

 private:
  Status choose(std::size_t n, const Call& call, Span<std::uint32_t> indices) const override {
    const std::size_t words = (n + 63) / 64;
    Span<std::uint64_t> bits = call.scratch->get<std::uint64_t>(0, words + 1);
    if (bits.empty()) {
      return capacity_error("out of memory: drawing from " + std::to_string(n) +
                            " elements needs " + std::to_string(8 * words) + " bytes");
    }
    const std::size_t k = indices.size();
    const bool complement = k > n / 2;
    std::fill(bits.begin(), bits.end(), std::uint64_t{0});
    draw_bits(n, complement ? n - k : k, call.stream, bits.data());
    if (complement) {
      for (std::uint64_t& word : bits) word = ~word;
      if (n % 64 != 0) bits[words - 1] &= (std::uint64_t{1} << n % 64) - 1;
    }
    list_bits(bits.data(), words, indices.data());
    return {};
  }
};

}  // namespace

StageInfo randomk_stage() {
  StageInfo stage;
  stage.name = "randomk";
  stage.id = 5;
  stage.summary =
      "k elements drawn without replacement, the same on every rank, so no index is sent; with "
      "unbiased=true an unbiased estimate";
  stage.paper =
      "Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018, section 2.2; "
      "unbiased: Konecny, Richtarik: Randomized Distributed Mean Estimation, Frontiers 2018";
  stage.nonfinite = "kept where drawn; with values=int8 or sign all that is drawn becomes NaN";
  stage.example = "randomk(ratio=0.01)";
  stage.params = seeded_params();
  stage.exactly_one_of = {"ratio", "k"};
  stage.refuse = refuse_seeded;
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<RandomK>(recipe.params);
  };
  return stage;
}

}  // namespace gradcomp
