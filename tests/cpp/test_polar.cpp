#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "kernels/polar.hpp"
#include "polar/bec_order.hpp"
#include "polar/block_coder.hpp"
#include "polar/elementary.hpp"
#include "polar/lattice_step.hpp"
#include "polar/list_coder.hpp"
#include "support.hpp"

namespace gradcomp::test {
namespace {

constexpr std::uint32_t kHalf = 1u << 30;  // an erasure probability of 1/2

std::vector<std::uint64_t> random_bits(std::size_t n, std::uint64_t seed) {
  std::vector<std::uint64_t> out(n);
  kScalarKernels.random_words(seed, 0, reinterpret_cast<std::uint32_t*>(out.data()), 2 * n);
  return out;
}

// LLRs of all magnitudes up to `most`, with many ties.
std::vector<std::int8_t> random_llr(std::size_t rows, int most, std::uint64_t seed) {
  std::vector<std::int8_t> llr(kLanes * rows);
  std::vector<std::uint32_t> draws(llr.size());
  kScalarKernels.random_words(seed, 0, draws.data(), draws.size());
  for (std::size_t i = 0; i < llr.size(); ++i) {
    llr[i] = static_cast<std::int8_t>(static_cast<int>(draws[i] % (2u * most + 1)) - most);
  }
  return llr;
}

struct Encoded {
  std::vector<std::uint64_t> bits;
  std::vector<std::uint8_t> words;
};

Encoded encode(const std::vector<SubtreeKind>& tree, unsigned log2, std::size_t count,
               const std::vector<std::int8_t>& llr) {
  Encoded encoded{std::vector<std::uint64_t>(llr.size() / kLanes),
                  std::vector<std::uint8_t>(8 * count)};
  std::vector<std::int8_t> work(llr.size());
  polar_encode(tree.data(), log2, llr.data(), work.data(), encoded.bits.data(),
               encoded.words.data());
  return encoded;
}

Encoded list_encode(const std::vector<SubtreeKind>& tree, unsigned log2, std::size_t count,
                    const std::vector<std::int8_t>& llr) {
  Encoded encoded{std::vector<std::uint64_t>(llr.size() / kLanes),
                  std::vector<std::uint8_t>(8 * count)};
  std::vector<std::int8_t> paths(llr.size()), work(llr.size());
  std::vector<std::uint64_t> bits(encoded.bits.size());
  polar_list_encode(tree.data(), log2, llr.data(), {paths.data(), work.data(), bits.data()},
                    encoded.bits.data(), encoded.words.data());
  return encoded;
}

std::vector<SubtreeKind> tree_of(unsigned log2, std::size_t count, std::uint32_t erasure) {
  std::vector<SubtreeKind> tree(std::size_t{2} << log2);
  find_subtree_kinds(bec_ranks(log2, erasure, std::size_t{1} << log2).data(), log2, count,
                     tree.data());
  return tree;
}

// Returns the result of the scalar level. Checks that all levels agree, and that it decodes to the
// codewords of the encoder.
Encoded check_levels(decltype(encode) encoder, const std::vector<SubtreeKind>& tree, unsigned log2,
                     std::size_t count, const std::vector<std::int8_t>& llr) {
  Encoded scalar;
  {
    LevelScope scope("scalar");
    scalar = encoder(tree, log2, count, llr);
  }
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    CAPTURE(name);
    const Encoded encoded = encoder(tree, log2, count, llr);
    CHECK(encoded.bits == scalar.bits);
    CHECK(encoded.words == scalar.words);
    std::vector<std::uint64_t> decoded(encoded.bits.size());
    polar_decode(tree.data(), log2, encoded.words.data(), decoded.data());
    CHECK(decoded == scalar.bits);
  }
  return scalar;
}

// Inputs of a codeword: the transform is its own inverse.
std::vector<std::uint64_t> inputs(std::vector<std::uint64_t> bits) {
  for (std::size_t half = 1; half < bits.size(); half *= 2) {
    for (std::size_t i = 0; i < bits.size(); ++i) {
      if ((i & half) == 0) bits[i] ^= bits[i + half];
    }
  }
  return bits;
}

}  // namespace

