// Shared by polar_b and polar_ec: parameters, stage row, and decoding around their codes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "base/bytes.hpp"
#include "codec/codec.hpp"
#include "codec/frame_layout.hpp"
#include "codec/payload.hpp"
#include "codec/stage.hpp"
#include "codecs/polar/block_cut.hpp"
#include "codecs/polar/second_rotation.hpp"
#include "coding/rotation.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp {

// Smaller tensors are sent as float32.
inline constexpr std::size_t kMinPolarNumel = 64;

// From this root mean square on, no product underflows.
inline constexpr double kMinPolarRms = 0x1p-100;
// Up to this scale, no sum of the inverse rotation overflows.
inline constexpr float kMaxRotatedScale = 0x1p100f;

// Stage row of the family, without name, id, summary, paper, example and make. `rate` is the
// parameter of that name.
StageInfo polar_family_stage(ParamInfo rate);

// Values of the family's parameters.
struct PolarParams {
  explicit PolarParams(const Recipe& recipe);

  // Growth of the squares of elements in the second rotation.
  double spread_gain(const BlockCut& cut, const Block& block) const {
    const std::size_t tiles = cut.elements(block) / kRotationBlock;
    return unbiased && tiles > 1 ? static_cast<double>(tiles) : 1.0;
  }

  double rate;
  std::string n;
  bool unbiased;
  bool rotated;
  bool best;  // list encoder: several candidates per code
};

// Base class of polar_b and polar_ec. Self::decode_segments(in, call, n, place, sink) calls
// sink(begin, values, count) for all runs of decoded elements; place(begin, buffer) returns their
// destination.
template <typename Self>
class PolarCodec : public Codec {
 public:
  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const final {
    if (y.size() < kMinPolarNumel) {
      GRADCOMP_TRY(check_payload_size(in, 4 * y.size(), y.size()));
      if (!y.empty()) std::memcpy(y.data(), in.data(), 4 * y.size());
      return {};
    }
    return self().decode_segments(
        in, call, y.size(), [&](std::size_t begin, float*) { return y.data() + begin; },
        [](std::size_t, const float*, std::size_t) {});
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const final {
    if (acc.size() < kMinPolarNumel) {
      GRADCOMP_TRY(check_payload_size(in, 4 * acc.size(), acc.size()));
      kernels().f32_add(in.data(), weight, acc.data(), acc.size());
      return {};
    }
    return self().decode_segments(
        in, call, acc.size(), [](std::size_t, float* buffer) { return buffer; },
        [&](std::size_t begin, const float* v, std::size_t count) {
          kernels().f32_add(reinterpret_cast<const std::uint8_t*>(v), weight, acc.data() + begin,
                            count);
        });
  }

 protected:
  explicit PolarCodec(const Recipe& recipe) : params_(recipe) {}

  // Writes the payload of a tensor of less than kMinPolarNumel elements.
  static void encode_small(Span<const float> x, Span<std::uint8_t> out, std::size_t* written) {
    if (!x.empty()) std::memcpy(out.data(), x.data(), 4 * x.size());
    *written = 4 * x.size();
  }

  // Calls sink(begin, values, count) for runs of decoded elements of the segment. place(begin,
  // buffer) returns their destination; `floats` is the buffer. fill(begin, end, y) writes elements
  // that are still rotated; with unbiased=true it is called once, for the whole segment.
  template <typename Fill, typename Place, typename Sink>
  void expand(const BlockCut& cut, const Segment& segment, const Rotation& rotation,
              const std::uint8_t* scales, float* floats, const Fill& fill, const Place& place,
              const Sink& sink) const {
    const std::size_t begin = cut.first(segment);
    const std::size_t end = begin + cut.elements(segment);
    if (!params_.rotated) {
      for (std::size_t first = begin; first < end; first += kRotationBlock) {
        const std::size_t last = std::min(first + kRotationBlock, end);
        float* const v = place(first, floats);
        fill(first, last, v);
        sink(first, v, last - first);
      }
      return;
    }
    bool usable = true;
    for_blocks(cut, segment, [&](std::size_t index, const Block&) {
      usable = usable && std::fabs(load<float>(scales + 4 * index)) <= kMaxRotatedScale;
    });
    if (params_.unbiased && usable) {
      float* const v = place(begin, floats);
      fill(begin, end, v);
      gather(v, begin / kRotationBlock, (end - begin) / kRotationBlock, rotation.stream());
    }
    for_tiles(segment, [&](std::size_t tile) {
      const std::size_t first = rotation.tile_begin(tile);
      const std::size_t size = rotation.tile_size(tile);
      float* const v = place(first, params_.unbiased ? floats + (first - begin) : floats);
      if (!usable) {
        std::fill(v, v + size, std::numeric_limits<float>::quiet_NaN());
      } else {
        if (!params_.unbiased) fill(first, first + size, v);
        rotation.inverse(tile, v);
      }
      sink(first, v, size);
    });
  }

  const PolarParams params_;

 private:
  const Self& self() const { return static_cast<const Self&>(*this); }
};

}  // namespace gradcomp
