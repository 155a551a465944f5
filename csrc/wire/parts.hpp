// Frames from their parts, and back: for devices that choose, round and add up elements themselves.
// Headers, coding of indices, checksums and the checks of foreign bytes are implemented here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/compiled.hpp"
#include "codec/kept_codec.hpp"
#include "wire/frame.hpp"

namespace gradcomp {

// The frame of kept units of n elements; see KeptCodec::pack. `out` has max_frame_size(codec, n),
// and the stream is used only for seeded codecs.
Status frame_of_kept(const CompiledCodec& codec, const KeptParts& kept, std::size_t n,
                     std::uint64_t stream, Span<std::uint8_t> out, std::size_t* written);

// The frame of a payload of n elements that this codec's encoder could have made with the stream.
Status frame_of_payload(const CompiledCodec& codec, Span<const std::uint8_t> payload, std::size_t n,
                        std::uint64_t stream, Span<std::uint8_t> out, std::size_t* written);

// The kept units of a frame of n elements, in scratch memory. Every byte is checked.
Status kept_of_frame(const CompiledCodec& codec, Span<const std::uint8_t> bytes, std::size_t n,
                     Scratch* scratch, KeptParts* kept);

// Content of a frame: kept units, or a payload.
struct FrameParts {
  const CompiledCodec* codec = nullptr;
  std::size_t n = 0;
  std::uint64_t stream = 0;
  bool has_payload = false;
  KeptParts kept;
  Span<const std::uint8_t> payload;
};

// Writes frames to `out` without gaps, on all threads; sizes[i] is the size of frame i. `out` has
// the sum of max_frame_size().
Status frames_of_parts(Span<const FrameParts> frames, Span<std::uint8_t> out,
                       Span<std::size_t> sizes);

// A frame of n elements.
struct CodedFrame {
  const CompiledCodec* codec = nullptr;
  Span<const std::uint8_t> bytes;
  std::size_t n = 0;
};

// Kept units with their own memory.
struct OwnedKept {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;
};

// kept_of_frame() for several frames, on all threads. After an error `kept` must be discarded.
Status kept_of_frames(Span<const CodedFrame> frames, Span<OwnedKept> kept);

// Frames with their payloads, on all threads; every byte is checked. After an error `opened` must
// be discarded.
Status payloads_of_frames(Span<const CodedFrame> frames, Span<Frame> opened);

// Checks the header of a frame of n elements, and its CRC. The bytes of the payload itself are not
// checked: whoever decodes it must do so.
Status payload_of_frame(const CompiledCodec& codec, Span<const std::uint8_t> bytes, std::size_t n,
                        Frame* frame);

}  // namespace gradcomp