TEST_CASE("inputs are ranked as on the erasure channel") {
  // Z of the 8 inputs at 1/2, in 256ths of 256: 255.0 225.0 207.0 81.0 175.0 49.0 31.0 1.0.
  CHECK(bec_ranks(3, kHalf, 8) == std::vector<std::uint16_t>{7, 6, 5, 3, 4, 2, 1, 0});
  // If all inputs are equally good, the last ones come first.
  CHECK(bec_ranks(2, 0, 4) == std::vector<std::uint16_t>{3, 2, 1, 0});
  CHECK(bec_ranks(2, 1u << 31, 4) == std::vector<std::uint16_t>{3, 2, 1, 0});
  // The second half is erased with certainty, so the inputs of the first half are useless.
  CHECK(bec_ranks(2, kHalf, 2) == std::vector<std::uint16_t>{3, 2, 1, 0});
  for (unsigned log2 : {2u, 5u, 14u}) {
    const std::vector<std::uint16_t> ranks = bec_ranks(log2, kHalf + 12345, 3u << log2 >> 2);
    std::vector<bool> seen(ranks.size());
    for (std::uint16_t rank : ranks) {
      CHECK(!seen[rank]);
      seen[rank] = true;
    }
  }
}

TEST_CASE("subtrees of simple codes have their kinds") {
  // Inputs 3, 5, 6 and 7 are free: (frozen frozen frozen free) (frozen free free free).
  const std::vector<SubtreeKind> tree = tree_of(3, 4, kHalf);
  CHECK(tree[1] == SubtreeKind::kSplit);
  CHECK(tree[2] == SubtreeKind::kRepetition);
  CHECK(tree[3] == SubtreeKind::kParity);
  CHECK(tree_of(9, 1, kHalf)[1] == SubtreeKind::kSplit);
  CHECK(tree_of(8, 1, kHalf)[1] == SubtreeKind::kRepetition);
  CHECK(tree_of(7, 127, kHalf)[1] == SubtreeKind::kSplit);
  CHECK(tree_of(6, 63, kHalf)[1] == SubtreeKind::kParity);
  CHECK(tree_of(10, 1024, kHalf)[1] == SubtreeKind::kFree);
  CHECK(tree_of(10, 0, kHalf)[1] == SubtreeKind::kFrozen);
}

TEST_CASE("polar kernels are the same on every level") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    CAPTURE(name);
    const PolarKernels& level = *kernels().polar;
    const PolarKernels& scalar = kScalarPolarKernels;
    for (std::size_t rows : {1u, 2u, 3u, 4u, 7u, 8u, 33u, 64u, 256u}) {
      for (int most : {1, 5, 127}) {
        CAPTURE(rows);
        CAPTURE(most);
        const std::vector<std::int8_t> llr = random_llr(2 * rows, most, rows);
        const std::vector<std::uint64_t> bits = random_bits(2 * rows, rows + 1);
        std::vector<std::int8_t> a(kLanes * rows), b(kLanes * rows);
        level.check(llr.data(), a.data(), rows);
        scalar.check(llr.data(), b.data(), rows);
        CHECK(a == b);
        level.add(llr.data(), bits.data(), a.data(), rows);
        scalar.add(llr.data(), bits.data(), b.data(), rows);
        CHECK(a == b);
        level.add_frozen(llr.data(), a.data(), rows);
        scalar.add_frozen(llr.data(), b.data(), rows);
        CHECK(a == b);
        CHECK(level.agreement(llr.data(), bits.data(), rows) ==
              scalar.agreement(llr.data(), bits.data(), rows));
        std::vector<std::uint64_t> c(rows), d(rows);
        level.decide(llr.data(), c.data(), rows);
        scalar.decide(llr.data(), d.data(), rows);
        CHECK(c == d);
        level.decide_repetition(llr.data(), c.data(), rows);
        scalar.decide_repetition(llr.data(), d.data(), rows);
        CHECK(c == d);
        std::vector<std::int32_t> e(kLanes, 1 << 26), f = e;
        level.penalties(llr.data(), bits.data(), e.data(), 2 * rows);
        scalar.penalties(llr.data(), bits.data(), f.data(), 2 * rows);
        CHECK(e == f);
        std::vector<std::uint8_t> from(kLanes);
        for (std::size_t i = 0; i < kLanes; ++i) {
          from[i] = static_cast<std::uint8_t>(i / kPaths * kPaths + bits[0] % (i + 7) % kPaths);
        }
        level.move_llr(from.data(), a.data(), rows);
        scalar.move_llr(from.data(), b.data(), rows);
        CHECK(a == b);
        level.move_bits(from.data(), c.data(), rows);
        scalar.move_bits(from.data(), d.data(), rows);
        CHECK(c == d);
        level.xor_words(c.data(), bits.data(), rows);
        scalar.xor_words(d.data(), bits.data(), rows);
        CHECK(c == d);
        if (rows > 64) continue;
        level.decide_parity(llr.data(), c.data(), rows);
        scalar.decide_parity(llr.data(), d.data(), rows);
        CHECK(c == d);
      }
    }
    // The largest sums of 256 equal rows, of either sign.
    const std::vector<std::int8_t> most(kLanes * 256, 127), least(kLanes * 256, -127);
    std::vector<std::uint64_t> word(256);
    level.decide_repetition(most.data(), word.data(), 256);
    CHECK(word[255] == 0);
    level.decide_repetition(least.data(), word.data(), 256);
    CHECK(word[255] == ~std::uint64_t{0});
  }
}

