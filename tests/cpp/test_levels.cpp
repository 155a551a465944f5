#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/chunks.hpp"
#include "base/thread_pool.hpp"
#include "coding/digits.hpp"
#include "coding/elias.hpp"
#include "coding/levels.hpp"
#include "support.hpp"

namespace gradcomp::test {
namespace {

using Bytes = std::vector<std::uint8_t>;

LevelCoder coder(const char* name) { return LevelCoder::named(name); }

const char* const kCoders[] = {"packed", "rans", "elias_delta"};

// Checks that nothing is written beyond the bound.
Bytes encode(const LevelCoder& coder, const Bytes& symbols, unsigned bits) {
  const std::size_t bound = coder.max_bytes(symbols.size(), bits);
  Bytes out(bound + 16, 0xA5);
  const std::size_t size = coder.encode({symbols.data(), symbols.size()}, bits, out.data());
  REQUIRE(size <= bound);
  for (std::size_t i = bound; i < out.size(); ++i) REQUIRE(out[i] == 0xA5);
  out.resize(size);
  return out;
}

bool decode(const LevelCoder& coder, const Bytes& code, unsigned bits, Bytes* symbols) {
  const Bytes exact(code);  // so that a sanitizer sees every access beyond it
  return coder.decode({exact.data(), exact.size()}, bits, {symbols->data(), symbols->size()}).ok();
}

double entropy_bytes(const Bytes& symbols) {
  double bits = 0;
  for (std::size_t begin = 0; begin < symbols.size(); begin += kChunk) {
    const std::size_t end = std::min(begin + kChunk, symbols.size());
    double counts[256] = {};
    for (std::size_t i = begin; i < end; ++i) counts[symbols[i]] += 1;
    for (double count : counts) {
      if (count > 0) bits -= count * std::log2(count / static_cast<double>(end - begin));
    }
  }
  return bits / 8;
}

// Symbols below 2^bits, drawn with the given weights.
Bytes draw(const std::vector<double>& weights, std::size_t n, std::uint64_t seed) {
  double total = 0;
  for (double weight : weights) total += weight;
  Stream stream(seed);
  Bytes symbols(n);
  for (std::uint8_t& symbol : symbols) {
    double at = total * static_cast<double>(stream.next() >> 11) * 0x1p-53;
    std::size_t s = 0;
    for (; s + 1 < weights.size() && at >= weights[s]; ++s) at -= weights[s];
    symbol = static_cast<std::uint8_t>(s);
  }
  return symbols;
}

// Histograms that are awkward for a coder: flat, one symbol only, one rare, all rare but one,
// steep, and powers of two.
std::vector<std::vector<double>> histograms(unsigned bits) {
  const std::size_t kinds = std::size_t{1} << bits;
  std::vector<std::vector<double>> all;
  all.emplace_back(kinds, 1.0);
  for (std::size_t only : {std::size_t{0}, kinds - 1}) {
    all.emplace_back(kinds, 0.0);
    all.back()[only] = 1;
  }
  all.emplace_back(kinds, 1.0);
  all.back()[kinds / 2] = 1e-5;
  all.emplace_back(kinds, 1e-5);
  all.back()[kinds / 2] = 1;
  all.emplace_back(kinds, 0.0);
  for (std::size_t s = 0; s < kinds; ++s) all.back()[s] = std::pow(0.7, static_cast<double>(s));
  all.emplace_back(kinds, 0.0);
  for (std::size_t s = 0; s < kinds; ++s) all.back()[s] = std::pow(0.5, static_cast<double>(s));
  // Half the kinds frequent, half rarer than a table can say.
  all.emplace_back(kinds, 1.0);
  for (std::size_t s = 0; s < kinds; s += 2) all.back()[s] = 2e-5;
  return all;
}

}  // namespace

TEST_CASE("levels survive every coder, width, length and histogram") {
  for (const char* name : kCoders) {
    const LevelCoder subject = coder(name);
    for (unsigned bits = 1; bits <= 8; ++bits) {
      std::uint64_t seed = bits;
      for (const std::vector<double>& weights : histograms(bits)) {
        for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{3},
                              std::size_t{5}, std::size_t{8}, std::size_t{63}, std::size_t{64},
                              std::size_t{1001}, kChunk - 1, kChunk, kChunk + 1}) {
          CAPTURE(name);
          CAPTURE(bits);
          CAPTURE(n);
          const Bytes symbols = draw(weights, n, ++seed);
          const Bytes code = encode(subject, symbols, bits);
          Bytes decoded(n, 0xEE);
          CHECK(decode(subject, code, bits, &decoded));
          CHECK(decoded == symbols);
        }
      }
    }
  }
}

