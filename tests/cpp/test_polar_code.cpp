#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "base/thread_pool.hpp"
#include "polar/encoder.hpp"
#include "polar/list_decoder.hpp"
#include "polar/sc_decoder.hpp"
#include "support.hpp"

namespace gradcomp::test {
namespace {

using polar_code::Code;
using polar_code::Construction;

std::vector<std::uint8_t> random_bits(std::size_t n, std::uint64_t seed) {
  Stream stream(seed);
  std::vector<std::uint8_t> bits(n);
  for (std::uint8_t& bit : bits) bit = stream.next() & 1;
  return bits;
}

template <typename T>
Span<const T> in(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

template <typename T>
Span<T> out(std::vector<T>& values) {
  return {values.data(), values.size()};
}

Code code_of(std::size_t n, std::size_t k, Construction construction = Construction::kBec) {
  Code code;
  REQUIRE(polar_code::make_code(n, k, {construction, 1.0, 0, 3}, &code).ok());
  return code;
}

constexpr std::size_t kLengths[] = {1, 2, 3, 5, 8, 13, 64, 100, 128, 200};

}  // namespace

TEST_CASE("the packed polar transform is the matrix product") {
  std::vector<std::uint64_t> words;
  for (unsigned log2 = 0; log2 <= 10; ++log2) {
    CAPTURE(log2);
    const std::size_t n = std::size_t{1} << log2;
    const std::vector<std::uint8_t> u = random_bits(n, log2);
    std::vector<std::uint8_t> x(n);
    // Row i of the matrix has a 1 in column j where the bits of j are among those of i.
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j <= i; ++j) x[j] ^= u[i] & static_cast<std::uint8_t>((i & j) == j);
    }
    std::vector<std::uint8_t> y = u;
    polar_code::transform_bits(y.data(), log2, &words);
    CHECK(y == x);
    polar_code::transform_bits(y.data(), log2, &words);
    CHECK(y == u);
  }
}

