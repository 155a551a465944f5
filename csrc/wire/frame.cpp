#include "wire/frame.hpp"

#include <cstdio>
#include <cstring>
#include <string>

#include "base/bytes.hpp"
#include "codec/feedback.hpp"
#include "codec/frame_layout.hpp"
#include "kernels/crc32c.hpp"
#include "stages/registry.hpp"

namespace gradcomp {
namespace {

std::string hex(std::uint32_t value) {
  char text[11];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

std::string codec_text(std::uint16_t id) {
  const StageInfo* info = find_stage(id);
  if (info != nullptr) return std::to_string(id) + " (" + std::string(info->name) + ")";
  return std::to_string(id) +
         (id < kFirstPluginId ? "" : " (of a plug-in that is not installed here)");
}

std::size_t header_size(std::uint8_t flags) {
  return kFrameHeader + ((flags & kFlagStream) != 0 ? kFrameStream : 0);
}

// Flags that an encoder sets.
std::uint8_t frame_flags(const CompiledCodec& codec) {
  return static_cast<std::uint8_t>(kFlagCrc | (codec.codec->caps().seeded ? kFlagStream : 0));
}

Status check_numel(std::uint64_t numel) {
  if (numel <= kMaxNumel) return {};
  return capacity_error("a tensor of " + std::to_string(numel) + " elements: at most " +
                        std::to_string(kMaxNumel) + " are allowed; split it");
}

}  // namespace

Status frame_size(Span<const std::uint8_t> bytes, std::size_t* size) {
  const std::uint8_t* const p = bytes.data();
  if (bytes.size() < kFrameHeader) {
    return wire_error("truncated frame: " + std::to_string(bytes.size()) +
                      " bytes, and the header alone has " + std::to_string(kFrameHeader));
  }
  if (std::memcmp(p, kFrameMagic, sizeof kFrameMagic) != 0) {
    return wire_error("not a gradcomp frame: it does not begin with 'GCMP'");
  }
  if (p[4] != kFrameVersion) {
    return wire_error("frame version " + std::to_string(p[4]) + "; this gradcomp reads version " +
                      std::to_string(kFrameVersion));
  }
  const std::uint8_t flags = p[5];
  if ((flags & ~(kFlagCrc | kFlagStream)) != 0) {
    return wire_error("unknown frame flags " + hex(flags));
  }
  *size = header_size(flags) + load<std::uint32_t>(p + 12) + ((flags & kFlagCrc) != 0 ? 4 : 0);
  return {};
}

Status parse_frame(Span<const std::uint8_t> bytes, Frame* frame) {
  std::size_t size = 0;
  GRADCOMP_TRY(frame_size(bytes, &size));
  const std::uint8_t* const p = bytes.data();
  frame->version = p[4];
  frame->flags = p[5];
  frame->codec_id = load<std::uint16_t>(p + 6);
  frame->spec_hash = load<std::uint32_t>(p + 8);
  frame->numel = load<std::uint64_t>(p + 16);
  if (frame->numel > kMaxNumel) {
    return wire_error("the frame claims " + std::to_string(frame->numel) + " elements; at most " +
                      std::to_string(kMaxNumel) + " are allowed");
  }
  if (bytes.size() != size) {
    return wire_error("the frame has " + std::to_string(bytes.size()) +
                      " bytes; its header promises " + std::to_string(size));
  }
  frame->stream = (frame->flags & kFlagStream) != 0 ? load<std::uint64_t>(p + kFrameHeader) : 0;
  frame->payload = {p + header_size(frame->flags), load<std::uint32_t>(p + 12)};
  return {};
}

bool frame_crc_ok(Span<const std::uint8_t> bytes, const Frame& frame) noexcept {
  if ((frame.flags & kFlagCrc) == 0) return true;
  const std::size_t covered = bytes.size() - kFrameCrc;
  return crc32c(bytes.data(), covered) == load<std::uint32_t>(bytes.data() + covered);
}

std::size_t max_frame_size(const CompiledCodec& codec, std::size_t n) noexcept {
  return header_size(frame_flags(codec)) + codec.codec->max_encoded_size(n) + kFrameCrc;
}

Status payload_room(const CompiledCodec& codec, std::size_t n, Span<std::uint8_t> out,
                    Span<std::uint8_t>* room) {
  GRADCOMP_TRY(check_numel(n));
  const std::size_t needed = max_frame_size(codec, n);
  if (out.size() < needed) {
    return capacity_error("the output buffer has " + std::to_string(out.size()) +
                          " bytes; this frame may need " + std::to_string(needed));
  }
  const std::size_t head = header_size(frame_flags(codec));
  *room = {out.data() + head, needed - head - kFrameCrc};
  return {};
}

std::size_t close_frame(const CompiledCodec& codec, std::size_t n, std::uint64_t stream,
                        std::size_t payload_size, Span<std::uint8_t> out) {
  const std::uint8_t flags = frame_flags(codec);
  std::uint8_t* const p = out.data();
  std::memcpy(p, kFrameMagic, sizeof kFrameMagic);
  p[4] = kFrameVersion;
  p[5] = flags;
  store(p + 6, codec.info->id);
  store(p + 8, codec.spec_hash);
  store(p + 12, static_cast<std::uint32_t>(payload_size));
  store(p + 16, static_cast<std::uint64_t>(n));
  if ((flags & kFlagStream) != 0) store(p + kFrameHeader, stream);
  const std::size_t covered = header_size(flags) + payload_size;
  store(p + covered, crc32c(p, covered));
  return covered + kFrameCrc;
}

Status encode_frame(const CompiledCodec& codec, Span<const float> x, const Call& call,
                    Span<std::uint8_t> out, std::size_t* written) {
  Span<std::uint8_t> room;
  GRADCOMP_TRY(payload_room(codec, x.size(), out, &room));
  std::size_t payload_size = 0;
  GRADCOMP_TRY(encode_payload(*codec.codec, x, call, room, &payload_size));
  *written = close_frame(codec, x.size(), call.stream, payload_size, out);
  return {};
}

Status open_frame(const CompiledCodec& codec, Span<const std::uint8_t> bytes, Frame* frame) {
  GRADCOMP_TRY(parse_frame(bytes, frame));
  if (frame->codec_id != codec.info->id) {
    return wire_error("the frame was made by codec " + codec_text(frame->codec_id) +
                      ", not by codec " + codec_text(codec.info->id));
  }
  if (frame->spec_hash != codec.spec_hash) {
    return wire_error("the frame was made with other parameters: its spec hash is " +
                      hex(frame->spec_hash) + ", that of '" + codec.spec + "' is " +
                      hex(codec.spec_hash));
  }
  const bool has_stream = (frame->flags & kFlagStream) != 0;
  if (has_stream != codec.codec->caps().seeded) {
    return wire_error(has_stream
                          ? "the frame carries a random stream, which this codec does not use"
                          : "the frame lacks the random stream that this codec needs");
  }
  if (!frame_crc_ok(bytes, *frame)) {
    return wire_error("the frame is damaged: its CRC-32C does not match its bytes");
  }
  return {};
}

}  // namespace gradcomp
