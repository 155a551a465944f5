// Random signs of polar codes, and the second rotation of unbiased=true.
// docs/wire-format.md#polar_b is the specification.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codecs/polar/block_cut.hpp"

namespace gradcomp {

// Random signs for the elements of a segment, one word per row. They stand between the elements,
// rotated if they are, and the codes. Codewords resemble Hadamard transforms, and codes of few
// words describe few directions: without signs the errors of some elements would never average out.
void draw_mask(const Segment& segment, std::uint64_t stream, std::uint64_t* mask);

// Rotates `count` tiles from tile `first` on: across tiles, then within each. One rotation is not
// enough: if few tiles hold most of the energy, it yields elements of equal magnitude, and the
// smallest of the other elements decide between them. In blocks of more than one tile, elements
// grow by the factor sqrt(count).
void spread(float* v, std::size_t first, std::size_t count, std::uint64_t stream);

// Inverse of spread(), times the number of tiles.
void gather(float* v, std::size_t first, std::size_t count, std::uint64_t stream);

}  // namespace gradcomp
