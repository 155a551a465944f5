// Reads the payload of a tensor with at least kMinAdaptive elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/scratch.hpp"
#include "base/span.hpp"
#include "base/status.hpp"

namespace gradcomp {

// The parameters of the spec that the format depends on, and the decoder's learned basis.
struct DecodeOptions {
  bool points = false;             // coder=polar
  bool basis = false;              // preset=basis
  Span<const float> learned = {};  // BucketCall::basis
};

// y = the decoded tensor
Status decode_payload(Span<const std::uint8_t> in, const DecodeOptions& options, Scratch& scratch,
                      Span<float> y);

// acc += weight * the decoded tensor; on an error acc is untouched.
Status decode_payload_add(Span<const std::uint8_t> in, const DecodeOptions& options,
                          Scratch& scratch, float weight, Span<float> acc);

}  // namespace gradcomp
