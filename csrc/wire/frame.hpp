// The frame: a header that makes a payload self-describing. docs/wire-format.md is the
// specification.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.hpp"
#include "codec/compiled.hpp"

namespace gradcomp {

inline constexpr std::uint8_t kFrameMagic[4] = {'G', 'C', 'M', 'P'};
inline constexpr std::uint8_t kFrameVersion = 1;
inline constexpr std::uint8_t kFlagCrc = 1;     // a CRC-32C of everything before it ends the frame
inline constexpr std::uint8_t kFlagStream = 2;  // the header is followed by the random stream's key

struct Frame {
  std::uint8_t version = 0;
  std::uint8_t flags = 0;
  std::uint16_t codec_id = 0;
  std::uint32_t spec_hash = 0;
  std::uint64_t numel = 0;
  std::uint64_t stream = 0;
  Span<const std::uint8_t> payload;
};

// The size of the frame at the start of `bytes`, from its header; `bytes` may be longer or shorter.
Status frame_size(Span<const std::uint8_t> bytes, std::size_t* size);
// Checks the whole header, but not the CRC. Allocates and decodes nothing.
Status parse_frame(Span<const std::uint8_t> bytes, Frame* frame);
// True also for frames without a CRC. parse_frame() must have accepted `bytes`.
bool frame_crc_ok(Span<const std::uint8_t> bytes, const Frame& frame) noexcept;

std::size_t max_frame_size(const CompiledCodec& codec, std::size_t n) noexcept;
// The room of the payload in `out`, which must have max_frame_size(codec, n).
Status payload_room(const CompiledCodec& codec, std::size_t n, Span<std::uint8_t> out,
                    Span<std::uint8_t>* room);
// Completes the frame around a payload in its payload_room(); returns the frame's size.
std::size_t close_frame(const CompiledCodec& codec, std::size_t n, std::uint64_t stream,
                        std::size_t payload_size, Span<std::uint8_t> out);
Status encode_frame(const CompiledCodec& codec, Span<const float> x, const Call& call,
                    Span<std::uint8_t> out, std::size_t* written);
// parse_frame(), then checks that this codec and spec made the frame, and its CRC.
Status open_frame(const CompiledCodec& codec, Span<const std::uint8_t> bytes, Frame* frame);

}  // namespace gradcomp
