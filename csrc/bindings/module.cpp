// gradcomp._core. Only files of this folder include pybind11. It checks buffers, releases the GIL
// and turns Status into the exceptions of gradcomp.errors; what users see is the Python layer above
// it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "base/thread_pool.hpp"
#include "bindings/buffer_pool.hpp"
#include "bindings/dlpack.hpp"
#include "bindings/linalg.hpp"
#include "bindings/plugins.hpp"
#include "bindings/polar.hpp"
#include "codec/feedback.hpp"
#include "kernels/half.hpp"
#include "kernels/kernels.hpp"
#include "stages/compile.hpp"
#include "stages/registry.hpp"
#include "stages/spec.hpp"
#include "wire/batch.hpp"
#include "wire/frame.hpp"

namespace py = pybind11;

namespace gradcomp {
namespace {

using Floats = py::array_t<float, py::array::c_style>;
using Bytes = py::array_t<std::uint8_t, py::array::c_style>;

void raise_unless_ok(const Status& status) {
  if (status.ok()) return;
  const char* name = "GradcompError";
  switch (status.code()) {
    case Code::kSpec:
      name = "SpecError";
      break;
    case Code::kWire:
      name = "WireError";
      break;
    case Code::kCapacity:
      name = "CapacityError";
      break;
    case Code::kOk:
    case Code::kArgument:
      break;
  }
  const py::object type = py::module_::import("gradcomp.errors").attr(name);
  PyErr_SetString(type.ptr(), status.message().c_str());
  throw py::error_already_set();
}

template <typename Fn>
void call_without_gil(Fn&& fn) {
  Status status;
  {
    py::gil_scoped_release release;
    status = fn();
  }
  raise_unless_ok(status);
}

Call make_call(std::uint64_t stream) {
  Call call;
  call.stream = stream;
  call.scratch = &thread_scratch();
  return call;
}

template <typename T>
Span<const T> input(const py::array_t<T, py::array::c_style>& array) {
  return {array.data(), static_cast<std::size_t>(array.size())};
}

template <typename T>
Span<T> output(py::array_t<T, py::array::c_style>& array) {
  return {array.mutable_data(), static_cast<std::size_t>(array.size())};
}

// Call::cols of a tensor of this shape.
std::size_t cols_of(const Floats& x) {
  if (x.ndim() < 2 || x.shape(0) == 0) return 0;
  return static_cast<std::size_t>(x.size() / x.shape(0));
}

Status check_numel(const Frame& frame, std::size_t n) {
  if (frame.numel == n) return {};
  return wire_error("the frame holds " + std::to_string(frame.numel) + " elements, not " +
                    std::to_string(n));
}

void check_equal_size(const Floats& residual, const Floats& grad) {
  if (residual.size() != grad.size()) throw py::value_error("residual and gradient differ in size");
}

class PyCodec {
 public:
  explicit PyCodec(const std::string& spec) { raise_unless_ok(compile_codec(spec, &compiled_)); }

  const CompiledCodec& compiled() const { return compiled_; }
  Caps caps() const { return compiled_.codec->caps(); }

  std::size_t max_payload_size(std::size_t n) const { return compiled_.codec->max_encoded_size(n); }
  std::size_t max_frame_size(std::size_t n) const { return gradcomp::max_frame_size(compiled_, n); }

  std::size_t encode_frame(const Floats& x, std::uint64_t stream, Bytes& out) const {
    const Span<const float> in = input(x);
    const Span<std::uint8_t> to = output(out);
    Call call = make_call(stream);
    call.cols = cols_of(x);
    std::size_t written = 0;
    call_without_gil([&] { return gradcomp::encode_frame(compiled_, in, call, to, &written); });
    return written;
  }

  std::size_t basis_size(std::size_t n, std::size_t cols) const {
    return compiled_.codec->basis_size(n, cols);
  }

  void learn(const Floats& average, std::size_t cols, Floats& basis) const {
    const Span<const float> in = input(average);
    const Span<float> to = output(basis);
    call_without_gil([&] {
      Call call = make_call(0);
      call.cols = cols;
      return compiled_.codec->learn(in, call, to);
    });
  }

  // The number of elements of a frame that this codec and spec made, and that is undamaged.
  std::size_t frame_numel(const Bytes& bytes) const {
    Frame frame;
    raise_unless_ok(open_frame(compiled_, input(bytes), &frame));
    return static_cast<std::size_t>(frame.numel);
  }

