// Writes the payload of a tensor whose plan is made.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "codecs/adaptive/learned_basis.hpp"
#include "codecs/adaptive/reconstruction.hpp"
#include "codecs/adaptive/tensor_plan.hpp"

namespace gradcomp {

// Sets *written to the bytes of the payload, or to 0 if it does not fit `out`: then the step must
// become larger. Uses and changes the symbols of the plan. `points`: the spec has coder=polar.
void write_payload(TensorPlan* plan, bool points, Span<std::uint8_t> out, std::size_t* written);

// What decode_payload() makes of the payload that write_payload() has written last, to the bit; not
// with coder=polar. The plan must stay as it is.
Reconstruction reconstruct(const TensorPlan& plan, const LearnedBasis& basis);

}  // namespace gradcomp
