#include "wire/frame.hpp"

#include "bindings/bindings.hpp"
#include "bindings/common.hpp"
#include "stages/registry.hpp"

namespace gradcomp::bindings {
namespace {

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

}  // namespace

void bind_frame(py::module_& m) {
  m.attr("WIRE_VERSION") = kFrameVersion;
  m.def("parse_frame", &parse_frame_header, py::arg("frame").noconvert());
  m.def("frame_size", &leading_frame_size, py::arg("data").noconvert());
}

}  // namespace gradcomp::bindings