TEST_CASE("packed symbols are a stream of bits, least significant first") {
  for (unsigned bits = 1; bits <= 8; ++bits) {
    const Bytes symbols = draw(std::vector<double>(std::size_t{1} << bits, 1.0), 1003, bits);
    const Bytes code = encode(coder("packed"), symbols, bits);
    REQUIRE(code.size() == (symbols.size() * bits + 7) / 8);
    bool equal = true;
    for (std::size_t at = 0; at < symbols.size() * bits; ++at) {
      equal = equal && (code[at / 8] >> at % 8 & 1) == (symbols[at / bits] >> at % bits & 1);
    }
    CHECK(equal);
  }
}

TEST_CASE("Elias delta codes match the definition") {
  // 1: 0; 2: L = 1, N + 1 = 2, so 1 0, 0, 0; 3: the same with a last bit 1; 17: N = 4, L = 2.
  CHECK((elias_delta(1).bits == 1 && elias_delta(1).code == 0u));
  CHECK((elias_delta(2).bits == 4 && elias_delta(2).code == 0b0001u));
  CHECK((elias_delta(3).bits == 4 && elias_delta(3).code == 0b1001u));
  CHECK((elias_delta(17).bits == 9 && elias_delta(17).code == 0b000101011u));
  for (std::uint32_t value = 1; value < 1u << 15; ++value) {
    std::uint8_t code[8] = {};
    BitWriter writer(code);
    writer.put(elias_delta(value).code, elias_delta(value).bits);
    const std::size_t size = writer.finish();
    BitReader reader({code, size});
    REQUIRE(read_elias_delta(&reader) == value);
    REQUIRE(reader.finished());
  }
}

TEST_CASE("rANS is within 2% of the entropy of quantized gradients") {
  const LevelCoder rans = coder("rans");
  for (int levels : {1, 2, 7, 31, 127}) {
    for (double scale :
         {0.05, 0.3, 1.0}) {  // spread of the values relative to the range of the levels
      std::vector<double> gauss, laplace;
      for (int symbol = 0; symbol <= 2 * levels; ++symbol) {
        const double level = (symbol + 1) / 2 / (levels * scale);
        gauss.push_back(std::exp(-level * level / 2));
        laplace.push_back(std::exp(-level * 1.4));
      }
      for (const std::vector<double>* weights : {&gauss, &laplace}) {
        const Bytes symbols = draw(*weights, 2 * kChunk, 77);
        const unsigned bits = symbol_bits(2 * static_cast<unsigned>(levels));
        const Bytes code = encode(rans, symbols, bits);
        const double entropy = entropy_bytes(symbols);
        CAPTURE(levels);
        CAPTURE(scale);
        CAPTURE(entropy);
        if (entropy > 8000) CHECK(static_cast<double>(code.size()) < 1.02 * entropy);
        // Below half a bit each, the fixed part of a chunk dominates: its states and its table.
        CHECK(static_cast<double>(code.size()) < 1.005 * entropy + 2 * 320);
      }
    }
  }
}

TEST_CASE("a coder never expands a chunk by more than its header") {
  const Bytes flat = draw(std::vector<double>(256, 1.0), kChunk + 100, 5);
  for (const char* name : {"rans", "elias_delta"}) {
    CHECK(encode(coder(name), flat, 8).size() <= flat.size() + 8);
  }
}

