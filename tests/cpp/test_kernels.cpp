#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/crc32c.hpp"
#include "kernels/crc32c_tables.hpp"
#include "kernels/dynamic8.hpp"
#include "support.hpp"

namespace gradcomp::test {
namespace {

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), sizeof(T) * a.size()) == 0);
}

bool same_or_both_nan(float a, float b) { return a == b || (a != a && b != b); }

bool same_counts(const FixedCounts& a, const FixedCounts& b) {
  return a.bytes == b.bytes && a.halves == b.halves && a.words == b.words;
}

struct Fixed {
  std::vector<std::uint8_t> low, high, bytes, halves, words;

  explicit Fixed(std::size_t n)
      : low((n + 7) / 8),
        high((n + 7) / 8),
        bytes(n + kFixedSlack),
        halves(2 * n + kFixedSlack),
        words(4 * n + kFixedSlack) {}

  FixedOutput output() {
    return {low.data(), high.data(), bytes.data(), halves.data(), words.data()};
  }
  FixedInput input() const {
    return {low.data(), high.data(), bytes.data(), halves.data(), words.data()};
  }
  void cut(const FixedCounts& counts) {
    bytes.resize(counts.bytes);
    halves.resize(2 * counts.halves);
    words.resize(4 * counts.words);
  }
};

// The byte planes of split_planes, each with a byte beyond its end.
struct Planes {
  std::vector<std::uint8_t> of[4];
  PlaneBits bits;

  Planes(const Kernels& level, const std::vector<float>& x) {
    for (std::vector<std::uint8_t>& plane : of) plane.assign(x.size() + 1, 0xA5);
    bits = level.split_planes(x.data(), of[0].data(), of[1].data(), of[2].data(), of[3].data(),
                              x.size());
  }

  std::vector<float> join(const Kernels& level, std::size_t n) const {
    std::vector<float> y(n);
    level.join_planes(of[0].data(), of[1].data(), of[2].data(), of[3].data(), y.data(), n);
    return y;
  }
};

// Bytes of which about one in `one_in` is 0.
std::vector<std::uint8_t> bytes_with_zeros(std::size_t n, std::uint64_t one_in) {
  Stream stream(n + one_in);
  std::vector<std::uint8_t> bytes(n);
  for (std::uint8_t& byte : bytes) {
    byte = static_cast<std::uint8_t>(stream.below(one_in) == 0 ? 0 : 1 + stream.below(255));
  }
  return bytes;
}

const std::vector<std::size_t> kSizes = {0, 1, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 1000, 4097};

}  // namespace

TEST_CASE("copy_uncached() writes exactly its range, for any length and alignment") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    REQUIRE(scope.selected());
    for (std::size_t n : kSizes) {
      for (std::ptrdiff_t offset : {0, 1, 5, 15, 16}) {
        CAPTURE(name);
        CAPTURE(n);
        CAPTURE(offset);
        const std::vector<float> x = floats(n, 1 + n);
        std::vector<float> y(static_cast<std::size_t>(offset) + n + 1, 1.0f);
        std::vector<float> expected = y;
        std::copy(x.begin(), x.end(), expected.begin() + offset);
        kernels().copy_uncached(x.data(), y.data() + offset, n);
        CHECK(same_bits(y, expected));
      }
    }
  }
}

TEST_CASE("zero() writes exactly its range, for any length and alignment") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    REQUIRE(scope.selected());
    for (std::size_t n : {std::size_t{0}, std::size_t{100}, kUncachedFrom, kUncachedFrom + 37}) {
      for (std::ptrdiff_t offset : {0, 1, 5, 15, 16}) {
        CAPTURE(name);
        CAPTURE(n);
        CAPTURE(offset);
        std::vector<float> y(static_cast<std::size_t>(offset) + n + 1, 1.0f);
        std::vector<float> expected = y;
        std::fill_n(expected.begin() + offset, n, 0.0f);
        kernels().zero(y.data() + offset, n);
        CHECK(y == expected);
      }
    }
  }
}

