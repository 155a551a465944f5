// coder=polar of `adaptive`: decodes a band with groups of levels or points (group_form.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "codecs/adaptive/group_form.hpp"
#include "codecs/adaptive/symbol_stream.hpp"

namespace gradcomp {

// Decodes a stream into matrices; only the last one, the band, has groups. Returns false if `in` is
// not exactly the code of such matrices.
bool decode_groups(Span<const std::uint8_t> in, const ClassTables& levels, const GroupForm& form,
                   std::size_t lanes, Span<LevelMatrix> matrices);

}  // namespace gradcomp
