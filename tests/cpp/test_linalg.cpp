#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/scratch.hpp"
#include "base/thread_pool.hpp"
#include "kernels/kernels.hpp"
#include "linalg/orthonormalize.hpp"
#include "linalg/products.hpp"
#include "support.hpp"

namespace gradcomp::test {
namespace {

struct Sizes {
  std::size_t rows, cols, rank;
};

// Shapes with whole and partial tiles of every level.
const Sizes kSizes[] = {{1, 1, 1},   {1, 40, 1},   {7, 15, 2},  {8, 16, 4},   {9, 17, 5},
                        {33, 64, 3}, {70, 31, 11}, {19, 75, 6}, {600, 300, 2}};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), sizeof(float) * a.size()) == 0;
}

// All outputs of the products, one after the other.
std::vector<float> products(const Sizes& size) {
  const std::vector<float> grad = floats(size.rows * size.cols, 1, true);
  const std::vector<float> p = floats(size.rows * size.rank, 2, true);
  const std::vector<float> q = floats(size.cols * size.rank, 3, true);
  std::vector<float> all;
  const auto keep = [&](const std::vector<float>& x) { all.insert(all.end(), x.begin(), x.end()); };
  std::vector<float> m = floats(size.rows * size.cols, 4, true);
  std::vector<float> other = m;
  std::vector<float> left(p.size());
  std::vector<float> right(q.size());
  multiply({m.data(), size.rows, size.cols}, {grad.data(), 0.3f}, q.data(), size.rank, left.data());
  multiply_transposed({other.data(), size.rows, size.cols}, {grad.data(), 0.3f}, p.data(),
                      size.rank, right.data());
  CHECK(same_bits(m, other));
  std::vector<float> assigned(m.size());
  outer(p.data(), q.data(), size.rank, size.rows, size.cols, {assigned.data(), nullptr, m.data()});
  outer(p.data(), q.data(), size.rank, size.rows, size.cols, {nullptr, other.data(), nullptr});
  for (const std::vector<float>* x : {&m, &other, &left, &right, &assigned}) keep(*x);
  return all;
}

double dot(const float* x, const float* y, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

void check_orthonormal(const std::vector<float>& v, std::size_t rank) {
  const std::size_t n = v.size() / rank;
  for (std::size_t a = 0; a < rank; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      const double product = dot(v.data() + a * n, v.data() + b * n, n);
      CHECK(std::abs(product - (a == b ? 1 : 0)) < 1e-6);
    }
  }
}

constexpr Orthonormalization kMethods[] = {Orthonormalization::kGramSchmidt,
                                           Orthonormalization::kHouseholder,
                                           Orthonormalization::kCholesky};

}  // namespace

TEST_CASE("products are the same at every level and number of threads") {
  const ThreadScope thread_scope;
  for (const Sizes& size : kSizes) {
    CAPTURE(size.rows);
    set_thread_count(1);
    select_level("scalar");
    const std::vector<float> expected = products(size);
    for (const std::string& level : level_names()) {
      CAPTURE(level);
      select_level(level.c_str());
      for (std::size_t threads : {1, 3, 8}) {
        set_thread_count(threads);
        CHECK(same_bits(products(size), expected));
      }
    }
  }
  select_level(level_names().back().c_str());
}

TEST_CASE("products match their definitions") {
  std::vector<float> m = {1, 2, 3, 4, 5, 6};  // 2 x 3
  const std::vector<float> q = {1, 0, -1, 2, 2, 2};
  std::vector<float> p(4);
  CHECK(multiply({m.data(), 2, 3}, {}, q.data(), 2, p.data()));
  CHECK(p == std::vector<float>{-2, -2, 12, 30});
  std::vector<float> back(6);
  CHECK(multiply_transposed({m.data(), 2, 3}, {}, p.data(), 2, back.data()));
  CHECK(back == std::vector<float>{-10, -14, -18, 132, 174, 216});
  outer(p.data(), q.data(), 2, 2, 3, {nullptr, nullptr, m.data()});
  CHECK(m == std::vector<float>{-21, -22, -23, -54, -55, -56});
  const std::vector<float> ones(6, 1);
  CHECK(multiply({m.data(), 2, 3}, {ones.data(), 2}, q.data(), 2, p.data()));
  CHECK(m == std::vector<float>{-41, -43, -45, -107, -109, -111});
  CHECK(p == std::vector<float>{4, 4, -258, -654});
  CHECK(multiply_transposed({m.data(), 2, 3}, {ones.data(), -1}, p.data(), 2, back.data()));
  CHECK(m == std::vector<float>{42, 44, 46, 108, 110, 112});
  CHECK(back == std::vector<float>{600, 616, 632, -81468, -83292, -85116});
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> grad = {0, 0, 0, 0, inf, 0};
  CHECK(!multiply({m.data(), 2, 3}, {grad.data()}, q.data(), 2, p.data()));
}

