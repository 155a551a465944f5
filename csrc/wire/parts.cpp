#include "wire/parts.hpp"

#include <cstring>
#include <new>
#include <string>

#include "base/scratch.hpp"
#include "base/thread_pool.hpp"
#include "wire/frame_rooms.hpp"

namespace gradcomp {
namespace {

Status kept_codec(const CompiledCodec& codec, const KeptCodec** kept) {
  *kept = dynamic_cast<const KeptCodec*>(codec.codec.get());
  if (*kept != nullptr) return {};
  return {Code::kSpec, "'" + codec.spec +
                           "' has no parts: only its encoder and decoder know its "
                           "payloads"};
}

Status own_parts(const CodedFrame& frame, OwnedKept* owned) {
  KeptParts kept;
  GRADCOMP_TRY(kept_of_frame(*frame.codec, frame.bytes, frame.n, &thread_scratch(), &kept));
  try {
    owned->indices.assign(kept.indices.begin(), kept.indices.end());
    owned->values.assign(kept.values.begin(), kept.values.end());
  } catch (const std::bad_alloc&) {
    return capacity_error("out of memory: " + std::to_string(kept.values.size()) +
                          " kept elements of a frame");
  }
  return {};
}

Status open_checked(const CodedFrame& coded, Frame* opened) {
  GRADCOMP_TRY(payload_of_frame(*coded.codec, coded.bytes, coded.n, opened));
  Call call;
  call.stream = opened->stream;
  call.scratch = &thread_scratch();
  return coded.codec->codec->check(opened->payload, call, coded.n);
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

Status frames_of_parts(Span<const FrameParts> frames, Span<std::uint8_t> out,
                       Span<std::size_t> sizes) {
  std::vector<std::size_t> largest;
  for (const FrameParts& frame : frames) largest.push_back(max_frame_size(*frame.codec, frame.n));
  FrameRooms rooms;
  GRADCOMP_TRY(rooms.open(out, {largest.data(), largest.size()}));
  std::vector<Status> statuses(frames.size());
  for_tasks(frames.size(), [&](std::size_t i) {
    const FrameParts& frame = frames[i];
    statuses[i] = frame.has_payload ? frame_of_payload(*frame.codec, frame.payload, frame.n,
                                                       frame.stream, rooms[i], &sizes[i])
                                    : frame_of_kept(*frame.codec, frame.kept, frame.n, frame.stream,
                                                    rooms[i], &sizes[i]);
  });
  return rooms.close({statuses.data(), statuses.size()}, {sizes.data(), sizes.size()});
}

Status kept_of_frames(Span<const CodedFrame> frames, Span<OwnedKept> kept) {
  std::vector<Status> statuses(frames.size());
  for_tasks(frames.size(), [&](std::size_t i) { statuses[i] = own_parts(frames[i], &kept[i]); });
  for (const Status& status : statuses) GRADCOMP_TRY(status);
  return {};
}

Status payloads_of_frames(Span<const CodedFrame> frames, Span<Frame> opened) {
  std::vector<Status> statuses(frames.size());
  for_tasks(frames.size(),
            [&](std::size_t i) { statuses[i] = open_checked(frames[i], &opened[i]); });
  for (const Status& status : statuses) GRADCOMP_TRY(status);
  return {};
}

Status payload_of_frame(const CompiledCodec& codec, Span<const std::uint8_t> bytes, std::size_t n,
                        Frame* frame) {
  GRADCOMP_TRY(open_frame(codec, bytes, frame));
  if (frame->numel == n) return {};
  return wire_error("the frame holds " + std::to_string(frame->numel) + " elements, not " +
                    std::to_string(n));
}

}  // namespace gradcomp