TEST_CASE("polar decoders invert the encoder, for every length, rate and construction") {
  for (std::size_t n : kLengths) {
    for (std::size_t k : {std::size_t{0}, n / 3, n / 2, n}) {
      for (Construction construction : {Construction::kBec, Construction::kBhattacharyya,
                                        Construction::kGaussian, Construction::kMonteCarlo}) {
        CAPTURE(n);
        CAPTURE(k);
        const Code code = code_of(n, k, construction);
        const std::size_t blocks = 3;
        const std::vector<std::uint8_t> message = random_bits(blocks * k, n);
        for (bool systematic : {false, true}) {
          std::vector<std::uint8_t> codeword(blocks * n);
          REQUIRE(polar_code::encode(code, in(message), systematic, out(codeword)).ok());
          std::vector<double> llrs(codeword.size());
          for (std::size_t i = 0; i < llrs.size(); ++i) llrs[i] = codeword[i] != 0 ? -3 : 2;
          for (bool min_sum : {false, true}) {
            std::vector<std::uint8_t> found(message.size());
            std::vector<double> seen(blocks * code.mother());
            REQUIRE(
                polar_code::sc_decode(code, in(llrs), {min_sum, systematic}, out(found), {}).ok());
            CHECK(found == message);
            REQUIRE(
                polar_code::sc_decode(code, in(llrs), {min_sum, systematic}, out(found), out(seen))
                    .ok());
            CHECK(found == message);
            for (std::size_t list : {1, 3, 8}) {
              const std::size_t paths = polar_code::path_count(code, list);
              std::vector<std::uint8_t> messages(blocks * paths * k);
              std::vector<double> metrics(blocks * paths);
              REQUIRE(polar_code::list_decode(code, in(llrs), list, {min_sum, systematic},
                                              out(messages), out(metrics))
                          .ok());
              for (std::size_t b = 0; b < blocks; ++b) {
                for (std::size_t i = 0; i < k; ++i) {
                  CHECK(messages[b * paths * k + i] == message[b * k + i]);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a list of one decides as successive cancellation, with ties and noise") {
  for (std::size_t n : kLengths) {
    const Code code = code_of(n, n / 2);
    const std::vector<float> noise = floats(20 * n, n, true);
    std::vector<double> llrs(noise.begin(), noise.end());
    for (bool min_sum : {false, true}) {
      std::vector<std::uint8_t> one(20 * code.message), other(20 * code.message);
      std::vector<double> metrics(20);
      REQUIRE(polar_code::sc_decode(code, in(llrs), {min_sum, false}, out(one), {}).ok());
      REQUIRE(polar_code::list_decode(code, in(llrs), 1, {min_sum, false}, out(other), out(metrics))
                  .ok());
      CHECK(one == other);
    }
  }
}

TEST_CASE("polar compression is the same at any number of threads") {
  const ThreadScope thread_scope;
  const Code code = code_of(200, 70);
  const std::vector<std::uint8_t> source = random_bits(17 * 200, 1);
  for (polar_code::Rounding rounding :
       {polar_code::Rounding::kDeterministic, polar_code::Rounding::kSeeded}) {
    polar_code::CompressOptions options;
    options.rounding = rounding;
    options.seed = 5;
    std::vector<std::uint8_t> expected(17 * 70), message(17 * 70);
    set_thread_count(1);
    REQUIRE(polar_code::sc_compress(code, in(source), options, out(expected), {}).ok());
    for (std::size_t threads : {2, 5, 40}) {
      set_thread_count(threads);
      CHECK(polar_code::sc_compress(code, in(source), options, out(message), {}).ok());
      CHECK(message == expected);
    }
  }
}

TEST_CASE("polar codes refuse invalid arguments") {
  Code code;
  const auto refused = [&](std::size_t n, std::size_t k, double snr_db, std::uint32_t trials) {
    const Status status =
        polar_code::make_code(n, k, {Construction::kMonteCarlo, snr_db, 0, trials}, &code);
    return status.code() == gradcomp::Code::kArgument && !status.message().empty();
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(refused(0, 0, 5, 10));
  CHECK(refused((std::size_t{1} << 20) + 1, 0, 5, 10));
  CHECK(refused(8, 9, 5, 10));
  CHECK(refused(8, 4, nan, 10));
  CHECK(refused(8, 4, -51, 10));
  CHECK(refused(8, 4, 5, 0));
  code = code_of(8, 4);
  std::vector<std::uint8_t> message = {0, 1, 2, 0}, codeword(8), short_codeword(7);
  CHECK_FALSE(polar_code::encode(code, in(message), false, out(codeword)).ok());
  CHECK_FALSE(polar_code::encode(code, in(message), false, out(short_codeword)).ok());
  std::vector<double> llrs(8, nan), metrics(2);
  CHECK_FALSE(polar_code::sc_decode(code, in(llrs), {}, out(message), {}).ok());
  CHECK_FALSE(polar_code::sc_decode(code, in(llrs), {}, out(codeword), {}).ok());
  for (std::size_t list : {std::size_t{0}, std::size_t{2}, std::size_t{65}, ~std::size_t{0}}) {
    CHECK_FALSE(
        polar_code::list_decode(code, in(llrs), list, {}, out(codeword), out(metrics)).ok());
  }
  polar_code::CompressOptions options;
  options.rounding = polar_code::Rounding::kGiven;
  CHECK_FALSE(polar_code::sc_compress(code, in(codeword), options, out(message), {}).ok());
  CHECK_FALSE(polar_code::transform_rows(out(short_codeword), 3).ok());
  CHECK_FALSE(polar_code::transform_rows(out(codeword), 64).ok());
}

TEST_CASE("meaningless LLRs decode without error") {
  const double inf = std::numeric_limits<double>::infinity();
  const Code code = code_of(100, 40);
  for (double sign : {1.0, -1.0}) {
    std::vector<double> llrs(100, sign * inf);
    for (std::size_t i = 0; i < 100; i += 3) llrs[i] = -llrs[i];
    std::vector<std::uint8_t> message(40), messages(8 * 40);
    std::vector<double> metrics(8);
    CHECK(polar_code::sc_decode(code, in(llrs), {}, out(message), {}).ok());
    CHECK(polar_code::list_decode(code, in(llrs), 8, {}, out(messages), out(metrics)).ok());
    for (double metric : metrics) CHECK(std::isfinite(metric));
  }
}

}  // namespace gradcomp::test