  void decode_frame(const Bytes& bytes, Floats& y) const {
    const Span<const std::uint8_t> in = input(bytes);
    const Span<float> to = output(y);
    call_without_gil([&]() -> Status {
      Frame frame;
      GRADCOMP_TRY(open_frame(compiled_, in, &frame));
      GRADCOMP_TRY(check_numel(frame, to.size()));
      return compiled_.codec->decode(frame.payload, make_call(frame.stream), to);
    });
  }

  void decode_frame_add(const Bytes& bytes, float weight, Floats& acc) const {
    const Span<const std::uint8_t> in = input(bytes);
    const Span<float> to = output(acc);
    call_without_gil([&]() -> Status {
      Frame frame;
      GRADCOMP_TRY(open_frame(compiled_, in, &frame));
      GRADCOMP_TRY(check_numel(frame, to.size()));
      return compiled_.codec->decode_add(frame.payload, make_call(frame.stream), weight, to);
    });
  }

  std::size_t encode_payload(const Floats& x, std::uint64_t stream, Bytes& out) const {
    const Span<const float> in = input(x);
    const Span<std::uint8_t> to = output(out);
    Call call = make_call(stream);
    call.cols = cols_of(x);
    std::size_t written = 0;
    call_without_gil([&]() -> Status {
      if (in.size() > kMaxNumel) return capacity_error("too many elements");
      return compiled_.codec->encode(in, call, to, &written);
    });
    return written;
  }

  // Error feedback around encode_payload; the residual is updated in place.
  std::size_t encode_payload_with_residual(Floats& residual, const Floats& grad, float beta,
                                           float gamma, std::uint64_t stream, Bytes& out) const {
    check_equal_size(residual, grad);
    const Feedback feedback(output(residual), grad.data(), beta, gamma);
    const Span<std::uint8_t> to = output(out);
    const std::size_t cols = cols_of(grad);
    std::size_t written = 0;
    call_without_gil([&]() -> Status {
      if (feedback.residual().size() > kMaxNumel) return capacity_error("too many elements");
      Call call = make_call(stream);
      call.feedback = &feedback;
      call.cols = cols;
      const Span<float> x = feedback.residual();
      return gradcomp::encode_payload(*compiled_.codec, {x.data(), x.size()}, call, to, &written);
    });
    return written;
  }

  void decode_payload(const Bytes& payload, std::uint64_t stream, Floats& y) const {
    const Span<const std::uint8_t> in = input(payload);
    const Span<float> to = output(y);
    call_without_gil([&] { return compiled_.codec->decode(in, make_call(stream), to); });
  }

  void decode_payload_add(const Bytes& payload, std::uint64_t stream, float weight,
                          Floats& acc) const {
    const Span<const std::uint8_t> in = input(payload);
    const Span<float> to = output(acc);
    call_without_gil(
        [&] { return compiled_.codec->decode_add(in, make_call(stream), weight, to); });
  }

