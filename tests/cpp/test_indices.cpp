// Index coding in cases beyond the codecs' tests, such as long gaps and large tensors.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.hpp"
#include "codec/codec.hpp"
#include "coding/indices.hpp"

namespace gradcomp::test {
namespace {

using Indices = std::vector<std::uint32_t>;

// Runs of `run` neighbours, with gaps of up to `most` between them, below n.
Indices runs(std::size_t n, std::size_t run, std::size_t most, std::size_t count,
             std::uint64_t key) {
  Stream stream(key);
  Indices indices;
  std::size_t next = 0;
  while (indices.size() < count) {
    if (indices.size() % run == 0) next += stream.below(most + 1);
    if (next >= n) break;
    indices.push_back(static_cast<std::uint32_t>(next++));
  }
  return indices;
}

struct Case {
  std::size_t n, run, most, count;
};

const Case kCases[] = {
    {1, 1, 0, 1},
    {7, 1, 3, 7},
    {64, 64, 0, 64},
    {65, 1, 0, 65},
    {1000, 1, 1, 700},
    {4096, 3, 40, 4096},
    {100000, 1, 5000, 20},
    {1 << 20, 511, 100000, 4000},     // quotients far beyond a word
    {kMaxNumel, 1, 1 << 22, 1000},    // parameters above 20
    {kMaxNumel, 700, 1 << 28, 3000},  // and quotients beyond a word after short ones
    {kMaxNumel, 1, kMaxNumel - 1, 3},
};

}  // namespace

TEST_CASE("every index coding is lossless, and refuses truncated or longer codes") {
  for (const Case& c : kCases) {
    for (std::uint64_t key = 0; key < 3; ++key) {
      const Indices indices = runs(c.n, c.run, c.most, c.count, key);
      for (const char* name : {"raw32", "bitmask", "elias_fano", "rice"}) {
        if (c.n > 1 << 22 && IndexCoder::named(name).coding == IndexCoding::kBitmask) continue;
        CAPTURE(name);
        CAPTURE(c.n);
        const IndexCoder coder = IndexCoder::named(name);
        const std::size_t most = coder.max_bytes(c.n, indices.size());
        std::vector<std::uint8_t> code(most + 1, 0xA5);
        IndexCoding used = IndexCoding::kRaw32;
        const std::size_t size =
            coder.encode({indices.data(), indices.size()}, c.n, code.data(), &used);
        REQUIRE(size <= most);
        CHECK(code[size] == 0xA5);
        Indices decoded(indices.size() + 1, 0xFFFFFFFF);
        const auto decode = [&](std::size_t bytes) {
          // A copy of exact size, so that a sanitizer sees reads beyond it.
          const std::vector<std::uint8_t> exact(code.begin(),
                                                code.begin() + static_cast<std::ptrdiff_t>(bytes));
          return decode_indices(used, {exact.data(), bytes}, c.n, {decoded.data(), indices.size()});
        };
        CHECK(decode(size).ok());
        CHECK(decoded.back() == 0xFFFFFFFF);
        decoded.pop_back();
        CHECK(decoded == indices);
        decoded.push_back(0);
        if (size > 0) CHECK_FALSE(decode(size - 1).ok());
        code[size] = 0;
        CHECK_FALSE(decode(size + 1).ok());
      }
    }
  }
}

TEST_CASE("damaged index codes are refused, or are codes of other valid indices") {
  for (const Case& c : kCases) {
    const Indices indices = runs(c.n, c.run, c.most, c.count, 9);
    Stream stream(c.n);
    for (const char* name : {"raw32", "bitmask", "elias_fano", "rice"}) {
      if (c.n > 1 << 22 && IndexCoder::named(name).coding == IndexCoding::kBitmask) continue;
      const IndexCoder coder = IndexCoder::named(name);
      std::vector<std::uint8_t> code(coder.max_bytes(c.n, indices.size()));
      IndexCoding used = IndexCoding::kRaw32;
      code.resize(coder.encode({indices.data(), indices.size()}, c.n, code.data(), &used));
      if (code.empty()) continue;
      for (int i = 0; i < 200; ++i) {
        std::vector<std::uint8_t> damaged = code;
        const std::size_t at = stream.below(code.size());
        damaged[at] = i % 4 == 0 ? 0xFF : static_cast<std::uint8_t>(stream.next());
        if (i % 8 == 0)
          std::fill(damaged.begin() + static_cast<std::ptrdiff_t>(at), damaged.end(),
                    std::uint8_t{0xFF});
        Indices decoded(indices.size());
        if (!decode_indices(used, {damaged.data(), damaged.size()}, c.n,
                            {decoded.data(), decoded.size()})
                 .ok()) {
          continue;
        }
        CHECK(decoded.back() < c.n);
        CHECK(std::is_sorted(decoded.begin(), decoded.end()));
        CHECK(std::adjacent_find(decoded.begin(), decoded.end()) == decoded.end());
      }
    }
  }
}

}  // namespace gradcomp::test
