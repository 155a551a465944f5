// The frame: a header that makes a payload self-describing. docs/wire-format.md is the norm.
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

// The size of the frame that `bytes` begin with, as its header promises; more may follow, or less.
Status frame_size(Span<const std::uint8_t> bytes, std::size_t* size);
// Checks all but the CRC, before anything is allocated or decoded.
Status parse_frame(Span<const std::uint8_t> bytes, Frame* frame);
// True also for frames without one. `bytes` is what parse_frame accepted.
bool frame_crc_ok(Span<const std::uint8_t> bytes, const Frame& frame) noexcept;

std::size_t max_frame_size(const CompiledCodec& codec, std::size_t n) noexcept;
Status encode_frame(const CompiledCodec& codec, Span<const float> x, const Call& call,
                    Span<std::uint8_t> out, std::size_t* written);
// parse_frame, then: made by this codec and spec, and undamaged.
Status open_frame(const CompiledCodec& codec, Span<const std::uint8_t> bytes, Frame* frame);

}  // namespace gradcomp