TEST_CASE("every level equals the scalar one bit for bit") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    REQUIRE(scope.selected());
    const Kernels& level = kernels();
    const Kernels& scalar = kScalarKernels;
    for (std::size_t n : kSizes) {
      CAPTURE(name);
      CAPTURE(n);
      const std::vector<float> x = floats(n, 1 + n);
      const std::vector<float> start = floats(n, 2 + n);
      for (bool saturate : {false, true}) {
        std::vector<std::uint8_t> a(2 * n), b(2 * n);
        level.f32_to_f16(x.data(), a.data(), n, saturate);
        scalar.f32_to_f16(x.data(), b.data(), n, saturate);
        CHECK(same_bits(a, b));
      }
      std::vector<std::uint8_t> a(2 * n), b(2 * n);
      level.f32_to_bf16(x.data(), a.data(), n);
      scalar.f32_to_bf16(x.data(), b.data(), n);
      CHECK(same_bits(a, b));

      const auto* bytes = reinterpret_cast<const std::uint8_t*>(x.data());
      std::vector<float> y(n), z(n);
      level.f16_to_f32(bytes, y.data(), n);
      scalar.f16_to_f32(bytes, z.data(), n);
      CHECK(same_bits(y, z));
      level.bf16_to_f32(bytes, y.data(), n);
      scalar.bf16_to_f32(bytes, z.data(), n);
      CHECK(same_bits(y, z));

      // NaN payloads of sums depend on operand order, which compilers may swap: compare finite
      // data.
      const std::vector<float> f = floats(n, 3 + n, true);
      std::vector<std::uint8_t> halves(2 * n);
      scalar.f32_to_f16(f.data(), halves.data(), n, true);
      const std::vector<float> base = floats(n, 4 + n, true);
      y = base;
      z = base;
      level.f16_add(halves.data(), 0.3f, y.data(), n);
      scalar.f16_add(halves.data(), 0.3f, z.data(), n);
      CHECK(same_bits(y, z));
      level.f32_add(reinterpret_cast<const std::uint8_t*>(f.data()), 0.3f, y.data(), n);
      scalar.f32_add(reinterpret_cast<const std::uint8_t*>(f.data()), 0.3f, z.data(), n);
      CHECK(same_bits(y, z));
      y = base;
      z = base;
      CHECK(level.compensate(y.data(), f.data(), 0.5f, 0.25f, n) ==
            scalar.compensate(z.data(), f.data(), 0.5f, 0.25f, n));
      CHECK(same_bits(y, z));
      y = start;
      z = start;
      level.zero_nonfinite(y.data(), n);
      scalar.zero_nonfinite(z.data(), n);
      CHECK(same_bits(y, z));
      CHECK(level.max_magnitude(x.data(), n) == scalar.max_magnitude(x.data(), n));
      CHECK(level.sum_magnitudes(f.data(), n) == scalar.sum_magnitudes(f.data(), n));
      CHECK(level.sum_squares(f.data(), n) == scalar.sum_squares(f.data(), n));
      std::vector<std::uint32_t> words(n), expected(n);
      // The first word's block crosses a 32-bit border within the run.
      const std::uint64_t first = (std::uint64_t{1} << 34) - 16;
      level.random_words(99, first, words.data(), n);
      scalar.random_words(99, first, expected.data(), n);
      CHECK(words == expected);
      std::vector<std::uint32_t> rounding(n + kRoundingStep), defined(n + kRoundingStep);
      level.rounding_words(99, 640, rounding.data(), n, x.data());
      scalar.rounding_words(99, 640, defined.data(), n, x.data());
      CHECK(std::equal(rounding.begin(), rounding.begin() + static_cast<std::ptrdiff_t>(n),
                       defined.begin()));
      // Magnitudes up to those of the largest level, and rounded beyond it.
      std::vector<float> small(n);
      for (std::size_t i = 0; i < n; ++i) small[i] = std::fabs(f[i]) <= 1.0f ? f[i] : 1.0f;
      for (unsigned levels : {1u, 7u, 127u}) {
        const float scale = static_cast<float>(levels) * 0x1.00001p24f;
        std::vector<std::uint8_t> symbols(n), wanted(n);
        level.f32_to_zigzag(small.data(), words.data(), scale, levels, symbols.data(), n);
        scalar.f32_to_zigzag(small.data(), words.data(), scale, levels, wanted.data(), n);
        CHECK(symbols == wanted);
        level.f32_to_natural_zigzag(small.data(), words.data(), 1.00001f, levels, symbols.data(),
                                    n);
        scalar.f32_to_natural_zigzag(small.data(), words.data(), 1.00001f, levels, wanted.data(),
                                     n);
        CHECK(symbols == wanted);
        level.zigzag_to_f32(bytes, 0.37f, y.data(), n);
        scalar.zigzag_to_f32(bytes, 0.37f, z.data(), n);
        CHECK(same_bits(y, z));
        level.zigzag_add(bytes, 0.37f, -1.3f, y.data(), n);
        scalar.zigzag_add(bytes, 0.37f, -1.3f, z.data(), n);
        CHECK(same_bits(y, z));
      }

      for (float unit : {0x1p-15f, 0x1p-9f, 1.0f}) {
        // Elements of all widths, mixed with arbitrary ones.
        std::vector<float> mixed = floats(n, 6 + n);
        for (std::size_t i = 0; i < n; ++i) {
          if (i % 4 != 0) mixed[i] = std::ldexp(small[i], -static_cast<int>(i % 17));
        }
        Fixed a(n), b(n);
        const FixedCounts counts = level.fixed_encode(mixed.data(), 1.0f / unit, a.output(), n);
        const FixedCounts wanted = scalar.fixed_encode(mixed.data(), 1.0f / unit, b.output(), n);
        CHECK(same_counts(counts, wanted));
        a.cut(counts);
        b.cut(wanted);
        CHECK((a.low == b.low && a.high == b.high && a.bytes == b.bytes && a.halves == b.halves &&
               a.words == b.words));
        CHECK(same_counts(level.fixed_count(a.low.data(), a.high.data(), a.low.size()), counts));
        b.cut({n + kFixedSlack, n + kFixedSlack / 2, n + kFixedSlack / 4});
        level.fixed_decode(b.input(), unit, y.data(), n);
        scalar.fixed_decode(b.input(), unit, z.data(), n);
        CHECK(same_bits(y, z));
      }

      std::vector<std::uint8_t> codes(n), same(n);
      level.pack_negative(x.data(), codes.data(), n);
      scalar.pack_negative(x.data(), same.data(), n);
      CHECK(codes == same);
      level.select_bits(bytes, 0.7f, -0.1f, y.data(), n);
      scalar.select_bits(bytes, 0.7f, -0.1f, z.data(), n);
      CHECK(same_bits(y, z));
      y = base;
      z = base;
      level.select_bits_add(bytes, 0.7f, -0.1f, y.data(), n);
      scalar.select_bits_add(bytes, 0.7f, -0.1f, z.data(), n);
      CHECK(same_bits(y, z));
      const Moments moments = level.moments(f.data(), n);
      CHECK(moments.sum == scalar.moments(f.data(), n).sum);
      CHECK(moments.squares == scalar.sum_squares(f.data(), n));
      for (float inverse : {0.3f, 1.0f, 40.0f}) {
        const double error = level.level_error(f.data(), bytes, n, inverse, 0.41f);
        CHECK(error == scalar.level_error(f.data(), bytes, n, inverse, 0.41f));
      }
      const SignedSums sums = level.sum_by_sign(f.data(), n);
      CHECK(sums.negative == scalar.sum_by_sign(f.data(), n).negative);
      CHECK(sums.others == scalar.sum_by_sign(f.data(), n).others);
      for (float limit : {7.0f, 127.0f}) {
        level.quantize(f.data(), 100.0f, limit, codes.data(), n);
        scalar.quantize(f.data(), 100.0f, limit, same.data(), n);
        CHECK(codes == same);
        level.quantize_randomly(f.data(), words.data(), 100.0f, limit, codes.data(), n);
        scalar.quantize_randomly(f.data(), words.data(), 100.0f, limit, same.data(), n);
        CHECK(codes == same);
      }
      level.scale_levels(bytes, 0.3f, y.data(), n);
      scalar.scale_levels(bytes, 0.3f, z.data(), n);
      CHECK(same_bits(y, z));
      y = base;
      z = base;
      level.scale_levels_add(bytes, 0.3f, 0.1f, y.data(), n);
      scalar.scale_levels_add(bytes, 0.3f, 0.1f, z.data(), n);
      CHECK(same_bits(y, z));
      level.ternarize(x.data(), words.data(), 0.9f, codes.data(), n);
      scalar.ternarize(x.data(), words.data(), 0.9f, same.data(), n);
      CHECK(codes == same);
      level.natural_encode(x.data(), words.data(), codes.data(), n);
      scalar.natural_encode(x.data(), words.data(), same.data(), n);
      CHECK(codes == same);
      level.natural_decode(bytes, y.data(), n);
      scalar.natural_decode(bytes, z.data(), n);
      CHECK(same_bits(y, z));
      y = base;
      z = base;
      level.natural_add(codes.data(), 0.1f, y.data(), n);
      scalar.natural_add(codes.data(), 0.1f, z.data(), n);
      CHECK(std::equal(y.begin(), y.end(), z.begin(), same_or_both_nan));
      const float largest = bits_float(scalar.max_magnitude(f.data(), n));
      if (largest > 0) {
        level.dynamic8_encode(f.data(), largest, codes.data(), n);
        scalar.dynamic8_encode(f.data(), largest, same.data(), n);
        CHECK(codes == same);
      }
      level.dynamic8_decode(bytes, 0.3f, y.data(), n);
      scalar.dynamic8_decode(bytes, 0.3f, z.data(), n);
      CHECK(same_bits(y, z));
      y = base;
      z = base;
      level.dynamic8_add(bytes, 0.3f, 0.1f, y.data(), n);
      scalar.dynamic8_add(bytes, 0.3f, 0.1f, z.data(), n);
      CHECK(same_bits(y, z));
      level.draw_words(99, first, words.data(), n);
      scalar.draw_words(99, first, expected.data(), n);
      CHECK(words == expected);
      std::vector<std::uint32_t> places(n), same_places(n);
      for (const std::uint64_t step :
           {std::uint64_t{1} << 32, (std::uint64_t{5} << 32) / 3, std::uint64_t{1} << 50}) {
        level.choose_places(words.data(), step / 3, step, 77, places.data(), n);
        scalar.choose_places(words.data(), step / 3, step, 77, same_places.data(), n);
        CHECK(places == same_places);
      }
      CHECK(level.crc32c(7, bytes, 4 * n) == scalar.crc32c(7, bytes, 4 * n));
    }
  }
}

