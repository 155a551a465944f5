#include "wire/parts.hpp"

#include <cstring>
#include <string>

namespace gradcomp {
namespace {

Status kept_codec(const CompiledCodec& codec, const KeptCodec** kept) {
  *kept = dynamic_cast<const KeptCodec*>(codec.codec.get());
  if (*kept != nullptr) return {};
  return {Code::kSpec, "'" + codec.spec +
                           "' has no parts: only its encoder and decoder know its "
                           "payloads"};
}

}  // namespace

Status frame_of_kept(const CompiledCodec& codec, const KeptParts& kept, std::size_t n,
                     std::uint64_t stream, Span<std::uint8_t> out, std::size_t* written) {
  const KeptCodec* packer = nullptr;
  GRADCOMP_TRY(kept_codec(codec, &packer));
  Span<std::uint8_t> room;
  GRADCOMP_TRY(payload_room(codec, n, out, &room));
  std::size_t size = 0;
  GRADCOMP_TRY(packer->pack(kept, n, room, &size));
  *written = close_frame(codec, n, stream, size, out);
  return {};
}

Status frame_of_payload(const CompiledCodec& codec, Span<const std::uint8_t> payload, std::size_t n,
                        std::uint64_t stream, Span<std::uint8_t> out, std::size_t* written) {
  Span<std::uint8_t> room;
  GRADCOMP_TRY(payload_room(codec, n, out, &room));
  if (payload.size() > room.size()) {
    return capacity_error("the payload has " + std::to_string(payload.size()) + " bytes; '" +
                          codec.spec + "' makes at most " + std::to_string(room.size()) + " of " +
                          std::to_string(n) + " elements");
  }
  if (!payload.empty()) std::memcpy(room.data(), payload.data(), payload.size());
  *written = close_frame(codec, n, stream, payload.size(), out);
  return {};
}

Status kept_of_frame(const CompiledCodec& codec, Span<const std::uint8_t> bytes, std::size_t n,
                     Scratch* scratch, KeptParts* kept) {
  const KeptCodec* unpacker = nullptr;
  GRADCOMP_TRY(kept_codec(codec, &unpacker));
  Frame frame;
  GRADCOMP_TRY(payload_of_frame(codec, bytes, n, &frame));
  Call call;
  call.stream = frame.stream;
  call.scratch = scratch;
  return unpacker->unpack(frame.payload, call, n, kept);
}

Status payload_of_frame(const CompiledCodec& codec, Span<const std::uint8_t> bytes, std::size_t n,
                        Frame* frame) {
  GRADCOMP_TRY(open_frame(codec, bytes, frame));
  if (frame->numel == n) return {};
  return wire_error("the frame holds " + std::to_string(frame->numel) + " elements, not " +
                    std::to_string(n));
}

}  // namespace gradcomp
