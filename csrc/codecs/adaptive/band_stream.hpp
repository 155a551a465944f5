// The whole stream of a band: the excesses, and a run of rANS with the factors' high numbers, the
// flags of zero groups and the levels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/span.hpp"
#include "codecs/adaptive/symbol_stream.hpp"
#include "codecs/adaptive/zero_groups.hpp"

namespace gradcomp {

// Writes a whole stream; zones[i] is the quantizer of matrices[i]. `groups`: nullptr, or those of
// the last matrix, with the table of their flags. Returns the bytes, or 0 if they are more than
// `capacity`.
std::size_t encode_stream(Span<const SymbolMatrix> matrices, const DeadZone* zones,
                          const RansEncodeTable& table, const BandGroups* groups,
                          const RansEncodeTable& flags, std::size_t lanes, std::uint8_t* out,
                          std::size_t capacity);

// Reads a whole stream. `flags`: nullptr, or the table of the last matrix's flags. Returns false if
// `in` is not exactly the code of such matrices.
bool decode_stream(Span<const std::uint8_t> in, const ClassTables& tables, const FlagTable* flags,
                   std::size_t lanes, Span<LevelMatrix> matrices);

}  // namespace gradcomp