TEST_CASE("byte planes are those of the definition on every level, and joining restores the bits") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    REQUIRE(scope.selected());
    for (std::size_t n : kSizes) {
      CAPTURE(name);
      CAPTURE(n);
      const std::vector<float> any = floats(n, 10 + n);
      std::vector<float> halves = any;
      std::vector<float> tiny = any;  // zeros of both signs, denormals, Inf, NaN
      for (std::size_t i = 0; i < n; ++i) {
        halves[i] = bits_float(float_bits(any[i]) & 0xFFFF0000u);
        const std::uint32_t exponent = i % 3 == 0 ? 0 : i % 3 == 1 ? kInfBits : 1u << 23;
        tiny[i] = bits_float((float_bits(any[i]) & ~kInfBits) | exponent);
      }
      for (const std::vector<float>& x : {any, halves, tiny, std::vector<float>(n)}) {
        const Planes planes(kernels(), x);
        PlaneBits bits{};
        for (std::size_t i = 0; i < n; ++i) {
          const std::uint32_t b = float_bits(x[i]);
          const std::uint32_t rest = (b & 0x7FFFFFu) | b >> 31 << 23;
          bits.any |= (b & kInfBits) << 1 | rest;
          if ((b & kInfBits) == 0) bits.of_zeros |= rest;
          REQUIRE(planes.of[0][i] == ((b & kInfBits) >> 23));
          REQUIRE(planes.of[1][i] == rest >> 16);
          REQUIRE(planes.of[2][i] == (rest >> 8 & 0xFF));
          REQUIRE(planes.of[3][i] == (rest & 0xFF));
        }
        CHECK(planes.bits.any == bits.any);
        CHECK(planes.bits.of_zeros == bits.of_zeros);
        for (const std::vector<std::uint8_t>& plane : planes.of) CHECK(plane[n] == 0xA5);
        CHECK(same_bits(planes.join(kernels(), n), x));
      }
    }
  }
}

