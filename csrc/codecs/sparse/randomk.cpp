// k elements drawn without replacement, one from each of k parts of the tensor. The parts are equal
// up to one element. The tensor is a ring on which the first part begins at a random element, so
// each element is kept with probability k / n. Indices drawn this way ascend, and need neither
// sorting nor comparing.
#include <algorithm>

#include "base/rng.hpp"
#include "codecs/codecs.hpp"
#include "codecs/sparse/seeded_codec.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// Divides n places into k parts, and draws a place from each.
class Parts {
 public:
  Parts(std::size_t n, std::size_t k, std::uint64_t stream) noexcept
      : stream_(stream), step_(((std::uint64_t{n} << 32) + k - 1) / k) {}

  // Writes offset + place for the parts in [first, last). Returns the end of the output.
  std::uint32_t* draw(std::size_t first, std::size_t last, std::size_t offset,
                      std::uint32_t* out) const noexcept {
    if (step_ > kLargestWithWords) {
      for (; first < last; ++first) {
        const std::size_t begin = first * step_ >> 32;
        const std::size_t size = ((first + 1) * step_ >> 32) - begin;
        *out++ =
            static_cast<std::uint32_t>(offset + begin + scale_draw(draw_at(stream_, first), size));
      }
      return out;
    }
    std::uint32_t words[kPiece];
    while (first < last) {
      const std::size_t block = first / 4 * 4;
      const std::size_t end = std::min(block + kPiece, last);
      kernels().draw_words(stream_, block / 2, words, end - block);
      kernels().choose_places(words + (first - block), first * step_, step_,
                              static_cast<std::uint32_t>(offset), out, end - first);
      out += end - first;
      first = end;
    }
    return out;
  }

  // Number of drawn places below `place`, 0 <= place < n.
  std::size_t count_below(std::size_t place) const noexcept {
    const std::size_t part = part_of(place);
    std::uint32_t drawn = 0;
    draw(part, part + 1, 0, &drawn);
    return part + (drawn < place ? 1 : 0);
  }

 private:
  static constexpr std::size_t kPiece = 1024;
  // For parts of up to 4096 places, one word decides, with a relative error of probabilities of at
  // most 2^-20. For larger parts, which are few, a whole draw decides.
  static constexpr std::uint64_t kLargestWithWords = std::uint64_t{4096} << 32;

  std::size_t part_of(std::size_t place) const noexcept {
    const auto part = static_cast<std::size_t>((std::uint64_t{place} << 32) / step_);
    return (part + 1) * step_ >> 32 <= place ? part + 1
                                             : part;  // the next part may begin a fraction later
  }

  std::uint64_t stream_;
  // Distance between parts, in 2^-32 places; rounded up, so that part k would begin at n.
  std::uint64_t step_;
};

class RandomK final : public SeededCodec {
 public:
  using SeededCodec::SeededCodec;

 private:
  Status choose(std::size_t n, const Call& call, Span<std::uint32_t> indices) const override {
    const std::size_t k = indices.size();
    if (k == 0) return {};
    const Parts parts(n, k, call.stream);
    const auto turn = static_cast<std::size_t>(scale_draw(draw_at(call.stream, k), n));
    // Places from here on wrap around to the tensor's first elements.
    const std::size_t wrap = n - turn;
    const std::size_t before = turn == 0 ? k : parts.count_below(wrap);
    std::uint32_t* const out = parts.draw(before, k, std::size_t{0} - wrap, indices.data());
    parts.draw(0, before, turn, out);
    return {};
  }
};

}  // namespace

StageInfo randomk_stage() {
  StageInfo stage;
  stage.name = "randomk";
  stage.id = 5;
  stage.summary =
      "k elements drawn without replacement, the same on every rank, so no index is sent; unbiased "
      "with unbiased=true";
  stage.paper =
      "Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, NeurIPS 2018, section 2.2, but one "
      "element from each of k equal parts of the tensor, which changes neither the expectation nor "
      "its error; unbiased: Konecny, Richtarik: Randomized Distributed Mean Estimation, Frontiers "
      "2018";
  stage.nonfinite = "kept if drawn; with values=int8 or sign all drawn elements become NaN";
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
