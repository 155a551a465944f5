#include <algorithm>

#include "base/chunks.hpp"
#include "bindings/bindings.hpp"
#include "bindings/common.hpp"
#include "bindings/dlpack.hpp"
#include "kernels/kernels.hpp"

namespace gradcomp::bindings {
namespace {

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

}  // namespace

void bind_arrays(py::module_& m) {
  m.def("chunk_norms", &chunk_norms, py::arg("x").noconvert(), py::arg("chunk"),
        py::arg("norms").noconvert());
  m.def("zero", &zero, py::arg("x").noconvert());
  m.def("zero_nonfinite", &zero_nonfinite, py::arg("x").noconvert());
  m.def("bfloat16_bits", &dlpack::bfloat16_bits, py::arg("capsule"));
  m.def("bfloat16_to_float32", &bfloat16_to_float32, py::arg("bits").noconvert());
}

}  // namespace gradcomp::bindings