TEST_CASE("codes of whole chunks may be joined") {
  const ThreadScope thread_scope;
  const Bytes symbols = draw(histograms(5)[5], 2 * kChunk + 333, 6);
  for (const char* name : kCoders) {
    Bytes joined;
    for (std::size_t begin = 0; begin < symbols.size(); begin += kChunk) {
      const auto from = symbols.begin() + static_cast<std::ptrdiff_t>(begin);
      const std::size_t count = std::min(kChunk, symbols.size() - begin);
      const Bytes part =
          encode(coder(name), Bytes(from, from + static_cast<std::ptrdiff_t>(count)), 5);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    CHECK(joined == encode(coder(name), symbols, 5));
    for (std::size_t threads : {1, 3, 8}) {
      set_thread_count(threads);
      Bytes decoded(symbols.size());
      CHECK(decode(coder(name), joined, 5, &decoded));
      CHECK(decoded == symbols);
    }
  }
}

TEST_CASE("every prefix, every longer code and every padding bit is refused") {
  for (const char* name : kCoders) {
    const LevelCoder subject = coder(name);
    for (unsigned bits : {1u, 3u, 8u}) {
      // Steep enough that the coders do not fall back to packing.
      const Bytes symbols = draw(histograms(bits)[bits == 1 ? 3 : 6], 1001, 8);
      const Bytes code = encode(subject, symbols, bits);
      Bytes decoded(symbols.size());
      CAPTURE(name);
      CAPTURE(bits);
      for (std::size_t size = 0; size < code.size(); ++size) {
        const Bytes prefix(code.begin(), code.begin() + static_cast<std::ptrdiff_t>(size));
        REQUIRE_FALSE(decode(subject, prefix, bits, &decoded));
      }
      Bytes longer = code;
      longer.push_back(0);
      CHECK_FALSE(decode(subject, longer, bits, &decoded));
      const bool padded = bits != 8 && subject.fixed_size();
      if (padded) {
        Bytes dirty = code;
        dirty.back() |= 0x80;
        CHECK_FALSE(decode(subject, dirty, bits, &decoded));
      }
    }
  }
}

TEST_CASE("damaged codes are refused or give symbols in range") {
  Stream random(12);
  for (const char* name : kCoders) {
    const LevelCoder subject = coder(name);
    long refused = 0;
    for (int round = 0; round < 20000; ++round) {
      const auto bits = static_cast<unsigned>(1 + random.below(8));
      const auto n = static_cast<std::size_t>(random.below(400));
      const std::vector<std::vector<double>> all = histograms(bits);
      Bytes symbols = draw(all[random.below(all.size())], n, random.next());
      Bytes code = encode(subject, symbols, bits);
      for (std::uint64_t edits = 1 + random.below(3); edits > 0 && !code.empty(); --edits) {
        std::uint8_t& byte = code[random.below(code.size())];
        byte = random.below(2) == 0 ? static_cast<std::uint8_t>(random.next())
                                    : static_cast<std::uint8_t>(byte ^ 1u << random.below(8));
      }
      if (decode(subject, code, bits, &symbols)) {
        bool in_range = true;
        for (std::uint8_t symbol : symbols) in_range = in_range && symbol >> bits == 0;
        CHECK(in_range);
      } else {
        ++refused;
      }
    }
    CHECK(refused > 0);
  }
}

TEST_CASE("long codes are the same on every level, and damaged ones do no harm") {
  const LevelCoder rans = coder("rans");
  Stream random(9);
  for (std::size_t n : {std::size_t{1} << 15, (std::size_t{1} << 15) + 17, kChunk - 1}) {
    for (unsigned bits : {1u, 4u, 8u}) {
      for (const std::vector<double>& weights : histograms(bits)) {
        CAPTURE(n);
        CAPTURE(bits);
        const Bytes symbols = draw(weights, n, n + bits);
        Bytes expected;
        for (const std::string& name : level_names()) {
          LevelScope scope(name);
          CAPTURE(name);
          const Bytes code = encode(rans, symbols, bits);
          if (expected.empty()) expected = code;
          CHECK(code == expected);
          Bytes decoded(n);
          CHECK(decode(rans, code, bits, &decoded));
          CHECK(decoded == symbols);
          for (int round = 0; round < 5; ++round) {
            Bytes damaged(code);
            damaged[random.below(code.size())] ^= static_cast<std::uint8_t>(1u << random.below(8));
            if (round == 0) damaged.resize(random.below(code.size()));
            if (decode(rans, damaged, bits, &decoded)) {
              bool in_range = true;
              for (std::uint8_t symbol : decoded) in_range = in_range && symbol >> bits == 0;
              CHECK(in_range);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("digits are packed alike on every level") {
  Stream random(10);
  for (unsigned width : {2u, 4u}) {
    for (std::size_t n : {1u, 3u, 8u, 31u, 63u, 64u, 65u, 127u, 1000u, 4096u}) {
      Bytes numbers(n);
      for (std::uint8_t& number : numbers) {
        number = static_cast<std::uint8_t>(random.below(std::uint64_t{1} << width));
      }
      const std::size_t bytes = digit_symbols(n, width);
      Bytes expected(bytes);
      std::uint32_t expected_counts[16] = {};
      for (std::size_t i = 0; i < n; ++i) {
        expected[i * width / 8] |= static_cast<std::uint8_t>(numbers[i] << i * width % 8);
        if (numbers[i] != 0) ++expected_counts[numbers[i]];
      }
      for (const std::string& name : level_names()) {
        LevelScope scope(name);
        CAPTURE(name);
        CAPTURE(width);
        CAPTURE(n);
        Bytes packed(bytes), back(n);
        std::uint32_t counts[16] = {};
        kernels().coding->pack_digits(numbers.data(), width, packed.data(), n, counts);
        CHECK(packed == expected);
        CHECK(std::equal(counts, counts + 16, expected_counts));
        kernels().coding->unpack_digits(packed.data(), width, back.data(), n);
        CHECK(back == numbers);
      }
    }
  }
}

TEST_CASE("classified symbols are counted alike on every level") {
  Stream random(12);
  for (std::uint64_t zeros : {0u, 60u, 90u, 99u, 100u}) {  // percent
    for (std::uint64_t classes : {1u, 8u, 16u}) {
      for (std::size_t n : {0u, 1u, 31u, 64u, 65u, 1000u, 20000u}) {
        Bytes symbols(n);
        std::uint32_t expected[256] = {};
        expected[16] = 7;  // adds to what is there
        for (std::uint8_t& symbol : symbols) {
          const std::uint64_t level = random.below(100) < zeros ? 0 : random.below(kClassSymbols);
          symbol = static_cast<std::uint8_t>(random.below(classes) * kClassSymbols + level);
          ++expected[symbol];
        }
        for (const std::string& name : level_names()) {
          LevelScope scope(name);
          CAPTURE(name);
          CAPTURE(zeros);
          CAPTURE(classes);
          CAPTURE(n);
          std::uint32_t counts[256] = {};
          counts[16] = 7;
          kernels().coding->count_classified(symbols.data(), n, counts);
          CHECK(std::equal(counts, counts + 256, expected));
        }
      }
    }
  }
}

TEST_CASE("digits survive coding, and damaged ones do no harm") {
  Stream random(4);
  for (unsigned top : {1u, 2u, 4u, 16u, 17u, 256u}) {
    for (std::size_t count : {1u, 3u, 64u, 1001u, 70000u}) {
      CAPTURE(top);
      CAPTURE(count);
      Bytes numbers(count), work(count), out(digits_max_bytes(count)), back(count);
      for (std::uint8_t& number : numbers) {
        number = static_cast<std::uint8_t>(std::min(random.below(top), random.below(top)));
      }
      const std::size_t size = digits_encode({numbers.data(), count}, work.data(), out.data());
      REQUIRE(size <= out.size());
      out.resize(size);
      const auto read = [&](const Bytes& in) {
        const Bytes exact(in);  // so that a sanitizer sees every access beyond it
        DigitsChunk chunk;
        if (!read_digits_header({exact.data(), exact.size()}, count, &chunk)) return false;
        Bytes symbols(digit_symbols(count, chunk.width));
        if (!digits_decode(chunk, {symbols.data(), symbols.size()})) return false;
        unpack_digits(symbols.data(), chunk.width, back.data(), count);
        return true;
      };
      REQUIRE(read(out));
      CHECK(back == numbers);
      for (int round = 0; round < 200; ++round) {
        Bytes damaged(out);
        damaged[random.below(size)] ^= static_cast<std::uint8_t>(1u << random.below(8));
        if (round % 4 == 0) damaged.resize(random.below(size));
        read(damaged);
      }
    }
  }
}

}  // namespace gradcomp::test
