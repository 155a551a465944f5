// Gap coding of kept elements, for few and many of a block.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/rng.hpp"
#include "coding/gaps.hpp"

namespace gradcomp::test {
namespace {

using Gaps = std::vector<std::uint32_t>;
using Bytes = std::vector<std::uint8_t>;

// The gaps of `blocks` blocks, each with `kept` elements chosen at random.
Gaps chosen(std::size_t blocks, std::size_t kept, std::uint64_t key) {
  Stream stream(key);
  Gaps gaps;
  for (std::size_t block = 0; block < blocks; ++block) {
    std::size_t left = kept;
    std::uint32_t gap = 0;
    for (std::size_t at = 0; left > 0; ++at) {
      if (stream.below(kGapBlock - at) < left) {
        gaps.push_back(gap);
        gap = 0;
        --left;
      } else {
        ++gap;
      }
    }
  }
  return gaps;
}

Bytes encoded(const GapCoder& coder, const Gaps& gaps) {
  const std::size_t most = GapCoder::max_bytes(gaps.size());
  Bytes code(most + 1, 0xA5), symbols(gaps.size());
  const std::size_t size =
      coder.encode({gaps.data(), gaps.size()}, {symbols.data(), symbols.size()}, code.data());
  REQUIRE(size <= most);
  CHECK(code[size] == 0xA5);
  code.resize(size);
  return code;
}

bool decoded(const GapCoder& coder, const Bytes& code, Gaps* gaps) {
  Bytes symbols(gaps->size());
  return coder.decode({code.data(), code.size()}, {symbols.data(), symbols.size()},
                      {gaps->data(), gaps->size()});
}

// Bits of a random choice of `kept` elements of a block, per kept element.
double entropy(std::size_t kept) {
  const auto log2_factorial = [](std::size_t n) {
    return std::lgamma(static_cast<double>(n) + 1) / std::log(2.0);
  };
  const double choices =
      log2_factorial(kGapBlock) - log2_factorial(kept) - log2_factorial(kGapBlock - kept);
  return choices / static_cast<double>(kept);
}

}  // namespace

TEST_CASE("gaps are coded without loss, close to the entropy of a random choice") {
  for (const std::size_t kept : {1u, 4u, 64u, 1000u, 4095u}) {
    CAPTURE(kept);
    const GapCoder coder(kept);
    const Gaps gaps = chosen(1 + 100000 / kept, kept, kept);
    const Bytes code = encoded(coder, gaps);
    Gaps back(gaps.size());
    CHECK(decoded(coder, code, &back));
    CHECK(back == gaps);
    const double bits = 8.0 * static_cast<double>(code.size()) / static_cast<double>(gaps.size());
    CHECK(bits < 1.03 * entropy(kept) + 0.1);
  }
}

TEST_CASE("gaps of other blocks are valid, too: all large, all zero, one, none") {
  const GapCoder coder(64);
  for (const Gaps& gaps : {Gaps(500, kGapBlock - 1), Gaps(500, 0), Gaps{17}, Gaps{}}) {
    const Bytes code = encoded(coder, gaps);
    Gaps back(gaps.size(), 1);
    CHECK(decoded(coder, code, &back));
    CHECK(back == gaps);
  }
}

TEST_CASE("truncated, longer and damaged gap codes are refused, or give gaps below a block") {
  const GapCoder coder(64);
  const Gaps gaps = chosen(30, 64, 5);
  const Bytes code = encoded(coder, gaps);
  Gaps back(gaps.size());
  for (const std::size_t size : {std::size_t{0}, std::size_t{3}, code.size() - 1}) {
    const Bytes shorter(code.begin(), code.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK_FALSE(decoded(coder, shorter, &back));
  }
  Bytes longer = code;
  longer.push_back(0);
  CHECK_FALSE(decoded(coder, longer, &back));
  Stream stream(11);
  for (int i = 0; i < 500; ++i) {
    Bytes damaged = code;
    damaged[stream.below(damaged.size())] = static_cast<std::uint8_t>(stream.next());
    if (!decoded(coder, damaged, &back)) continue;
    for (const std::uint32_t gap : back) CHECK(gap < kGapBlock);
  }
}

}  // namespace gradcomp::test