TEST_CASE("lattice kernels are the same on every level") {
  const LatticeRule rule = LatticeDesign(0.5).rule();
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    CAPTURE(name);
    const PolarKernels& level = *kernels().polar;
    const PolarKernels& scalar = kScalarPolarKernels;
    for (std::size_t n : {1u, 31u, 63u, 64u, 65u, 100u, 128u, 2048u, 2112u, 4096u, 5000u}) {
      // From rates at which nearly all indices are 0 to places beyond the last one.
      for (float scale : {0x1p-23f, 0x1p-18f, 0x1p-10f}) {
        CAPTURE(n);
        CAPTURE(scale);
        const std::size_t rows = (n + kLanes - 1) / kLanes;
        std::vector<std::uint32_t> draws(n);
        kScalarKernels.random_words(n, 0, draws.data(), n);
        std::vector<float> x(n);
        for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(draws[i] >> 8) - 0x1p23f;
        if (n > 40) x[33] = -0.0f, x[34] = std::nanf(""), x[35] = -1e38f;
        const std::vector<std::uint64_t> mask = random_bits(rows, n);
        std::vector<std::int16_t> places(n), other_places(n);
        std::vector<std::int8_t> llr(n), other_llr(n);
        CHECK(level.lattice_places(x.data(), mask.data(), scale, rule, places.data(), llr.data(),
                                   n) == scalar.lattice_places(x.data(), mask.data(), scale, rule,
                                                               other_places.data(),
                                                               other_llr.data(), n));
        CHECK(places == other_places);
        CHECK(llr == other_llr);
        std::vector<std::uint8_t> indices(n), other_indices(n);
        const LatticeSums a =
            level.lattice_indices(places.data(), mask.data(), rule, indices.data(), n);
        const LatticeSums b =
            scalar.lattice_indices(places.data(), mask.data(), rule, other_indices.data(), n);
        CHECK(a.product == b.product);
        CHECK(a.energy == b.energy);
        CHECK(indices == other_indices);
        std::vector<float> y(n), z(n);
        level.lattice_points(indices.data(), mask.data(), 0.3f, y.data(), n);
        scalar.lattice_points(indices.data(), mask.data(), 0.3f, z.data(), n);
        CHECK(y == z);
      }
    }
    // The largest sums.
    const std::size_t n = 4 * 2048;
    std::vector<std::int16_t> places(n, 4079);
    const std::vector<std::uint64_t> ones(n / kLanes, ~std::uint64_t{0});
    std::vector<std::uint8_t> indices(n);
    const LatticeSums sums =
        level.lattice_indices(places.data(), ones.data(), rule, indices.data(), n);
    CHECK(indices[n - 1] == 255);
    CHECK(sums.product == std::int64_t{8159 * 511} * static_cast<std::int64_t>(n));
    CHECK(sums.energy == std::int64_t{511 * 511} * static_cast<std::int64_t>(n));
  }
}

TEST_CASE("log-likelihood ratios are the same on every level") {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x(kLanes * 5 + 37);
  std::vector<std::uint32_t> draws(x.size());
  kScalarKernels.random_words(3, 0, draws.data(), draws.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(draws[i] >> 8) - 0x1p23f;
  std::vector<std::uint64_t> mask = random_bits((x.size() + kLanes - 1) / kLanes, 3);
  // The elements below keep their signs.
  for (std::size_t i : {0, 1, 40, 41, 50, 350}) {
    mask[i / kLanes] &= ~(std::uint64_t{1} << i % kLanes);
  }
  x[0] = 0.5f * 0x1p16f;  // ties
  x[1] = 1.5f * 0x1p16f;
  x[40] = 1e20f;
  x[41] = -1e20f;
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    CAPTURE(name);
    for (float bad : {0.0f, inf, -inf, std::nanf("")}) {
      for (std::size_t place : {50u, 350u}) {
        std::vector<float> y = x;
        y[place] = bad;
        std::vector<std::int8_t> a(y.size()), b(y.size());
        const float p =
            kernels().polar->quantize(y.data(), mask.data(), 0x1p-16f, a.data(), y.size());
        const float q =
            kScalarPolarKernels.quantize(y.data(), mask.data(), 0x1p-16f, b.data(), y.size());
        CHECK(a == b);
        CHECK(std::isfinite(p) == (bad == 0.0f));
        CHECK((p == q || bad != 0.0f));
        CHECK(a[place] == (bad == 0.0f ? 0 : bad < 0 ? -127 : 127));
        CHECK(a[0] == 0);
        CHECK(a[1] == 2);
        CHECK(a[40] == 127);
        CHECK(a[41] == -127);
      }
    }
  }
}

