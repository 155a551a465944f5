// Fixed point in 0, 1 or 2 bytes within an error bound; float32 from 1 on. Payload: blocks of 1024
// elements, each with two planes of tag bits and then its elements by width.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "base/bytes.hpp"
#include "base/chunks.hpp"
#include "codec/payload.hpp"
#include "codecs/codecs.hpp"
#include "coding/bits.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {
namespace {

constexpr std::size_t kBlock = 1024;
static_assert(kChunk % kBlock == 0, "a block is one thread's");

// Greatest payload size of n elements, or of whole blocks before others.
std::size_t max_bytes(std::size_t n) { return 4 * n + 2 * bit_bytes(n); }

std::size_t data_bytes(const FixedCounts& counts) {
  return counts.bytes + 2 * counts.halves + 4 * counts.words;
}

class Inceptionn final : public Codec {
 public:
  // Half a unit, the error of rounding, is the largest power of two within the bound.
  explicit Inceptionn(const Params& params)
      : unit_(std::ldexp(1.0f, std::ilogb(params.real("error_bound")) + 1)) {}

  Caps caps() const noexcept override { return {}; }

  std::size_t max_encoded_size(std::size_t n) const noexcept override { return max_bytes(n); }

  Status encode(Span<const float> x, const Call&, Span<std::uint8_t> out,
                std::size_t* written) const override {
    GRADCOMP_TRY(check_room(out, max_bytes(x.size())));
    // Every range is written at its latest possible start; then gaps are closed.
    const std::size_t ranges = range_count(x.size());
    std::array<Span<std::uint8_t>, kMaxThreads> parts;
    for_ranges(x.size(), ranges, [&](std::size_t range, std::size_t begin, std::size_t end) {
      std::uint8_t* const first = out.data() + max_bytes(begin);
      std::uint8_t* next = first;
      for (; begin < end; begin += kBlock) {
        next = encode_block(x.data() + begin, std::min(kBlock, end - begin), next);
      }
      parts[range] = {first, static_cast<std::size_t>(next - first)};
    });
    *written = parts[0].size();
    for (std::size_t range = 1; range < ranges; ++range) {
      std::memmove(out.data() + *written, parts[range].data(), parts[range].size());
      *written += parts[range].size();
    }
    return {};
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    Span<std::size_t> offsets;
    GRADCOMP_TRY(find_chunks(in, y.size(), call, &offsets));
    for_blocks_in(in, y.size(), offsets, [&](std::size_t begin, std::size_t n, const auto& block) {
      kernels().fixed_decode(block, unit_, y.data() + begin, n);
    });
    return {};
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override {
    Span<std::size_t> offsets;
    GRADCOMP_TRY(find_chunks(in, acc.size(), call, &offsets));
    for_blocks_in(in, acc.size(), offsets,
                  [&](std::size_t begin, std::size_t n, const auto& block) {
                    alignas(64) float y[kBlock];
                    kernels().fixed_decode(block, unit_, y, n);
                    kernels().f32_add(reinterpret_cast<const std::uint8_t*>(y), weight,
                                      acc.data() + begin, n);
                  });
    return {};
  }

 private:
  std::uint8_t* encode_block(const float* x, std::size_t n, std::uint8_t* out) const {
    std::uint8_t bytes[kBlock + kFixedSlack];
    std::uint8_t halves[2 * kBlock + kFixedSlack];
    std::uint8_t words[4 * kBlock + kFixedSlack];
    const std::size_t plane = bit_bytes(n);
    const FixedCounts counts =
        kernels().fixed_encode(x, 1.0f / unit_, {out, out + plane, bytes, halves, words}, n);
    out += 2 * plane;
    std::memcpy(out, bytes, counts.bytes);
    out += counts.bytes;
    std::memcpy(out, halves, 2 * counts.halves);
    out += 2 * counts.halves;
    std::memcpy(out, words, 4 * counts.words);
    return out + 4 * counts.words;
  }

  // Checks all sizes, and finds the start of each chunk.
  static Status find_chunks(Span<const std::uint8_t> in, std::size_t n, const Call& call,
                            Span<std::size_t>* offsets) {
    std::size_t left = in.size();
    const std::size_t planes = 2 * bit_bytes(n);
    if (left < planes) {
      return wire_error("the payload has " + std::to_string(left) + " bytes; the tags of " +
                        std::to_string(n) + " elements alone need " + std::to_string(planes));
    }
    *offsets = call.scratch->get<std::size_t>(0, chunk_count(n) + 1);
    if (offsets->empty()) return capacity_error("out of memory while decoding fixed point");
    for (std::size_t begin = 0; begin < n; begin += kBlock) {
      const std::size_t at = in.size() - left;
      if (begin % kChunk == 0) (*offsets)[begin / kChunk] = at;
      const std::size_t count = std::min(kBlock, n - begin);
      const std::size_t plane = bit_bytes(count);
      std::size_t needed = 2 * plane;
      if (left >= needed) {
        const std::uint8_t* const low = in.data() + at;
        needed += data_bytes(kernels().fixed_count(low, low + plane, plane));
        if (count % 8 != 0 && (low[plane - 1] | low[2 * plane - 1]) >> count % 8 != 0) {
          return wire_error("a tag beyond the last of " + std::to_string(n) + " elements is not 0");
        }
      }
      if (left < needed) {
        return wire_error("the block of element " + std::to_string(begin) + " needs " +
                          std::to_string(needed) + " bytes, and " + std::to_string(left) +
                          " are left");
      }
      left -= needed;
    }
    if (left > 0) return wire_error(std::to_string(left) + " bytes follow the last block");
    return {};
  }

  // Calls fn(begin, count, block) for every block of a checked payload.
  template <typename Fn>
  static void for_blocks_in(Span<const std::uint8_t> in, std::size_t n, Span<std::size_t> offsets,
                            const Fn& fn) {
    for_chunks(n, [&](std::size_t chunk, std::size_t begin, std::size_t end) {
      std::uint8_t copy[4 * kBlock + kBlock / 4 + kFixedSlack];
      const std::uint8_t* next = in.data() + offsets[chunk];
      for (; begin < end; begin += kBlock) {
        const std::size_t count = std::min(kBlock, end - begin);
        const std::size_t plane = bit_bytes(count);
        const FixedCounts counts = kernels().fixed_count(next, next + plane, plane);
        const std::size_t size = 2 * plane + data_bytes(counts);
        const std::uint8_t* block = next;
        // The kernel may read beyond the block, but not beyond the payload.
        if (static_cast<std::size_t>(in.end() - next) < size + kFixedSlack) {
          std::memcpy(copy, next, size);
          block = copy;
        }
        const std::uint8_t* const bytes = block + 2 * plane;
        const std::uint8_t* const halves = bytes + counts.bytes;
        fn(begin, count,
           FixedInput{block, block + plane, bytes, halves, halves + 2 * counts.halves});
        next += size;
      }
    });
  }

  float unit_;
};

}  // namespace

StageInfo inceptionn_stage() {
  StageInfo stage;
  stage.name = "inceptionn";
  stage.id = 23;
  stage.summary =
      "each element in 0, 8 or 16 bits of fixed point within an error bound, or in 32 bits from "
      "magnitude 1 on, plus a tag of 2 bits";
  stage.paper =
      "Li, Park, Alian, Yuan, Qu, Pan, Wang, Schwing, Esmaeilzadeh, Kim: A Network-Centric "
      "Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep Neural Networks, "
      "MICRO 2018; but that 8 bits are used only where the bound allows it";
  stage.nonfinite = "kept";
  stage.example = "inceptionn";
  stage.params = {real_param("error_bound", "0.0009765625", 0x1p-16, 0.5,
                             "largest absolute error; rounded down to a power of two")};
  stage.make = [](const Recipe& recipe) -> std::unique_ptr<Codec> {
    return std::make_unique<Inceptionn>(recipe.params);
  };
  return stage;
}

}  // namespace gradcomp
