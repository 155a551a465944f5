#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "coding/lloyd_max.hpp"
#include "coding/rotation.hpp"
#include "support.hpp"

namespace gradcomp::test {
namespace {

bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

std::vector<std::uint32_t> words(std::size_t n, std::uint64_t seed) {
  std::vector<std::uint32_t> out(n);
  kScalarKernels.random_words(seed, 0, out.data(), n);
  return out;
}

// Ordinary magnitudes; their sums do not overflow.
std::vector<float> ordinary(std::size_t n, std::uint64_t seed) {
  const std::vector<std::uint32_t> draws = words(n, seed);
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(draws[i] >> 8) * 0x1p-22f - 2.0f;
  return x;
}

double squares(const std::vector<float>& x) {
  double sum = 0;
  for (float value : x) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

constexpr std::size_t kSizes[] = {1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 100, 1000, 4097};

}  // namespace

TEST_CASE("rotating and quantizing are the same on every level") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    const Kernels& level = kernels();
    const Kernels& scalar = kScalarKernels;
    CAPTURE(name);
    for (unsigned log2 = 0; log2 <= 13; ++log2) {
      std::vector<float> a = ordinary(std::size_t{1} << log2, log2);
      std::vector<float> b = a;
      level.hadamard(a.data(), log2);
      scalar.hadamard(b.data(), log2);
      CHECK(same_floats(a, b));
    }
    for (std::size_t n : kSizes) {
      CAPTURE(n);
      const std::vector<float> x = ordinary(n, n);
      const std::vector<std::uint32_t> noise = words(n, n + 1);
      std::vector<float> a(n), b(n);
      level.flip_signs(x.data(), noise.data(), 0.3f, a.data(), n);
      scalar.flip_signs(x.data(), noise.data(), 0.3f, b.data(), n);
      CHECK(same_floats(a, b));
      std::vector<std::uint8_t> s(n), t(n);
      for (unsigned bits = 1; bits <= 8; ++bits) {
        CAPTURE(bits);
        const auto top = static_cast<float>((1u << bits) - 1);
        for (const std::uint32_t* draws :
             {static_cast<const std::uint32_t*>(nullptr), noise.data()}) {
          level.quantize_uniform(x.data(), 0.3f * top, top, draws, s.data(), n);
          scalar.quantize_uniform(x.data(), 0.3f * top, top, draws, t.data(), n);
          CHECK(s == t);
        }
        const Centroids centroids(bits, lloyd_max_centroids(bits));
        for (float scale : {1.0f, 4.0f, 40.0f}) {
          for (bool energy : {false, true}) {
            const CentroidSums p =
                level.quantize_centroids(x.data(), scale, centroids, energy, s.data(), n);
            const CentroidSums q =
                scalar.quantize_centroids(x.data(), scale, centroids, energy, t.data(), n);
            CHECK(s == t);
            CHECK(p.dot == q.dot);
            CHECK(p.energy == q.energy);
          }
        }
        float table[256];
        for (int k = 0; k < 256; ++k) table[k] = static_cast<float>(k) - 3.5f;
        level.look_up(s.data(), table, bits, a.data(), n);
        scalar.look_up(s.data(), table, bits, b.data(), n);
        CHECK(same_floats(a, b));
      }
    }
  }
}

TEST_CASE("the nearest centroid is found") {
  for (unsigned bits = 1; bits <= 8; ++bits) {
    const Span<const float> positive = lloyd_max_centroids(bits);
    const Centroids centroids(bits, positive);
    for (std::size_t i = 0; i + 1 < positive.size(); ++i) {
      const float bound = 0.5f * (positive[i] + positive[i + 1]);
      CHECK(centroids.level(bound) == i);
      CHECK(centroids.level(std::nextafterf(bound, 100.0f)) == i + 1);
    }
    CHECK(centroids.level(0.0f) == 0);
    CHECK(centroids.level(1e30f) == positive.size() - 1);
  }
}

TEST_CASE("a rotation keeps lengths, spreads spikes and is undone by its inverse") {
  for (std::size_t n :
       {0u, 1u, 2u, 3u, 64u, 100u, 127u, 4095u, 4096u, 4097u, 6000u, 8192u, 20000u}) {
    CAPTURE(n);
    const Rotation rotation(n, 5);
    std::size_t covered = 0;
    std::size_t groups = 0;
    for (std::size_t tile = 0; tile < rotation.tiles(); ++tile) {
      CHECK(rotation.tile_begin(tile) == covered);
      const std::size_t size = rotation.tile_size(tile);
      covered += size;
      groups += rotation.first_group(tile) == size ? 1 : 2;
      REQUIRE(size <= Rotation::kMaxTile);
      const std::vector<float> x = ordinary(size, tile);
      std::vector<float> y(size);
      rotation.forward(tile, x.data(), y.data());
      CHECK(squares(y) == doctest::Approx(squares(x)).epsilon(1e-5));
      std::vector<float> in_place = x;
      rotation.forward(tile, in_place.data(), in_place.data());
      CHECK(same_floats(in_place, y));
      rotation.inverse(tile, y.data());
      for (std::size_t i = 0; i < size; ++i) CHECK(std::fabs(y[i] - x[i]) < 1e-5f);
      std::vector<float> spike(size, 0.0f);
      spike[size / 2] = 1;
      rotation.forward(tile, spike.data(), spike.data());
      float largest = 0;
      for (float value : spike) largest = std::fmax(largest, std::fabs(value));
      if (size >= 4096) CHECK(largest < 0.08f);
    }
    CHECK(covered == n);
    CHECK(groups == rotation.groups());
  }
}

}  // namespace gradcomp::test
