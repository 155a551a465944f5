// Frames from their parts, and back: for devices that choose, round and add up elements themselves.
// Headers, coding of indices, checksums and the checks of foreign bytes stay here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/compiled.hpp"
#include "codec/kept_codec.hpp"
#include "wire/frame.hpp"

namespace gradcomp {

// The frame of kept units of n elements; see KeptCodec::pack. `out` has max_frame_size(codec, n),
// and the stream counts for seeded codecs alone.
Status frame_of_kept(const CompiledCodec& codec, const KeptParts& kept, std::size_t n,
                     std::uint64_t stream, Span<std::uint8_t> out, std::size_t* written);

// The frame of a payload of n elements that this codec's encoder could have made with the stream.
Status frame_of_payload(const CompiledCodec& codec, Span<const std::uint8_t> payload, std::size_t n,
                        std::uint64_t stream, Span<std::uint8_t> out, std::size_t* written);

// The kept units of a frame of n elements, in scratch memory. Every byte is checked.
Status kept_of_frame(const CompiledCodec& codec, Span<const std::uint8_t> bytes, std::size_t n,
                     Scratch* scratch, KeptParts* kept);

// Checks the header of a frame of n elements, and its CRC. The bytes of the payload itself are not
// checked: whoever decodes it must do so.
Status payload_of_frame(const CompiledCodec& codec, Span<const std::uint8_t> bytes, std::size_t n,
                        Frame* frame);

}  // namespace gradcomp