 private:
  CompiledCodec compiled_;
};

// An array inside a list or tuple, which pybind11 would otherwise copy where it does not fit.
template <typename Array>
Array array_of(const py::handle& object) {
  if (!Array::check_(object)) throw py::type_error("not a C-contiguous array of the right dtype");
  return py::reinterpret_borrow<Array>(object);
}

void check_basis(const CompiledCodec& codec, std::size_t given, std::size_t n, std::size_t cols) {
  const std::size_t size = codec.codec->basis_size(n, cols);
  if (given == size) return;
  throw py::value_error("'" + codec.spec + "' keeps a basis of " + std::to_string(size) +
                        " numbers of this tensor, not " + std::to_string(given));
}

// Each tensor: (codec, gradient, stream, residual or None, beta, gamma, None or (momentum, factor,
// scale, nesterov, masking), carried numbers or None, basis or None). Residuals, momenta and
// carried numbers are updated in place. Returns an array that begins with the frames, one after the
// other, and their sizes.
py::tuple encode_tensors(const std::vector<py::tuple>& tensors) {
  std::deque<Feedback> feedbacks;  // which must not move
  std::vector<EncodeItem> items;
  for (const py::tuple& tensor : tensors) {
    const Floats grad = array_of<Floats>(tensor[1]);
    EncodeItem item;
    item.codec = &tensor[0].cast<const PyCodec&>().compiled();
    item.x = input(grad);
    item.cols = cols_of(grad);
    item.stream = tensor[2].cast<std::uint64_t>();
    if (!tensor[3].is_none()) {
      Floats residual = array_of<Floats>(tensor[3]);
      check_equal_size(residual, grad);
      if (tensor[6].is_none()) {
        feedbacks.emplace_back(output(residual), grad.data(), tensor[4].cast<float>(),
                               tensor[5].cast<float>());
      } else {
        const auto given = tensor[6].cast<py::tuple>();
        Floats momentum = array_of<Floats>(given[0]);
        check_equal_size(momentum, grad);
        feedbacks.emplace_back(
            output(residual), grad.data(),
            Correction{output(momentum), given[1].cast<float>(), given[2].cast<float>(),
                       given[3].cast<bool>(), given[4].cast<bool>()});
      }
      item.feedback = &feedbacks.back();
      item.x = input(residual);
    }
    if (!tensor[7].is_none()) {
      Floats carried = array_of<Floats>(tensor[7]);
      item.carried = output(carried);
      if (item.carried.size() != item.codec->codec->carried()) {
        throw py::value_error("'" + item.codec->spec + "' carries " +
                              std::to_string(item.codec->codec->carried()) +
                              " numbers of a tensor, not " + std::to_string(item.carried.size()));
      }
    }
    if (!tensor[8].is_none()) {
      item.basis = input(array_of<Floats>(tensor[8]));
      check_basis(*item.codec, item.basis.size(), item.x.size(), item.cols);
    }
    items.push_back(item);
  }
  const Span<const EncodeItem> all{items.data(), items.size()};
  Bytes out(static_cast<py::ssize_t>(max_batch_size(all)));
  const Span<std::uint8_t> to = output(out);
  std::vector<std::size_t> sizes(items.size());
  call_without_gil([&] { return gradcomp::encode_batch(all, to, {sizes.data(), sizes.size()}); });
  return py::make_tuple(out, sizes);
}

// Each tensor: (name, codec, the ranks' frames, accumulator, basis or None). acc += weight *
// decode(frame), frame after frame.
void decode_tensors_add(const std::vector<py::tuple>& tensors, float weight) {
  std::deque<std::vector<Span<const std::uint8_t>>> frames;  // which must not move
  std::vector<DecodeItem> items;
  for (const py::tuple& tensor : tensors) {
    frames.emplace_back();
    for (const py::handle& frame : tensor[2]) {
      frames.back().push_back(input(array_of<Bytes>(frame)));
    }
    Floats acc = array_of<Floats>(tensor[3]);
    items.push_back(
        {&tensor[1].cast<const PyCodec&>().compiled(),
         {frames.back().data(), frames.back().size()},
         output(acc),
         tensor[4].is_none() ? Span<const float>() : input(array_of<Floats>(tensor[4]))});
  }
  Status status;
  BatchFault fault;
  {
    py::gil_scoped_release release;
    status = gradcomp::decode_batch_add({items.data(), items.size()}, weight, &fault);
  }
  if (status.ok()) return;
  raise_unless_ok({status.code(), "the frame of rank " + std::to_string(fault.frame) + " for '" +
                                      tensors[fault.item][0].cast<std::string>() +
                                      "': " + status.message()});
}

py::object to_python(const Value& value) {
  if (value.schedule) return py::str(value.schedule->text());
  switch (value.type) {
    case ParamType::kReal:
      return py::float_(value.real);
    case ParamType::kInteger:
      return py::int_(value.integer);
    case ParamType::kBoolean:
      return py::bool_(value.boolean);
    case ParamType::kChoice:
      return py::str(value.choice);
    case ParamType::kList:
      break;
  }
  return py::cast(value.list);
}

// (canonical text, [(stage name, kind, stage text, {parameter: value})], whether schedules count
// steps, whether they count epochs)
py::tuple parse(const std::string& text) {
  Spec spec;
  raise_unless_ok(parse_spec(text, &spec));
  py::list stages;
  for (const Stage& stage : spec.stages) {
    py::dict params;
    for (const auto& [name, value] : stage.params.values()) params[name.c_str()] = to_python(value);
    stages.append(
        py::make_tuple(stage.info->name, kind_name(stage.info->kind), stage.text(), params));
  }
  return py::make_tuple(spec.text(), stages, spec.scheduled_by(Schedule::Unit::kSteps),
                        spec.scheduled_by(Schedule::Unit::kEpochs));
}

// The canonical text of what a spec is at a step of an epoch.
std::string spec_at(const std::string& text, std::int64_t step, std::int64_t epoch) {
  Spec spec;
  raise_unless_ok(parse_spec(text, &spec));
  return spec.at(step, epoch).text();
}

// The L2 norm, the same at any number of threads.
double norm(const Floats& x) {
  const Span<const float> in = input(x);
  py::gil_scoped_release release;
  return std::sqrt(kernels().sum_squares(in.data(), in.size()));
}

const char* type_name(ParamType type) {
  switch (type) {
    case ParamType::kReal:
      return "real";
    case ParamType::kInteger:
      return "integer";
    case ParamType::kBoolean:
      return "boolean";
    case ParamType::kChoice:
      return "choice";
    case ParamType::kList:
      break;
  }
  return "list";
}

py::list stages() {
  py::list rows;
  for (const StageInfo& info : registry()) {
    py::list params;
    for (const ParamInfo& param : info.params) {
      params.append(py::dict(py::arg("name") = param.name, py::arg("type") = type_name(param.type),
                             py::arg("default") = param.default_text == nullptr
                                                      ? py::object(py::none())
                                                      : py::str(param.default_text),
                             py::arg("range") = param.range_text(), py::arg("doc") = param.doc));
    }
    rows.append(py::dict(
        py::arg("name") = info.name, py::arg("kind") = kind_name(info.kind),
        py::arg("id") = info.id, py::arg("summary") = info.summary, py::arg("paper") = info.paper,
        py::arg("nonfinite") = info.nonfinite, py::arg("example") = info.example,
        py::arg("exactly_one_of") = py::cast(info.exactly_one_of), py::arg("params") = params,
        py::arg("origin") = origin_name(info.origin), py::arg("version") = info.version));
  }
  return rows;
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

// norms[i] = the L1 norm of chunk i; the last chunk may be shorter.
void chunk_norms(const Floats& x, std::size_t chunk, Floats& norms) {
  const Span<const float> in = input(x);
  const Span<float> out = output(norms);
  if (chunk == 0 || out.size() != (in.size() + chunk - 1) / chunk) {
    throw py::value_error("the norms do not fit the chunks");
  }
  py::gil_scoped_release release;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t begin = i * chunk;
    const std::size_t count = std::min(chunk, in.size() - begin);
    out[i] = static_cast<float>(kernels().sum_magnitudes(in.data() + begin, count));
  }
}

bool compensate(Floats& residual, const Floats& grad, float beta, float gamma) {
  const Span<float> r = output(residual);
  const Span<const float> g = input(grad);
  check_equal_size(residual, grad);
  std::atomic<bool> finite{true};
  py::gil_scoped_release release;
  for_ranges(r.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    if (!kernels().compensate(r.data() + begin, g.data() + begin, beta, gamma, end - begin)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite.load();
}

void zero(Floats& x) {
  const Span<float> y = output(x);
  py::gil_scoped_release release;
  for_ranges(y.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    kernels().zero(y.data() + begin, end - begin);
  });
}

void zero_nonfinite(Floats& x) {
  const Span<float> y = output(x);
  py::gil_scoped_release release;
  for_ranges(y.size(), [&](std::size_t, std::size_t begin, std::size_t end) {
    kernels().zero_nonfinite(y.data() + begin, end - begin);
  });
}

Floats bfloat16_to_float32(const py::array_t<std::uint16_t, py::array::c_style>& bits) {
  Floats y(bits.size());
  kernels().bf16_to_f32(reinterpret_cast<const std::uint8_t*>(bits.data()), y.mutable_data(),
                        static_cast<std::size_t>(bits.size()));
  return y;
}

py::list simd_levels() {
  const char* const* names = nullptr;
  const std::size_t count = available_levels(&names);
  py::list list;
  for (std::size_t i = 0; i < count; ++i) list.append(names[i]);
  return list;
}

void set_simd_level(const std::string& name) {
  if (!select_level(name.c_str())) {
    throw py::value_error("SIMD level '" + name + "' is not available here; available: " +
                          std::string(py::str(simd_levels())));
  }
}

}  // namespace

PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
  m.doc() = "The C++ core of gradcomp. Private: use the gradcomp package.";

