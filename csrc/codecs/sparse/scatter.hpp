// Reads and writes few elements of a large tensor. Each may be in a different cache line and page,
// so they are prefetched.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"

namespace gradcomp {

// Indices ascend and stand for units of `unit` elements each; the tensor's last unit may be
// shorter. Values are those of the units' elements, one unit after the other.

// values[i] = x[indices[i]]
void gather(Span<const float> x, Span<const std::uint32_t> indices, float* values);
// y = the values at their units, 0 elsewhere
void scatter(Span<const std::uint32_t> indices, std::size_t unit, const float* values,
             Span<float> y);
// acc += weight * the values at their units
void scatter_add(Span<const std::uint32_t> indices, std::size_t unit, const float* values,
                 float weight, Span<float> acc);
// The same for a piece of the tensor: acc[0] is its element `begin`
void scatter_add_piece(Span<const std::uint32_t> indices, std::size_t unit, const float* values,
                       float weight, std::size_t begin, Span<float> acc);
// counts += 1 at the units
void scatter_count(Span<const std::uint32_t> indices, std::size_t unit, Span<std::uint16_t> counts);
// y = 0 at the units
void scatter_zeros(Span<const std::uint32_t> indices, std::size_t unit, Span<float> y);

}  // namespace gradcomp
