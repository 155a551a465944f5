#include "wire/frame.hpp"

#include <algorithm>

#include "bindings/bindings.hpp"
#include "bindings/codec.hpp"
#include "codec/payload.hpp"
#include "codecs/quantize/uniform.hpp"
#include "codecs/sparse/keep.hpp"
#include "stages/registry.hpp"
#include "wire/parts.hpp"

namespace gradcomp::bindings {
namespace {

float py_clip_of_normal(unsigned bits, bool stochastic) {
  if (bits < 1 || bits > 8) throw py::value_error("bits must be from 1 to 8");
  return clip_of_normal(bits, stochastic);
}

py::dict parse_frame_header(const Bytes& bytes) {
  Frame frame;
  raise_unless_ok(parse_frame(input(bytes), &frame));
  const StageInfo* info = find_stage(frame.codec_id);
  const bool has_crc = (frame.flags & kFlagCrc) != 0;
  const bool has_stream = (frame.flags & kFlagStream) != 0;
  const auto or_none = [](bool given, py::object value) {
    return given ? value : py::object(py::none());
  };
  return py::dict(
      py::arg("version") = frame.version, py::arg("flags") = frame.flags,
      py::arg("codec_id") = frame.codec_id,
      py::arg("codec_name") = or_none(info != nullptr, py::str(info == nullptr ? "" : info->name)),
      py::arg("spec_hash") = frame.spec_hash, py::arg("numel") = frame.numel,
      py::arg("payload_bytes") = frame.payload.size(),
      py::arg("stream") = or_none(has_stream, py::int_(frame.stream)),
      py::arg("crc_ok") = or_none(has_crc, py::bool_(frame_crc_ok(input(bytes), frame))),
      py::arg("total_bytes") = bytes.size());
}

std::size_t leading_frame_size(const Bytes& bytes) {
  std::size_t size = 0;
  raise_unless_ok(frame_size(input(bytes), &size));
  return size;
}

using Indices = Array<std::uint32_t>;

// Copies a span that ends with the call, so that the array owns its elements.
template <typename T>
Array<T> array_from(Span<const T> values) {
  Array<T> array(static_cast<py::ssize_t>(values.size()));
  std::copy(values.begin(), values.end(), array.mutable_data());
  return array;
}

std::size_t kept_frame(const PyCodec& codec, const Indices& indices, const Floats& values,
                       std::size_t n, std::uint64_t stream, Bytes& out) {
  const KeptParts kept{input(indices), input(values)};
  const Span<std::uint8_t> to = output(out);
  std::size_t written = 0;
  call_without_gil([&] { return frame_of_kept(codec.compiled(), kept, n, stream, to, &written); });
  return written;
}

std::size_t payload_frame(const PyCodec& codec, const Bytes& payload, std::size_t n,
                          std::uint64_t stream, Bytes& out) {
  const Span<const std::uint8_t> from = input(payload);
  const Span<std::uint8_t> to = output(out);
  std::size_t written = 0;
  call_without_gil(
      [&] { return frame_of_payload(codec.compiled(), from, n, stream, to, &written); });
  return written;
}

py::tuple kept_parts(const PyCodec& codec, const Bytes& frame, std::size_t n) {
  const Span<const std::uint8_t> from = input(frame);
  KeptParts kept;
  call_without_gil(
      [&] { return kept_of_frame(codec.compiled(), from, n, &thread_scratch(), &kept); });
  return py::make_tuple(array_from(kept.indices), array_from(kept.values));
}

// The place in a frame of its payload, which must have the size that all payloads of n elements
// have.
std::size_t payload_place(const PyCodec& codec, const Bytes& bytes, std::size_t n) {
  const Span<const std::uint8_t> from = input(bytes);
  Frame frame;
  call_without_gil([&]() -> Status {
    GRADCOMP_TRY(payload_of_frame(codec.compiled(), from, n, &frame));
    return check_payload_size(frame.payload, codec.codec().max_encoded_size(n), n);
  });
  return static_cast<std::size_t>(frame.payload.data() - from.data());
}

}  // namespace

void bind_frame(py::module_& m) {
  m.attr("WIRE_VERSION") = kFrameVersion;
  m.def("parse_frame", &parse_frame_header, py::arg("frame").noconvert());
  m.def("frame_size", &leading_frame_size, py::arg("data").noconvert());
  m.def("frame_of_kept", &kept_frame, py::arg("codec"), py::arg("indices").noconvert(),
        py::arg("values").noconvert(), py::arg("numel"), py::arg("stream"),
        py::arg("out").noconvert());
  m.def("frame_of_payload", &payload_frame, py::arg("codec"), py::arg("payload").noconvert(),
        py::arg("numel"), py::arg("stream"), py::arg("out").noconvert());
  m.def("clip_of_normal", &py_clip_of_normal, py::arg("bits"), py::arg("stochastic"));
  m.def("kept_count", &kept_count, py::arg("ratio"), py::arg("k"), py::arg("numel"));
  m.def("payload_place", &payload_place, py::arg("codec"), py::arg("frame").noconvert(),
        py::arg("numel"));
  m.def("kept_of_frame", &kept_parts, py::arg("codec"), py::arg("frame").noconvert(),
        py::arg("numel"));
}

}  // namespace gradcomp::bindings