  py::class_<PyCodec>(m, "Codec")
      .def(py::init<const std::string&>(), py::arg("spec"))
      .def_property_readonly("spec", [](const PyCodec& c) { return c.compiled().spec; })
      .def_property_readonly("name", [](const PyCodec& c) { return c.compiled().info->name; })
      .def_property_readonly("codec_id", [](const PyCodec& c) { return c.compiled().info->id; })
      .def_property_readonly("spec_hash", [](const PyCodec& c) { return c.compiled().spec_hash; })
      .def_property_readonly("summable", [](const PyCodec& c) { return c.caps().summable; })
      .def_property_readonly("nonlinear", [](const PyCodec& c) { return c.caps().nonlinear; })
      .def_property_readonly("seeded", [](const PyCodec& c) { return c.caps().seeded; })
      .def_property_readonly("sparse", [](const PyCodec& c) { return c.caps().sparse; })
      .def_property_readonly("finite", [](const PyCodec& c) { return c.caps().finite; })
      .def_property_readonly("shares", [](const PyCodec& c) { return c.caps().shares; })
      .def_property_readonly("learns", [](const PyCodec& c) { return c.caps().learns; })
      .def_property_readonly("carried",
                             [](const PyCodec& c) { return c.compiled().codec->carried(); })
      .def_property_readonly("private_noise",
                             [](const PyCodec& c) { return c.caps().private_noise; })
      .def_property_readonly("payload_dtype",
                             [](const PyCodec& c) {
                               switch (c.caps().payload_type) {
                                 case PayloadType::kFloat16:
                                   return "float16";
                                 case PayloadType::kFloat32:
                                   return "float32";
                                 case PayloadType::kBytes:
                                   break;
                               }
                               return "uint8";
                             })
      .def("max_payload_size", &PyCodec::max_payload_size, py::arg("numel"))
      .def("max_frame_size", &PyCodec::max_frame_size, py::arg("numel"))
      .def("basis_size", &PyCodec::basis_size, py::arg("numel"), py::arg("cols"))
      .def("learn", &PyCodec::learn, py::arg("average").noconvert(), py::arg("cols"),
           py::arg("basis").noconvert())
      .def("frame_numel", &PyCodec::frame_numel, py::arg("frame").noconvert())
      .def("encode_frame", &PyCodec::encode_frame, py::arg("x").noconvert(), py::arg("stream"),
           py::arg("out").noconvert())
      .def("decode_frame", &PyCodec::decode_frame, py::arg("frame").noconvert(),
           py::arg("out").noconvert())
      .def("decode_frame_add", &PyCodec::decode_frame_add, py::arg("frame").noconvert(),
           py::arg("weight"), py::arg("out").noconvert())
      .def("encode_payload", &PyCodec::encode_payload, py::arg("x").noconvert(), py::arg("stream"),
           py::arg("out").noconvert())
      .def("encode_payload_with_residual", &PyCodec::encode_payload_with_residual,
           py::arg("residual").noconvert(), py::arg("grad").noconvert(), py::arg("beta"),
           py::arg("gamma"), py::arg("stream"), py::arg("out").noconvert())
      .def("decode_payload", &PyCodec::decode_payload, py::arg("payload").noconvert(),
           py::arg("stream"), py::arg("out").noconvert())
      .def("decode_payload_add", &PyCodec::decode_payload_add, py::arg("payload").noconvert(),
           py::arg("stream"), py::arg("weight"), py::arg("out").noconvert());

