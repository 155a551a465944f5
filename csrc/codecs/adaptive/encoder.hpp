// Writes the payload of a tensor whose plan is made.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "codecs/adaptive/tensor_plan.hpp"

namespace gradcomp {

// Sets *written to the bytes of the payload, or to 0 if it does not fit `out`: then the step must
// become larger. Uses and changes the symbols of the plan. `points`: the spec has coder=polar.
void write_payload(TensorPlan* plan, bool points, Span<std::uint8_t> out, std::size_t* written);

}  // namespace gradcomp