TEST_CASE("outer products are the same for every destination and way of writing") {
  constexpr std::size_t kRows = 259;
  constexpr std::size_t kCols = 272;
  static_assert(kRows * kCols >= kUncachedFrom, "past the caches");
  std::vector<float> p(2 * kRows), q(2 * kCols);
  Stream stream(3);
  for (float& x : p) x = static_cast<float>(stream.below(1000)) - 499.5f;
  for (float& x : q) x = static_cast<float>(stream.below(1000)) - 499.5f;
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    REQUIRE(scope.selected());
    CAPTURE(name);
    std::vector<float> room(kRows * kCols + 32);
    const std::size_t line = (0 - reinterpret_cast<std::uintptr_t>(room.data())) % 64 / 4;
    std::vector<float> added(kRows * kCols);
    std::vector<float> subtracted(kRows * kCols);
    outer(p.data(), q.data(), 2, kRows, kCols, {nullptr, added.data(), nullptr});
    for (const std::size_t offset : {line, line + 1}) {
      room[offset + kRows * kCols] = 7.0f;
      outer(p.data(), q.data(), 2, kRows, kCols, {&room[offset], nullptr, subtracted.data()});
      CHECK(std::equal(added.begin(), added.end(), &room[offset]));
      CHECK(room[offset + kRows * kCols] == 7.0f);
    }
    CHECK(subtracted[5] == -2 * added[5]);
  }
}

TEST_CASE("outer products match their definition, for any number of vectors") {
  Stream stream(4);
  for (const std::size_t rank : {1, 4, 5, 16, 32, 33}) {
    for (const std::size_t rows : {1, 7, 8, 19}) {
      for (const std::size_t cols : {5, 16, 37, 64}) {
        // Whole numbers: every order of addition gives the same sum.
        std::vector<float> p(rank * rows), q(rank * cols), expected(rows * cols);
        for (float& x : p) x = static_cast<float>(stream.below(100)) - 50;
        for (float& x : q) x = static_cast<float>(stream.below(100)) - 50;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          for (std::size_t c = 0; c < rank; ++c) {
            expected[i] += p[c * rows + i / cols] * q[c * cols + i % cols];
          }
        }
        for (const std::string& name : level_names()) {
          LevelScope scope(name);
          REQUIRE(scope.selected());
          CAPTURE(name);
          CAPTURE(rank);
          CAPTURE(rows);
          CAPTURE(cols);
          std::vector<float> assigned(expected.size());
          std::vector<float> added(expected.size(), 1.0f);
          outer(p.data(), q.data(), rank, rows, cols, {assigned.data(), added.data(), nullptr});
          CHECK(assigned == expected);
          for (float& x : added) x -= 1;
          CHECK(added == expected);
        }
      }
    }
  }
}

TEST_CASE("any vectors become orthonormal, and span the same space") {
  Scratch scratch;
  for (const Orthonormalization method : kMethods) {
    for (const std::size_t n : {1, 2, 5, 16, 1000}) {
      for (const std::size_t rank : {1, 2, 5, 16}) {
        if (rank > n) continue;
        std::vector<float> v(n * rank);
        Stream stream(n + rank);
        for (float& x : v) x = static_cast<float>(stream.below(1000)) - 499.5f;
        const std::vector<float> before = v;
        REQUIRE(orthonormalize({v.data(), v.size()}, rank, method, scratch).ok());
        check_orthonormal(v, rank);
        for (std::size_t c = 0; c < rank; ++c) {  // the first c + 1 reach it
          std::vector<double> left(before.begin() + static_cast<std::ptrdiff_t>(c * n),
                                   before.begin() + static_cast<std::ptrdiff_t>((c + 1) * n));
          const double whole = std::sqrt(dot(&before[c * n], &before[c * n], n));
          for (std::size_t k = 0; k <= c; ++k) {
            const double part = dot(&before[c * n], &v[k * n], n);
            for (std::size_t i = 0; i < n; ++i) left[i] -= part * static_cast<double>(v[k * n + i]);
          }
          for (double x : left) CHECK(std::abs(x) < 1e-5 * whole);
        }
      }
    }
  }
}

TEST_CASE("dependent, zero, huge, tiny and broken vectors become orthonormal too") {
  Scratch scratch;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> cases = {
      std::vector<float>(12, 0.0f),
      std::vector<float>(12, 1.0f),
      std::vector<float>(12, nan),
      std::vector<float>(12, 3e38f),
      std::vector<float>(12, 1e-45f),
      {1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0},
      {0, 0, 0, 5, 0, 0, 0, -5, 0, 0, 0, 1},
      {1, 2, 3, nan, 1, 2, 3, 4, 2, 4, 6, 1e-30f},
      {1, 1, 1, 1, 1, 1, 1, 1.0000001f, 1, 1, 1, 0.9999999f},
  };
  for (const Orthonormalization method : kMethods) {
    for (std::vector<float> v : cases) {
      std::vector<float> again = v;
      REQUIRE(orthonormalize({v.data(), v.size()}, 3, method, scratch).ok());
      check_orthonormal(v, 3);
      REQUIRE(orthonormalize({again.data(), again.size()}, 3, method, scratch).ok());
      CHECK(same_bits(v, again));
    }
  }
}

TEST_CASE("more vectors than elements are refused") {
  Scratch scratch;
  std::vector<float> v(6, 1.0f);
  for (const std::size_t rank : {0, 3, 4, 7}) {
    CHECK(orthonormalize({v.data(), 6}, rank, Orthonormalization::kGramSchmidt, scratch).code() ==
          Code::kArgument);
  }
}

}  // namespace gradcomp::test
