// How polar_b and polar_ec cut a tensor into blocks of 64 codes, and the second rotation of
// unbiased=true. docs/wire-format.md#polar_b is the norm.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "codec/codec.hpp"
#include "codec/frame_layout.hpp"
#include "codec/payload.hpp"
#include "codec/stage.hpp"
#include "coding/rotation.hpp"
#include "kernels/kernels.hpp"
#include "kernels/polar.hpp"

namespace gradcomp {

// A segment's blocks begin with one of at least so many rows, that the rotation's blocks fit in.
inline constexpr std::size_t kTileRows = kRotationBlock / kLanes;

inline constexpr unsigned kMinPolarLog2 = 10;
inline constexpr unsigned kMaxPolarLog2 = 14;

// From here on, no product underflows; up to there, no sum of the rotation overflows.
inline constexpr double kMinPolarRms = 0x1p-100;
inline constexpr float kMaxRotatedScale = 0x1p100f;

inline unsigned floor_log2(std::size_t n) {
  unsigned log2 = 0;
  while (n >> log2 > 1) ++log2;
  return log2;
}

// Rows of 64 elements that are one codeword of each lane, with a scale. The code has 2^log2 rows,
// of which those beyond the block are not sent.
struct Block {
  std::size_t begin;
  std::size_t end;
  unsigned log2;
};

// What is coded at once: a block; the last segment also has the rows that the rotation's whole
// blocks leave over, as a second one.
struct Segment {
  std::size_t begin;  // in rows
  std::size_t end;
  std::size_t first_block;
  std::size_t last_block;
};

// The rows' logarithm of a full block for the parameter `n`, whose "auto" goes by the tensor's
// size: longer codes are better, as long as a few blocks of them make up most of the tensor.
unsigned polar_block_log2(const std::string& parameter, std::size_t numel);

// The blocks and segments of a tensor of n >= kMinPolarNumel elements.
class BlockCut {
 public:
  BlockCut(std::size_t n, unsigned log2);

  std::size_t numel() const { return n_; }
  std::size_t rows() const { return rows_; }
  std::size_t blocks() const { return blocks_; }
  std::size_t segments() const { return mains_ == 0 ? 1 : mains_; }
  // Up to it a segment and a code fit in.
  std::size_t max_rows() const {
    return (std::size_t{1} << (full_ != 0 ? log2_ : floor_log2(rows_))) + kTileRows;
  }
  std::size_t elements(const Block& block) const {
    return std::min(kLanes * block.end, n_) - kLanes * block.begin;
  }
  // The segment's first element, and how many it has.
  std::size_t first(const Segment& segment) const { return kLanes * segment.begin; }
  std::size_t elements(const Segment& segment) const {
    return std::min(kLanes * segment.end, n_) - kLanes * segment.begin;
  }

  Block block(std::size_t index) const;
  Segment segment(std::size_t index) const;

 private:
  std::size_t n_;
  unsigned log2_;          // of the rows of a full block
  std::size_t rows_;       // the last one may have fewer elements
  std::size_t tile_rows_;  // those that hold whole blocks of the rotation
  std::size_t full_;       // blocks
  std::size_t mains_;      // blocks of tile_rows_
  std::size_t blocks_;
};

// Calls fn(index, block) for the blocks of a segment.
template <typename Fn>
void for_blocks(const BlockCut& cut, const Segment& segment, const Fn& fn) {
  for (std::size_t index = segment.first_block; index <= segment.last_block; ++index) {
    fn(index, cut.block(index));
  }
}

// Calls fn(tile) for the tiles of the rotation that lie in the segment.
template <typename Fn>
void for_tiles(const Segment& segment, const Fn& fn) {
  const std::size_t first = segment.begin / kTileRows;
  // The rows of a last block of less than a tile belong to the tile before, if there is one.
  const std::size_t rows = segment.end - segment.begin;
  const std::size_t count = segment.first_block == segment.last_block
                                ? (rows + kTileRows - 1) / kTileRows
                                : (rows - 1) / kTileRows;
  for (std::size_t tile = first; tile < first + count; ++tile) fn(tile);
}

// Random signs of the elements of a segment, a word per row. Between the rotations and the codes
// they are needed: codewords and Hadamard transforms have so much in common that without these the
// errors of some elements would not average out.
void draw_mask(const Segment& segment, std::uint64_t stream, std::uint64_t* mask);

// The second rotation of unbiased=true, of `count` tiles from `first` on: across tiles, then within
// each. One rotation is not enough: where few tiles hold most of the energy, it makes elements of
// equal magnitudes, between which the smallest of the others decide. Elements of a block of more
// than one tile become sqrt(count) times as large.
void spread(float* v, std::size_t first, std::size_t count, std::uint64_t stream);

// Its inverse, times the number of tiles.
void gather(float* v, std::size_t first, std::size_t count, std::uint64_t stream);

// "preset": whether encoders try several codewords. It has no default, so that specs without it,
// and their hashes in frames, are what they were before there was a choice.
ParamInfo polar_preset_param();

// Smaller tensors travel as float32.
inline constexpr std::size_t kMinPolarNumel = 64;

// What polar_b and polar_ec share as codecs. Self::decode_segments(in, call, n, place, sink) calls
// sink(begin, values, count) for all runs of decoded elements; place(begin, buffer) says where they
// are decoded to.
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
  // The payload of a tensor of less than kMinPolarNumel elements.
  static void encode_small(Span<const float> x, Span<std::uint8_t> out, std::size_t* written) {
    if (!x.empty()) std::memcpy(out.data(), x.data(), 4 * x.size());
    *written = 4 * x.size();
  }

 private:
  const Self& self() const { return static_cast<const Self&>(*this); }
};

}  // namespace gradcomp