// Calls check(tree, log2, count, most, llr) for codes of some lengths, numbers of free inputs and
// log-likelihood ratios of at most `most`.
template <typename Check>
void each_block(std::initializer_list<unsigned> lengths, Check&& check) {
  for (unsigned log2 : lengths) {
    const std::size_t n = std::size_t{1} << log2;
    for (std::size_t count : {std::size_t{1}, n / 16, n / 4, n / 2, n - 1, n}) {
      if (count == 0) continue;
      const std::vector<SubtreeKind> tree = tree_of(log2, count, kHalf);
      for (int most : {2, 30, 127}) {
        CAPTURE(log2);
        CAPTURE(count);
        CAPTURE(most);
        check(tree, log2, count, most, random_llr(n, most, count));
      }
    }
  }
}

TEST_CASE("blocks are codewords, the same on every level, and decode to the encoder's bits") {
  each_block({0u, 1u, 3u, 6u, 9u, 12u},
             [](const std::vector<SubtreeKind>& tree, unsigned log2, std::size_t count, int,
                const std::vector<std::int8_t>& llr) {
               const std::size_t n = std::size_t{1} << log2;
               const Encoded encoded = check_levels(encode, tree, log2, count, llr);
               const std::vector<std::uint16_t> ranks = bec_ranks(log2, kHalf, n);
               const std::vector<std::uint64_t> u = inputs(encoded.bits);
               bool frozen_are_zero = true;
               for (std::size_t i = 0; i < n; ++i) {
                 frozen_are_zero &= ranks[i] < count || u[i] == 0;
               }
               CHECK(frozen_are_zero);
             });
}

TEST_CASE("lists find codewords too, the same on every level, that agree better with the ratios") {
  each_block({0u, 1u, 3u, 6u, 9u},
             [](const std::vector<SubtreeKind>& tree, unsigned log2, std::size_t count, int most,
                const std::vector<std::int8_t>& llr) {
               const std::size_t n = std::size_t{1} << log2;
               const Encoded encoded = check_levels(list_encode, tree, log2, count, llr);
               if (most > 2) return;  // penalties are right as long as no ratio is limited
               const Encoded single = encode(tree, log2, count, llr);
               CHECK(kernels().polar->agreement(llr.data(), encoded.bits.data(), n) >=
                     kernels().polar->agreement(llr.data(), single.bits.data(), n));
             });
}

TEST_CASE("a list of as many paths as there are codewords finds the best one") {
  // 3 free inputs of 8: 8 codewords.
  const std::vector<SubtreeKind> tree = tree_of(3, 3, kHalf);
  const std::vector<std::int8_t> llr = random_llr(8, 20, 5);  // too small to be limited
  const Encoded encoded = list_encode(tree, 3, 3, llr);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    int best = -(1 << 20), found = 0;
    for (std::uint64_t message = 0; message < 8; ++message) {
      const std::uint64_t words[3] = {message & 1, message >> 1 & 1, message >> 2};
      std::uint64_t bits[8];
      polar_decode(tree.data(), 3, reinterpret_cast<const std::uint8_t*>(words), bits);
      int sum = 0;
      for (std::size_t i = 0; i < 8; ++i) {
        sum += bits[i] != 0 ? -llr[kLanes * i + lane] : llr[kLanes * i + lane];
      }
      best = std::max(best, sum);
    }
    for (std::size_t i = 0; i < 8; ++i) {
      const int one = llr[kLanes * i + lane];
      found += (encoded.bits[i] >> lane & 1) != 0 ? -one : one;
    }
    CHECK(found == best);
  }
}

TEST_CASE("portable functions agree with the standard library") {
  for (double x = -30; x < 30; x += 0.37) {
    CHECK(portable_exp(x) == doctest::Approx(std::exp(x)).epsilon(1e-10));
    CHECK(portable_exp2(x) == doctest::Approx(std::exp2(x)).epsilon(1e-10));
    CHECK(portable_log2(std::exp2(x)) == doctest::Approx(x).epsilon(1e-10));
  }
  CHECK(portable_log2(1.0) == 0.0);
}

}  // namespace gradcomp::test
