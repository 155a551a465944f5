// k elements drawn without replacement: the first k different ones of a sequence of independent
// uniform draws from the call's stream; when k > n/2 the n - k elements left out are drawn instead.
#include <algorithm>
#include <cstring>
#include <string>

#include "codecs/codecs.hpp"
#include "codecs/seeded.hpp"
#include "core/rng.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

// The draws below n of a stream, one after the other.
class Draws {
 public:
  Draws(std::size_t n, std::uint64_t stream) noexcept : n_(n), stream_(stream) {}

  void take(std::uint32_t* out, std::size_t count) noexcept {
    while (count > 0) {
      if (at_ == kPiece) {
        kernels().draw_words(stream_, first_, words_, 2 * kPiece);
        first_ += kPiece;
        at_ = 0;
      }
      const std::size_t piece = std::min(count, kPiece - at_);
      const std::uint32_t* const words = words_ + 2 * at_;
      for (std::size_t i = 0; i < piece; ++i) {
        const std::uint64_t draw = std::uint64_t{words[2 * i + 1]} << 32 | words[2 * i];
        out[i] = static_cast<std::uint32_t>(scale_draw(draw, n_));
      }
      at_ += piece;
      out += piece;
      count -= piece;
    }
  }

 private:
  static constexpr std::size_t kPiece = 512;

  std::size_t n_;
  std::uint64_t stream_;
  std::uint64_t first_ = 0;
  std::size_t at_ = kPiece;  // the next of the draws at hand
  std::uint32_t words_[2 * kPiece];
};

// Writes base + the position of each one, ascending. Returns where they end; there must be room for
// one more, even if the word is 0.
inline std::uint32_t* list_word(std::uint64_t word, std::uint32_t base, std::uint32_t* positions) {
  const auto take = [&] {
    const auto bit = static_cast<unsigned>(__builtin_ctzll(word | std::uint64_t{1} << 63));
    *positions = base + bit;
    positions += word != 0 ? 1 : 0;
    word &= word - 1;
  };
  // Twice without a branch: whether a word of a sparse set has any is as good as random.
  take();
  take();
  while (word != 0) take();
  return positions;
}

// Sorts different parts of a set of numbers one after the other: as bits of a window so small that
// the second-level cache holds it, and a summary, which tells the window's words that are not 0.
class Window {
 public:
  // How many numbers a window spans, so that there are at most kMost windows of numbers below n.
  static unsigned log2_span(std::size_t n) noexcept {
    const unsigned bits = 64u - static_cast<unsigned>(__builtin_clzll(n));
    return std::max(bits, kMostLog2 + kLeastLog2) - kMostLog2;
  }
  static constexpr std::size_t kMost = 256;

  // What the constructor wants for numbers below n.
  static std::size_t words(std::size_t n) noexcept { return 65 * summary_size(n); }

  Window(std::size_t n, std::uint64_t* words) noexcept
      : mask_((1u << log2_span(n)) - 1),
        summary_size_(summary_size(n)),
        summary_(words),
        bits_(words + summary_size_) {
    std::fill(words, words + Window::words(n), std::uint64_t{0});
  }

  // Writes the different ones of some numbers of one window, ascending. Returns where they end;
  // there must be room for one more.
  std::uint32_t* sort(const std::uint32_t* numbers, std::size_t count,
                      std::uint32_t* sorted) noexcept {
    if (count == 0) return sorted;
    const std::uint32_t base = numbers[0] & ~mask_;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t at = numbers[i] & mask_;
      bits_[at / 64] |= std::uint64_t{1} << at % 64;
      summary_[at / 4096] |= std::uint64_t{1} << at / 64 % 64;
    }
    for (std::size_t i = 0; i < summary_size_; ++i) {
      std::uint64_t marked = summary_[i];
      summary_[i] = 0;
      for (; marked != 0; marked &= marked - 1) {
        const std::size_t w = 64 * i + static_cast<unsigned>(__builtin_ctzll(marked));
        sorted = list_word(bits_[w], base + static_cast<std::uint32_t>(64 * w), sorted);
        bits_[w] = 0;
      }
    }
    return sorted;
  }

 private:
  static constexpr unsigned kMostLog2 = 8;
  static constexpr unsigned kLeastLog2 = 20;

  static std::size_t summary_size(std::size_t n) noexcept {
    return (std::min(n, std::size_t{1} << log2_span(n)) + 4095) / 4096;
  }

  std::uint32_t mask_;
  std::size_t summary_size_;
  std::uint64_t* summary_;
  std::uint64_t* bits_;
};