TEST_CASE("one element with an exponent of 0 and other bits shows, wherever it is") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    for (std::size_t at = 0; at < 70; ++at) {
      std::vector<float> x(70, 1.5f);
      x[at] = at % 2 == 0 ? -0.0f : bits_float(5);
      CHECK(Planes(kernels(), x).bits.of_zeros == (at % 2 == 0 ? 0x800000u : 5u));
      x[at] = 0.0f;
      CHECK(Planes(kernels(), x).bits.of_zeros == 0);
    }
  }
}

TEST_CASE("bytes with a key are compressed in place and expanded again on every level") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    REQUIRE(scope.selected());
    for (std::size_t n : kSizes) {
      for (std::uint64_t one_in : {1, 2, 20, 100000}) {
        CAPTURE(name);
        CAPTURE(n);
        CAPTURE(one_in);
        const std::vector<std::uint8_t> keys = bytes_with_zeros(n, one_in);
        const std::vector<std::uint8_t> bytes = bytes_with_zeros(n + 1, 256);
        std::vector<std::uint8_t> kept, restored;
        for (std::size_t i = 0; i < n; ++i) {
          if (keys[i] != 0) kept.push_back(bytes[i]);
          restored.push_back(keys[i] != 0 ? bytes[i] : 0);
        }
        std::vector<std::uint8_t> front = bytes;
        REQUIRE(kernels().compress_bytes(keys.data(), front.data(), n) == kept.size());
        CHECK(front[n] == bytes[n]);
        front.resize(kept.size());
        CHECK(front == kept);
        front.shrink_to_fit();  // reads beyond the end are seen by sanitizers
        std::vector<std::uint8_t> out(n + 1, 0xA5);
        const std::uint8_t* const end = front.data() + front.size();
        CHECK(kernels().expand_bytes(keys.data(), front.data(), end, out.data(), n) == end);
        CHECK(out[n] == 0xA5);
        out.resize(n);
        CHECK(out == restored);
      }
    }
  }
}