  m.attr("MAX_NUMEL") = kMaxNumel;
  m.def("parse_spec", &parse, py::arg("spec"));
  m.def("stages", &stages);
  m.def("parse_frame", &parse_frame_header, py::arg("frame").noconvert());
  m.def("frame_size", &leading_frame_size, py::arg("data").noconvert());
  m.def("derive_stream", &derive_stream, py::arg("seed"), py::arg("step"), py::arg("tensor_id"));
  m.def("encode_batch", &encode_tensors, py::arg("tensors"));
  m.def("decode_batch_add", &decode_tensors_add, py::arg("tensors"), py::arg("weight"));
  m.def("spec_at", &spec_at, py::arg("spec"), py::arg("step"), py::arg("epoch"));
  m.def("chunk_norms", &chunk_norms, py::arg("x").noconvert(), py::arg("chunk"),
        py::arg("norms").noconvert());
  m.def("norm", &norm, py::arg("x").noconvert());
  m.def("compensate", &compensate, py::arg("residual").noconvert(), py::arg("grad").noconvert(),
        py::arg("beta"), py::arg("gamma"));
  m.def("zero", &zero, py::arg("x").noconvert());
  m.def("zero_nonfinite", &zero_nonfinite, py::arg("x").noconvert());
  m.def("bfloat16_bits", &dlpack::bfloat16_bits, py::arg("capsule"));
  m.def("bfloat16_to_float32", &bfloat16_to_float32, py::arg("bits").noconvert());
  m.def("simd_levels", &simd_levels);
  m.def("simd_level", [] { return kernels().name; });
  m.def("set_simd_level", &set_simd_level, py::arg("name"));
  m.def("thread_count", &thread_count);
  m.def("set_thread_count", &set_thread_count, py::arg("count"));
  bind_linalg(m);
  bind_polar(m);
  bind_buffer_pool(m);
  bind_plugins(m);
}

}  // namespace gradcomp
