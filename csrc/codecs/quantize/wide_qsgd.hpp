// QSGD with more than 127 levels: symbols of 9 to 17 bits.
#pragma once

#include <memory>

#include "codec/codec.hpp"
#include "codec/stage.hpp"
#include "codecs/quantize/bucket_norms.hpp"

namespace gradcomp {

// Reads the parameters `levels`, 128 to 65535, and `bucket`, and the coder stage.
std::unique_ptr<Codec> make_wide_qsgd(const Recipe& recipe, Norm norm);

}  // namespace gradcomp