TEST_CASE("8-bit floats: every level equals the scalar one, also beyond the finite range") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    REQUIRE(scope.selected());
    const Kernels& level = kernels();
    const Kernels& scalar = kScalarKernels;
    for (const Fp8Format& format : {kE4m3, kE5m2}) {
      for (std::size_t n : kSizes) {
        CAPTURE(name);
        CAPTURE(n);
        CAPTURE(format.limit);
        std::vector<std::uint32_t> words(n);
        scalar.random_words(3, n, words.data(), n);
        std::vector<std::uint8_t> a(n), b(n);
        // Ordinary numbers, Inf, NaN and denormals; accumulators are finite.
        for (float inverse : {1.0f, 0.013f, 300.0f, 0x1p-120f}) {
          const std::vector<float> x = floats(n, 20 + n);
          level.fp8_encode(x.data(), inverse, format, a.data(), n);
          scalar.fp8_encode(x.data(), inverse, format, b.data(), n);
          CHECK(a == b);
          level.fp8_encode_randomly(x.data(), words.data(), inverse, format, a.data(), n);
          scalar.fp8_encode_randomly(x.data(), words.data(), inverse, format, b.data(), n);
          CHECK(a == b);
          std::vector<float> y(n), z(n);
          level.fp8_decode(b.data(), format, 0.3f, y.data(), n);
          scalar.fp8_decode(b.data(), format, 0.3f, z.data(), n);
          CHECK(same_bits(y, z));
          y = z = floats(n, 21 + n, true);
          level.fp8_add(b.data(), format, 0.3f, -0.7f, y.data(), n);
          scalar.fp8_add(b.data(), format, 0.3f, -0.7f, z.data(), n);
          CHECK(same_bits(y, z));
        }
      }
    }
  }
}

