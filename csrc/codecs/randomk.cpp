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

// Bits sorted by at once: the first-level cache holds all places written to.
constexpr unsigned kMostBits = 9;

// Moves the numbers in the order of the `bits` <= kMostBits bits from `shift` on, those of equal
// bits in the order they have. `ends` tells where each run of equal bits ends.
void sort_by(const std::uint32_t* numbers, std::size_t count, unsigned shift, unsigned bits,
             std::uint32_t* sorted, std::uint32_t* ends) {
  const std::uint32_t mask = (1u << bits) - 1;
  std::fill(ends, ends + mask + 1, 0u);
  for (std::size_t i = 0; i < count; ++i) ++ends[numbers[i] >> shift & mask];
  std::uint32_t sum = 0;
  for (std::uint32_t at = 0; at <= mask; ++at) {
    const std::uint32_t size = ends[at];
    ends[at] = sum;
    sum += size;
  }
  for (std::size_t i = 0; i < count; ++i) sorted[ends[numbers[i] >> shift & mask]++] = numbers[i];
}

// Sorts numbers below 2^bits, from the lowest bits on. The result is in one of the two buffers,
// which is returned.
std::uint32_t* sort_cached(std::uint32_t* numbers, std::uint32_t* spare, std::size_t count,
                           unsigned bits) {
  std::uint32_t ends[std::size_t{1} << kMostBits];
  const unsigned passes = (bits + kMostBits - 1) / kMostBits;
  for (unsigned pass = 0; pass < passes; ++pass) {
    const unsigned shift = bits * pass / passes;
    sort_by(numbers, count, shift, bits * (pass + 1) / passes - shift, spare, ends);
    std::swap(numbers, spare);
  }
  return numbers;
}

// As sort_cached, for any count: splits many numbers by their upper bits into parts that a cache
// holds.
std::uint32_t* sort(std::uint32_t* numbers, std::uint32_t* spare, std::size_t count,
                    unsigned bits) {
  constexpr unsigned kUpper = 8;
  constexpr std::size_t kCached = 32768;
  if (count <= kCached || bits <= kUpper) return sort_cached(numbers, spare, count, bits);
  std::uint32_t ends[std::size_t{1} << kUpper];
  sort_by(numbers, count, bits - kUpper, kUpper, spare, ends);
  std::size_t begin = 0;
  for (const std::uint32_t end : ends) {
    std::uint32_t* const part = spare + begin;
    const std::size_t size = end - begin;
    const std::uint32_t* const sorted = sort_cached(part, numbers + begin, size, bits - kUpper);
    if (sorted != part) std::memcpy(part, sorted, 4 * size);
    begin = end;
  }
  return spare;
}

// Adds `count` ascending numbers to an ascending set of `size`, which has room for all. Returns the
// new size.
std::size_t insert(std::uint32_t* more, std::size_t count, std::uint32_t* set, std::size_t size) {
  const auto present = [&](std::uint32_t number) {
    return std::binary_search(set, set + size, number);
  };
  count = static_cast<std::size_t>(std::unique(more, more + count) - more);
  count = static_cast<std::size_t>(std::remove_if(more, more + count, present) - more);
  // From the end on, so that what moves overwrites nothing that has not.
  std::uint32_t* from = set + size;
  std::uint32_t* to = from + count;
  for (std::size_t i = count; i > 0; --i) {
    std::uint32_t* const after = std::lower_bound(set, from, more[i - 1]);
    const auto length = static_cast<std::size_t>(from - after);
    to -= length;
    std::memmove(to, after, 4 * length);
    *--to = more[i - 1];
    from = after;
  }
  return size + count;
}

// Writes a set of draws, ascending. `drawn` and `spare` have room for as many. For few of many.
void draw_sorted(std::size_t n, std::uint64_t stream, Span<std::uint32_t> set, std::uint32_t* drawn,
                 std::uint32_t* spare) {
  const unsigned bits = 64u - static_cast<unsigned>(__builtin_clzll(n));
  Draws draws(n, stream);
  for (std::size_t size = 0; size < set.size();) {
    // As many as are missing: however many of them are new, none is too much.
    const std::size_t count = set.size() - size;
    draws.take(drawn, count);
    std::uint32_t* const sorted = sort(drawn, spare, count, bits);
    size = size == 0 ? static_cast<std::size_t>(
                           std::unique_copy(sorted, sorted + count, set.data()) - set.data())
                     : insert(sorted, count, set.data(), size);
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
    const std::size_t k = indices.size();
    if (k == 0) return {};
    const bool complement = k > n / 2;
    const std::size_t draws = complement ? n - k : k;
    // Sorting takes time for every draw, marking bits for every element too.
    constexpr std::size_t kSparse = 32;
    if (!complement && k <= n / kSparse) {
      Span<std::uint32_t> drawn = call.scratch->get<std::uint32_t>(0, k + 1);
      Span<std::uint32_t> spare = call.scratch->get<std::uint32_t>(1, k + 1);
      if (drawn.empty() || spare.empty()) return no_memory(k, 8 * k);
      draw_sorted(n, call.stream, indices, drawn.data(), spare.data());
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
