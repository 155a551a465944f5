#include "wire/frame.hpp"

#include <pybind11/stl.h>

#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/codec_field.hpp"
#include "bindings/fields.hpp"
#include "codecs/quantize/uniform.hpp"
#include "codecs/sparse/keep.hpp"
#include "codecs/sparse/sample.hpp"
#include "stages/registry.hpp"
#include "wire/parts.hpp"

namespace gradcomp::bindings {
namespace {

float py_clip_of_normal(unsigned bits, bool stochastic) {
  if (bits < 1 || bits > 8) throw py::value_error("bits must be from 1 to 8");
  return clip_of_normal(bits, stochastic);
}

std::pair<std::size_t, std::size_t> py_sample_of(double sample_ratio, std::size_t kept,
                                                 std::size_t numel) {
  const Sample sample = sample_of(sample_ratio, kept, numel);
  return {sample.stride, sample.rank};
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

// Of a gradcomp KeptParts or PayloadParts, which keeps the arrays.
FrameParts parts_of(py::handle given) {
  static const Field indices("indices"), values("values"), payload("payload"), numel("numel"),
      stream("stream");
  FrameParts parts;
  parts.codec = &codec_of(given);
  parts.n = numel.of(given).cast<std::size_t>();
  parts.stream = stream.of(given).cast<std::uint64_t>();
  parts.has_payload = py::hasattr(given, "payload");
  if (parts.has_payload) {
    parts.payload = input(array_of<Bytes>(payload.of(given)));
  } else {
    parts.kept = {input(array_of<Indices>(indices.of(given))),
                  input(array_of<Floats>(values.of(given)))};
  }
  return parts;
}

// Returns an array that begins with the frames, one after the other, and their sizes.
py::tuple frames_from_parts(const std::vector<py::object>& given) {
  std::vector<FrameParts> parts;
  std::size_t room = 0;
  for (const py::object& one : given) {
    parts.push_back(parts_of(one));
    room += max_frame_size(*parts.back().codec, parts.back().n);
  }
  Bytes out(static_cast<py::ssize_t>(room));
  const Span<std::uint8_t> to = output(out);
  std::vector<std::size_t> sizes(parts.size());
  call_without_gil([&] {
    return frames_of_parts({parts.data(), parts.size()}, to, {sizes.data(), sizes.size()});
  });
  return py::make_tuple(out, sizes);
}

// An array with a vector's memory.
template <typename T>
Array<T> array_of_vector(std::vector<T>&& vector) {
  auto* const owned = new std::vector<T>(std::move(vector));
  const py::capsule owner(owned, [](void* memory) { delete static_cast<std::vector<T>*>(memory); });
  return Array<T>(static_cast<py::ssize_t>(owned->size()), owned->data(), owner);
}

using GivenFrames = std::vector<std::tuple<const PyCodec*, Bytes, std::size_t>>;

std::vector<CodedFrame> coded_frames(const GivenFrames& given) {
  std::vector<CodedFrame> frames;
  for (const auto& [codec, frame, n] : given) {
    frames.push_back({&codec->compiled(), input(frame), n});
  }
  return frames;
}

// For each (codec, frame, numel): the indices and the values of its kept elements.
std::vector<py::tuple> kept_parts(const GivenFrames& given) {
  const std::vector<CodedFrame> frames = coded_frames(given);
  std::vector<OwnedKept> kept(frames.size());
  call_without_gil(
      [&] { return kept_of_frames({frames.data(), frames.size()}, {kept.data(), kept.size()}); });
  std::vector<py::tuple> parts;
  for (OwnedKept& one : kept) {
    parts.push_back(py::make_tuple(array_of_vector(std::move(one.indices)),
                                   array_of_vector(std::move(one.values))));
  }
  return parts;
}

// For each (codec, frame, numel): the places in the frame where its payload begins and ends, and
// the stream of its random numbers.
std::vector<py::tuple> payload_places(const GivenFrames& given) {
  const std::vector<CodedFrame> frames = coded_frames(given);
  std::vector<Frame> opened(frames.size());
  call_without_gil([&] {
    return payloads_of_frames({frames.data(), frames.size()}, {opened.data(), opened.size()});
  });
  std::vector<py::tuple> places;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const std::uint8_t* const frame = frames[i].bytes.data();
    const Span<const std::uint8_t> payload = opened[i].payload;
    places.push_back(
        py::make_tuple(payload.data() - frame, payload.end() - frame, opened[i].stream));
  }
  return places;
}

}  // namespace

void bind_frame(py::module_& m) {
  m.attr("WIRE_VERSION") = kFrameVersion;
  m.def("parse_frame", &parse_frame_header, py::arg("frame").noconvert());
  m.def("frame_size", &leading_frame_size, py::arg("data").noconvert());
  m.def("frames_of_parts", &frames_from_parts, py::arg("parts"));
  m.def("clip_of_normal", &py_clip_of_normal, py::arg("bits"), py::arg("stochastic"));
  m.def("kept_count", &kept_count, py::arg("ratio"), py::arg("k"), py::arg("numel"));
  m.def("sample_of", &py_sample_of, py::arg("sample_ratio"), py::arg("kept"), py::arg("numel"));
  m.def("payload_places", &payload_places, py::arg("frames"));
  m.def("kept_of_frames", &kept_parts, py::arg("frames"));
}

}  // namespace gradcomp::bindings