TEST_CASE("8-bit floats round to the nearest code, ties to even, up to the limit") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    for (const Fp8Format& format : {kE4m3, kE5m2}) {
      std::vector<float> x;
      std::vector<std::uint8_t> expected;
      const auto add = [&](double value, std::size_t code) {
        x.push_back(static_cast<float>(value));
        x.push_back(-x.back());
        expected.push_back(static_cast<std::uint8_t>(code));
        expected.push_back(static_cast<std::uint8_t>(code | 0x80));
      };
      // Values by definition: multiples of the quantum, then numbers with a hidden bit.
      const auto value_of = [&](std::size_t code) {
        const auto hidden = static_cast<std::size_t>(format.least_code);
        const std::size_t exponent = std::max<std::size_t>(code / hidden, 1);
        const std::size_t digits = code < hidden ? code : code % hidden + hidden;
        return static_cast<double>(format.quantum) *
               std::ldexp(static_cast<double>(digits), static_cast<int>(exponent) - 1);
      };
      for (std::size_t code = 0; code < format.last_code; ++code) {
        const double middle = (value_of(code) + value_of(code + 1)) / 2;
        add(value_of(code), code);
        add(middle * (1 - 0x1p-20), code);
        add(middle, code + code % 2);
        add(middle * (1 + 0x1p-20), code + 1);
      }
      CHECK(value_of(format.last_code) == static_cast<double>(format.limit));
      for (double large : {1.0, 1.01, 2.0, 1e30}) {
        add(large * static_cast<double>(format.limit), format.last_code);
      }
      std::vector<std::uint8_t> codes(x.size());
      kernels().fp8_encode(x.data(), 1.0f, format, codes.data(), x.size());
      CHECK(codes == expected);
      // Where the fraction is 0, no random word rounds up.
      std::vector<std::uint32_t> words(2 * (format.last_code + 1), 0xFFFFFFFFu);
      std::vector<float> exact;
      expected.clear();
      for (std::size_t code = 0; code <= format.last_code; ++code) {
        for (std::size_t sign : {0, 0x80}) {
          expected.push_back(static_cast<std::uint8_t>(code | sign));
          const auto value = static_cast<float>(value_of(code));
          exact.push_back(sign != 0 ? -value : value);
        }
      }
      std::vector<float> decoded(exact.size());
      kernels().fp8_decode(expected.data(), format, 1.0f, decoded.data(), exact.size());
      CHECK(same_bits(decoded, exact));
      codes.resize(exact.size());
      kernels().fp8_encode_randomly(exact.data(), words.data(), 1.0f, format, codes.data(),
                                    exact.size());
      CHECK(codes == expected);
    }
  }
}

TEST_CASE("compensate tells whether the result is finite, wherever the fault is") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    for (std::size_t bad = 0; bad < 70; ++bad) {
      std::vector<float> residual(70, 1.0f), grad(70, 2.0f);
      CHECK(kernels().compensate(residual.data(), grad.data(), 1.0f, 1.0f, 70));
      grad[bad] = bits_float(bad % 2 == 0 ? 0x7FC00000u : 0xFF800000u);
      CHECK_FALSE(kernels().compensate(residual.data(), grad.data(), 1.0f, 1.0f, 70));
    }
  }
}

TEST_CASE("collect finds the same candidates on every level, in order, within its capacity") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    for (std::size_t n : kSizes) {
      for (std::uint32_t threshold : {0u, 0x3F000000u, 0x7F000000u, 0x7FFFFFFFu}) {
        const std::vector<float> x = floats(n, 5 + n);
        const std::size_t room = 2 * kCollectSlack + 100;
        std::vector<float> values(room);
        std::vector<std::uint32_t> indices(room);
        std::vector<std::uint32_t> found;
        for (std::size_t begin = 0; begin < n;) {
          std::size_t taken = 0;
          const std::size_t count =
              kernels().collect(x.data() + begin, n - begin, static_cast<std::uint32_t>(begin),
                                threshold, values.data(), indices.data(), room, &taken);
          REQUIRE(taken > 0);
          REQUIRE(count <= room);
          for (std::size_t i = 0; i < count; ++i) {
            CHECK(float_bits(values[i]) == float_bits(x[indices[i]]));
            found.push_back(indices[i]);
          }
          begin += taken;
        }
        std::vector<std::uint32_t> expected;
        for (std::size_t i = 0; i < n; ++i) {
          if ((float_bits(x[i]) & kMagnitudeMask) >= threshold) {
            expected.push_back(static_cast<std::uint32_t>(i));
          }
        }
        CHECK(found == expected);
      }
    }
  }
}

