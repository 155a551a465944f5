// Successive cancellation list decoding: Tal, Vardy, "List Decoding of Polar Codes", IEEE Trans.
// Inf. Theory 61(5), 2015, with the LLR path metric of Balatsoukas-Stimming, Bastani Parizi, Burg,
// "LLR-Based Successive Cancellation List Decoding of Polar Codes", IEEE Trans. Signal Process.
// 63(19), 2015.
#pragma once

#include "base/span.hpp"
#include "polar/construction.hpp"
#include "polar/sc_decoder.hpp"

namespace gradcomp::polar_code {

inline constexpr std::size_t kMaxListSize = 64;

// Number of paths at the end: list_size, or all 2^K messages if there are fewer.
std::size_t path_count(const Code& code, std::size_t list_size) noexcept;

// llrs: [blocks, N]. messages: [blocks, paths, K], best first. metrics: [blocks, paths]: the sum of
// -ln P over all decisions, ascending. Ties: the path that ranked higher before, then the likelier
// decision. A list of one is successive cancellation.
Status list_decode(const Code& code, Span<const double> llrs, std::size_t list_size,
                   const DecodeOptions& options, Span<std::uint8_t> messages, Span<double> metrics);

}  // namespace gradcomp::polar_code
