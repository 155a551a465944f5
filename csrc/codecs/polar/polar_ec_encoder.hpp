// Encoder of polar_ec: searches for the step that yields the rate, and codes segments with it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"
#include "codecs/polar/polar_codec.hpp"
#include "codecs/polar/polar_ec_payload.hpp"
#include "coding/rotation.hpp"
#include "polar/lattice_step.hpp"

namespace gradcomp {

class PolarEcEncoder {
 public:
  // `trees` must outlive the encoder.
  PolarEcEncoder(const PolarParams& params, const PolarEcTrees& trees);

  // Encodes a tensor of at least kMinPolarNumel elements; `out` has layout.max_size() bytes.
  Status encode(const PolarEcLayout& layout, Span<const float> x, const Call& call,
                std::uint8_t* out, std::size_t* written) const;

 private:
  struct EncodeSpace;
  class Outliers;

  Magnitudes sample(const Rotation& rotation, const float* x, std::size_t n) const;
  // Encodes with one step; with unbiased=true, it is in root mean squares of the segment.
  Status encode_at(const PolarEcLayout& layout, const Rotation& rotation, const float* x,
                   double step, const Call& call, std::uint8_t* payload,
                   std::size_t* written) const;
  double block_step(const PolarEcLayout& layout, const Block& block, double step) const;
  // Fills space.floats with the whole segment after both rotations.
  void spread_segment(const PolarEcLayout& layout, const Segment& segment, const Rotation& rotation,
                      const float* x, EncodeSpace& space) const;
  // Fills space.places and space.llr, and adds to the outliers; returns the bits of the largest
  // magnitude in steps of the first block.
  std::uint32_t find_places(const PolarEcLayout& layout, const Segment& segment,
                            const Rotation& rotation, const float* x, double step,
                            EncodeSpace& space, Outliers* outliers) const;
  // Codes one block, from its places and LLRs.
  LatticeSums encode_block(const PolarEcLayout& layout, const Segment& segment, const Block& block,
                           std::size_t unit_begin, const Outlier* outliers,
                           const Outlier* outliers_end, EncodeSpace& space,
                           std::uint8_t* payload) const;
  // Writes the segment's scales and words to the payload, its indices to the unit's, and adds to
  // the outliers.
  void encode_segment(const PolarEcLayout& layout, const Segment& segment, const Rotation& rotation,
                      const float* x, double step, std::size_t unit_begin, EncodeSpace& space,
                      Outliers* outliers, std::uint8_t* payload) const;
  float scale_of(const PolarEcLayout& layout, const Segment& segment, const Block& block,
                 double step, float largest, const LatticeSums& sums,
                 const EncodeSpace& space) const;

  PolarParams params_;
  const PolarEcTrees& trees_;
  LatticeDesign design_;
  Magnitudes normal_;
};

}  // namespace gradcomp