TEST_CASE("dynamic 8-bit codes are of the nearest value, ties to the lower code") {
  const Dynamic8& map = dynamic8();
  CHECK(std::is_sorted(map.values, map.values + 256));
  const auto nearest = [&](float x) {
    std::size_t best = 0;
    for (std::size_t code = 1; code < 256; ++code) {
      const auto distance = [&](std::size_t c) {
        return std::fabs(static_cast<long double>(map.values[c]) - static_cast<long double>(x));
      };
      if (distance(code) < distance(best)) best = code;
    }
    return static_cast<std::uint8_t>(best);
  };
  // Around every border, and at the values themselves.
  std::vector<float> x;
  for (std::size_t code = 0; code + 1 < 256; ++code) {
    const double middle =
        (static_cast<double>(map.values[code]) + static_cast<double>(map.values[code + 1])) / 2;
    const std::uint32_t bits = float_bits(static_cast<float>(middle));
    for (std::uint32_t near : {bits - 2, bits - 1, bits, bits + 1, bits + 2}) {
      x.push_back(bits_float(near));
    }
    x.push_back(map.values[code]);
  }
  for (float one : {0.0f, -0.0f, 1.0f, -1.0f, 1e-40f, -1e-40f, 1e-7f}) x.push_back(one);
  std::vector<std::uint8_t> expected(x.size()), codes(x.size());
  std::transform(x.begin(), x.end(), expected.begin(), nearest);
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    kernels().dynamic8_encode(x.data(), 1.0f, codes.data(), x.size());
    CHECK(codes == expected);
  }
}

TEST_CASE("dynamic 8-bit codes do not depend on the level, whatever the largest magnitude") {
  const Dynamic8& map = dynamic8();
  for (float largest : {0.3f, 1.7e38f, 3.1e-20f, 1.5e-36f, 1e-42f}) {
    CAPTURE(largest);
    std::vector<float> x = {largest, -largest};
    for (std::size_t code = 0; code + 1 < 256; ++code) {
      const double middle =
          (static_cast<double>(map.values[code]) + static_cast<double>(map.values[code + 1])) / 2;
      const std::uint32_t bits = float_bits(static_cast<float>(middle) * largest);
      for (std::uint32_t near = bits - 4; near != bits + 5; ++near) {
        if (std::fabs(bits_float(near)) <= largest) x.push_back(bits_float(near));
      }
    }
    std::vector<std::uint8_t> expected(x.size()), codes(x.size());
    kScalarKernels.dynamic8_encode(x.data(), largest, expected.data(), x.size());
    for (const std::string& name : level_names()) {
      CAPTURE(name);
      LevelScope scope(name);
      kernels().dynamic8_encode(x.data(), largest, codes.data(), x.size());
      CHECK(codes == expected);
    }
  }
}

TEST_CASE("the two elements of a rounding word use its halves in opposite order") {
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    std::vector<std::uint32_t> words(1024);
    kernels().rounding_words(7, 2048, words.data(), words.size(), nullptr);
    for (std::size_t i = 0; i < words.size(); i += 32) {
      for (std::size_t j = i; j < i + 16; ++j) {
        const std::size_t u = (2048 + i) / 2 + j - i;
        CHECK(words[j] == stream_block(7, kRoundingBlocks, u / 4)[u % 4]);
        CHECK(words[j + 16] == (words[j] << 16 | words[j] >> 16));
      }
    }
  }
}

TEST_CASE("CRC-32C of known data") {
  const char* text = "123456789";
  std::vector<std::uint8_t> zeros(32, 0);
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    CHECK(crc32c(reinterpret_cast<const std::uint8_t*>(text), 9) == 0xE3069283u);
    CHECK(crc32c(zeros.data(), zeros.size()) == 0x8A9136AAu);  // RFC 3720, B.4
    CHECK(crc32c(zeros.data(), 0) == 0u);
  }
}

TEST_CASE("CRC-32C of long data at every alignment and length") {
  std::vector<std::uint8_t> data(5 * kCrcLaneBytes);
  Stream stream(9);
  for (std::uint8_t& byte : data) byte = static_cast<std::uint8_t>(stream.next());
  for (const std::string& name : level_names()) {
    LevelScope scope(name);
    for (std::size_t offset = 0; offset < 9; ++offset) {
      for (std::size_t size :
           {511u, 512u, 767u, 768u, 3u * 4096u - 1, 3u * 4096u, 4u * 4096u + 5}) {
        CHECK(kernels().crc32c(1, data.data() + offset, size) ==
              kScalarKernels.crc32c(1, data.data() + offset, size));
      }
    }
  }
}

}  // namespace gradcomp::test