// Adds `count` ascending numbers to an ascending set of `size`, which has room for all. `places`
// has room for as many. Returns the new size.
std::size_t insert(std::uint32_t* more, std::size_t count, std::uint32_t* places,
                   std::uint32_t* set, std::size_t size) {
  std::size_t fresh = 0;
  std::size_t place = 0;
  for (std::size_t i = 0; i < count; ++i) {
    // Each is a little after the one before.
    std::size_t step = 1;
    while (place + step < size && set[place + step] < more[i]) step *= 2;
    std::uint32_t* const end = set + std::min(place + step, size);
    place = static_cast<std::size_t>(std::lower_bound(set + place, end, more[i]) - set);
    const bool present =
        (place < size && set[place] == more[i]) || (fresh > 0 && more[fresh - 1] == more[i]);
    more[fresh] = more[i];
    places[fresh] = static_cast<std::uint32_t>(place);
    fresh += present ? 0 : 1;
  }
  // From the end on, so that what moves overwrites nothing that has not.
  std::size_t from = size;
  for (std::size_t i = fresh; i > 0; --i) {
    place = places[i - 1];
    std::memmove(set + place + i, set + place, 4 * (from - place));
    set[place + i - 1] = more[i - 1];
    from = place;
  }
  return size + fresh;
}

// Writes a set of draws, ascending. `drawn` has room for as many, `set` for one more. For few of
// many.
void draw_sorted(std::size_t n, std::uint64_t stream, Span<std::uint32_t> set, std::uint32_t* drawn,
                 std::uint64_t* window_words) {
  const unsigned shift = Window::log2_span(n);
  const std::size_t k = set.size();
  Draws draws(n, stream);
  draws.take(set.data(), k);
  Window window(n, window_words);
  std::uint32_t* sorted = set.data();
  if ((n - 1) >> shift == 0) {
    sorted = window.sort(set.data(), k, sorted);  // reads all before it writes any
  } else {
    std::uint32_t ends[Window::kMost] = {};
    for (std::size_t i = 0; i < k; ++i) ++ends[set[i] >> shift];
    std::uint32_t sum = 0;
    for (std::uint32_t& end : ends) {
      const std::uint32_t size = end;
      end = sum;
      sum += size;
    }
    for (std::size_t i = 0; i < k; ++i) drawn[ends[set[i] >> shift]++] = set[i];
    std::size_t begin = 0;
    for (const std::uint32_t end : ends) {
      sorted = window.sort(drawn + begin, end - begin, sorted);
      begin = end;
    }
  }
  auto size = static_cast<std::size_t>(sorted - set.data());
  while (size < k) {
    // No more than are missing: however many of them are new, none is too much. And no more than
    // leave room for their places.
    const std::size_t count = std::min(k - size, (k + 1) / 2);
    draws.take(drawn, count);
    std::sort(drawn, drawn + count);
    size = insert(drawn, count, drawn + count, set.data(), size);
  }
}

// Marks a set of `size` draws among n bits.
void draw_bits(std::size_t n, std::uint64_t stream, std::size_t size, std::uint64_t* bits) {
  constexpr std::size_t kPiece = 256;
  std::uint32_t drawn[kPiece];
  Draws draws(n, stream);
  while (size > 0) {
    const std::size_t count = std::min(kPiece, size);
    draws.take(drawn, count);
    for (std::size_t i = 0; i < count; ++i) __builtin_prefetch(bits + drawn[i] / 64, 1);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t& word = bits[drawn[i] / 64];
      size -= ~word >> drawn[i] % 64 & 1;
      word |= std::uint64_t{1} << drawn[i] % 64;
    }
  }
}

// Writes the positions of all ones, ascending; `positions` has room for one more.
void list_bits(const std::uint64_t* bits, std::size_t words, std::uint32_t* positions) {
  for (std::size_t w = 0; w < words; ++w) {
    positions = list_word(bits[w], static_cast<std::uint32_t>(64 * w), positions);
  }
}

class RandomK final : public SeededCodec {
 public:
  using SeededCodec::SeededCodec;

 private:
  Status choose(std::size_t n, const Call& call, Span<std::uint32_t> indices) const override {
    const std::size_t k = indices.size();
    if (k == 0) return {};
    const bool complement = k > n / 2;
    const std::size_t draws = complement ? n - k : k;
    // Sorting takes time for every draw, listing all bits for every element too.
    constexpr std::size_t kSparse = 32;
    if (!complement && k <= n / kSparse) {
      const std::size_t words = Window::words(n);
      Span<std::uint32_t> drawn = call.scratch->get<std::uint32_t>(0, k + 1);
      Span<std::uint64_t> window = call.scratch->get<std::uint64_t>(1, words);
      if (drawn.empty() || window.empty()) return no_memory(k, 4 * k + 8 * words);
      draw_sorted(n, call.stream, indices, drawn.data(), window.data());
      return {};
    }
    const std::size_t words = (n + 63) / 64;
    Span<std::uint64_t> bits = call.scratch->get<std::uint64_t>(0, words + 1);
    if (bits.empty()) return no_memory(k, 8 * words);
    std::fill(bits.begin(), bits.end(), std::uint64_t{0});
    draw_bits(n, call.stream, draws, bits.data());
    if (complement) {
      for (std::uint64_t& word : bits) word = ~word;
      if (n % 64 != 0) bits[words - 1] &= (std::uint64_t{1} << n % 64) - 1;
    }
    list_bits(bits.data(), words, indices.data());
    return {};
  }

  static Status no_memory(std::size_t k, std::size_t bytes) {
    return capacity_error("out of memory: drawing " + std::to_string(k) + " elements needs " +
                          std::to_string(bytes) + " bytes");
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
