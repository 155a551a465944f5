#include "bindings/codec.hpp"

#include "base/rng.hpp"
#include "bindings/bindings.hpp"
#include "bindings/fields.hpp"
#include "codec/bucket_codec.hpp"
#include "codec/feedback.hpp"
#include "wire/parts.hpp"

namespace gradcomp::bindings {
namespace {

Status check_payload_numel(std::size_t n) {
  return n > kMaxNumel ? capacity_error("too many elements") : Status();
}

std::size_t encode_frame(const PyCodec& self, const Floats& x, std::uint64_t stream, Bytes& out) {
  const Span<const float> from = input(x);
  const Span<std::uint8_t> to = output(out);
  Call call = make_call(stream);
  call.cols = cols_of(x);
  std::size_t written = 0;
  call_without_gil(
      [&] { return gradcomp::encode_frame(self.compiled(), from, call, to, &written); });
  return written;
}

// The number of elements of an undamaged frame of this codec and spec.
std::size_t frame_numel(const PyCodec& self, const Bytes& bytes) {
  Frame frame;
  raise_unless_ok(open_frame(self.compiled(), input(bytes), &frame));
  return static_cast<std::size_t>(frame.numel);
}

void decode_frame(const PyCodec& self, const Bytes& bytes, Floats& y) {
  const Span<const std::uint8_t> from = input(bytes);
  const Span<float> to = output(y);
  call_without_gil([&]() -> Status {
    Frame frame;
    GRADCOMP_TRY(payload_of_frame(self.compiled(), from, to.size(), &frame));
    return self.codec().decode(frame.payload, make_call(frame.stream), to);
  });
}

void decode_frame_add(const PyCodec& self, const Bytes& bytes, float weight, Floats& acc) {
  const Span<const std::uint8_t> from = input(bytes);
  const Span<float> to = output(acc);
  call_without_gil([&]() -> Status {
    Frame frame;
    GRADCOMP_TRY(payload_of_frame(self.compiled(), from, to.size(), &frame));
    return self.codec().decode_add(frame.payload, make_call(frame.stream), weight, to);
  });
}

std::size_t encode_payload(const PyCodec& self, const Floats& x, std::uint64_t stream, Bytes& out) {
  const Span<const float> from = input(x);
  const Span<std::uint8_t> to = output(out);
  Call call = make_call(stream);
  call.cols = cols_of(x);
  std::size_t written = 0;
  call_without_gil([&]() -> Status {
    GRADCOMP_TRY(check_payload_numel(from.size()));
    return self.codec().encode(from, call, to, &written);
  });
  return written;
}

// Error feedback around encode_payload; the residual is updated in place. A correction, unless it
// is None, takes the place of beta and gamma.
std::size_t encode_payload_with_residual(const PyCodec& self, Floats& residual, const Floats& grad,
                                         float beta, float gamma, py::handle correction,
                                         std::uint64_t stream, Bytes& out) {
  check_equal_size(residual, grad);
  const Feedback feedback =
      correction.is_none()
          ? Feedback(output(residual), grad.data(), beta, gamma)
          : Feedback(output(residual), grad.data(), correction_of(correction, grad));
  const Span<const float> x = input(residual);
  const Span<std::uint8_t> to = output(out);
  Call call = make_call(stream);
  call.feedback = &feedback;
  call.cols = cols_of(grad);
  std::size_t written = 0;
  call_without_gil([&]() -> Status {
    GRADCOMP_TRY(check_payload_numel(x.size()));
    return gradcomp::encode_payload(self.codec(), x, call, to, &written);
  });
  return written;
}

void decode_payload(const PyCodec& self, const Bytes& payload, std::uint64_t stream, Floats& y) {
  const Span<const std::uint8_t> from = input(payload);
  const Span<float> to = output(y);
  call_without_gil([&] { return self.codec().decode(from, make_call(stream), to); });
}

void decode_payload_add(const PyCodec& self, const Bytes& payload, std::uint64_t stream,
                        float weight, Floats& acc) {
  const Span<const std::uint8_t> from = input(payload);
  const Span<float> to = output(acc);
  call_without_gil([&] { return self.codec().decode_add(from, make_call(stream), weight, to); });
}

std::size_t basis_size(const PyCodec& self, std::size_t n, std::size_t cols) {
  return gradcomp::basis_size(self.codec(), n, cols);
}

void learn(const PyCodec& self, const Floats& average, std::size_t cols, Floats& basis) {
  const Span<const float> from = input(average);
  const Span<float> to = output(basis);
  Call call = make_call(0);
  call.cols = cols;
  call_without_gil([&] { return gradcomp::learn(self.codec(), from, call, to); });
}

py::list caps(const PyCodec& self) {
  py::list names;
  for_each_cap(self.codec().caps(), [&](const char* name, gradcomp_cap) { names.append(name); });
  return names;
}

const char* payload_dtype(const PyCodec& self) {
  switch (self.codec().caps().payload_type) {
    case PayloadType::kFloat16:
      return "float16";
    case PayloadType::kFloat32:
      return "float32";
    case PayloadType::kBytes:
      break;
  }
  return "uint8";
}

}  // namespace

std::uint64_t stream_of(py::handle seed, py::handle step, py::handle tensor_id) {
  py::detail::make_caster<std::uint64_t> a, b, c;
  if (a.load(seed, true) && b.load(step, true) && c.load(tensor_id, true)) {
    return derive_stream(a, b, c);
  }
  throw py::type_error("seed, step and tensor_id must be whole numbers in [0, 2**64); they are " +
                       std::string(py::repr(seed)) + ", " + std::string(py::repr(step)) + " and " +
                       std::string(py::repr(tensor_id)));
}

void bind_codec(py::module_& m) {
  py::class_<PyCodec>(m, "Codec")
      .def(py::init<const std::string&>(), py::arg("spec"))
      .def_property_readonly("spec", [](const PyCodec& c) { return c.compiled().spec; })
      .def_property_readonly("name", [](const PyCodec& c) { return c.compiled().info->name; })
      .def_property_readonly("codec_id", [](const PyCodec& c) { return c.compiled().info->id; })
      .def_property_readonly("spec_hash", [](const PyCodec& c) { return c.compiled().spec_hash; })
      .def_property_readonly("caps", &caps)
      .def_property_readonly("carried", [](const PyCodec& c) { return carried_size(c.codec()); })
      .def_property_readonly("decodes_slowly",
                             [](const PyCodec& c) { return c.codec().caps().decodes_slowly; })
      .def_property_readonly("payload_dtype", &payload_dtype)
      .def(
          "max_payload_size",
          [](const PyCodec& c, std::size_t n) { return c.codec().max_encoded_size(n); },
          py::arg("numel"))
      .def(
          "max_frame_size",
          [](const PyCodec& c, std::size_t n) { return max_frame_size(c.compiled(), n); },
          py::arg("numel"))
      .def("basis_size", &basis_size, py::arg("numel"), py::arg("cols"))
      .def("learn", &learn, py::arg("average").noconvert(), py::arg("cols"),
           py::arg("basis").noconvert())
      .def("frame_numel", &frame_numel, py::arg("frame").noconvert())
      .def("encode_frame", &encode_frame, py::arg("x").noconvert(), py::arg("stream"),
           py::arg("out").noconvert())
      .def("decode_frame", &decode_frame, py::arg("frame").noconvert(), py::arg("out").noconvert())
      .def("decode_frame_add", &decode_frame_add, py::arg("frame").noconvert(), py::arg("weight"),
           py::arg("out").noconvert())
      .def("encode_payload", &encode_payload, py::arg("x").noconvert(), py::arg("stream"),
           py::arg("out").noconvert())
      .def("encode_payload_with_residual", &encode_payload_with_residual,
           py::arg("residual").noconvert(), py::arg("grad").noconvert(), py::arg("beta"),
           py::arg("gamma"), py::arg("correction"), py::arg("stream"), py::arg("out").noconvert())
      .def("decode_payload", &decode_payload, py::arg("payload").noconvert(), py::arg("stream"),
           py::arg("out").noconvert())
      .def("decode_payload_add", &decode_payload_add, py::arg("payload").noconvert(),
           py::arg("stream"), py::arg("weight"), py::arg("out").noconvert());
  m.attr("MAX_NUMEL") = kMaxNumel;
  m.def("derive_stream", &stream_of, py::arg("seed"), py::arg("step"), py::arg("tensor_id"));
}

}  // namespace gradcomp::bindings
