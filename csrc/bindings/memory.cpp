#include "codec/memory.hpp"

#include <string>

#include "bindings/bindings.hpp"
#include "bindings/common.hpp"

namespace gradcomp::bindings {
namespace {

void compensate(Floats& residual, const Floats& grad, float beta, float gamma) {
  check_equal_size(residual, grad);
  const Span<float> r = output(residual);
  const Span<const float> g = input(grad);
  py::gil_scoped_release release;
  gradcomp::compensate(r, g, beta, gamma);
}

void subtract_sent(Floats& residual, const Floats& sent) {
  check_equal_size(residual, sent);
  const Span<float> r = output(residual);
  const Span<const float> s = input(sent);
  py::gil_scoped_release release;
  gradcomp::subtract_sent(r, s);
}

void keep_waiting(Floats& residual, const Floats& before, float weight) {
  check_equal_size(residual, before);
  const Span<float> r = output(residual);
  const Span<const float> b = input(before);
  py::gil_scoped_release release;
  gradcomp::keep_waiting(r, b, weight);
}

bool update_average(Floats& average, const Floats& grad, double momentum, bool first) {
  check_equal_size(average, grad);
  const Span<float> a = output(average);
  const Span<const float> g = input(grad);
  py::gil_scoped_release release;
  return gradcomp::update_average(a, g, momentum, first);
}

double py_clip_limit(const std::string& clip, double clip_norm, std::size_t world_size) {
  return clip_limit(clip, clip_norm, world_size);
}

double py_l2_norm(const Floats& grad) {
  const Span<const float> g = input(grad);
  py::gil_scoped_release release;
  return l2_norm(g);
}

float py_clip_scale(const Floats& grad, double limit) {
  const Span<const float> g = input(grad);
  py::gil_scoped_release release;
  return clip_scale(g, limit);
}

void correct_momentum(Floats& velocity, Floats& momentum, const Floats& grad, float factor,
                      float scale, bool nesterov) {
  check_equal_size(velocity, grad);
  check_equal_size(momentum, grad);
  const Span<float> v = output(velocity);
  const Span<const float> g = input(grad);
  const Correction correction{output(momentum), factor, scale, nesterov};
  py::gil_scoped_release release;
  gradcomp::correct_momentum(v, g, correction);
}

Floats py_momentum_step(Floats& momentum, const Floats& grad, float factor, float scale,
                        bool nesterov) {
  check_equal_size(momentum, grad);
  Floats step(grad.size());
  const Span<float> s = output(step);
  const Span<const float> g = input(grad);
  const Correction correction{output(momentum), factor, scale, nesterov};
  {
    py::gil_scoped_release release;
    momentum_step(s, g, correction);
  }
  return step;
}

void subtract_sent_masking(Floats& velocity, Floats& momentum, const Floats& sent, bool masking) {
  check_equal_size(velocity, sent);
  check_equal_size(momentum, sent);
  const Span<float> v = output(velocity);
  const Span<const float> s = input(sent);
  Correction correction;
  correction.momentum = output(momentum);
  correction.masking = masking;
  py::gil_scoped_release release;
  gradcomp::subtract_sent(v, s, correction);
}

bool subtract_estimate(Floats& difference, const Floats& grad, const Floats& estimate) {
  check_equal_size(difference, grad);
  check_equal_size(difference, estimate);
  const Span<float> d = output(difference);
  const Span<const float> g = input(grad);
  const Span<const float> e = input(estimate);
  py::gil_scoped_release release;
  return gradcomp::subtract_estimate(d, g, e);
}

void add_average(Floats& mean, const Floats& average, Floats& out) {
  check_equal_size(mean, average);
  check_equal_size(mean, out);
  const Span<float> m = output(mean);
  const Span<const float> a = input(average);
  const Span<float> o = output(out);
  py::gil_scoped_release release;
  gradcomp::add_average(m, a, o);
}

void add_sent(Floats& estimate, const Floats& difference, const Floats& unsent, const Floats& out) {
  check_equal_size(estimate, difference);
  check_equal_size(estimate, unsent);
  check_equal_size(estimate, out);
  const Span<float> e = output(estimate);
  const Span<const float> d = input(difference);
  const Span<const float> u = input(unsent);
  const Span<const float> o = input(out);
  py::gil_scoped_release release;
  gradcomp::add_sent(e, d, u, o);
}

}  // namespace

void bind_memory(py::module_& m) {
  m.def("compensate", &compensate, py::arg("residual").noconvert(), py::arg("grad").noconvert(),
        py::arg("beta"), py::arg("gamma"));
  m.def("subtract_sent", &subtract_sent, py::arg("residual").noconvert(),
        py::arg("sent").noconvert());
  m.def("keep_waiting", &keep_waiting, py::arg("residual").noconvert(),
        py::arg("before").noconvert(), py::arg("weight"));
  m.def("update_average", &update_average, py::arg("average").noconvert(),
        py::arg("grad").noconvert(), py::arg("momentum"), py::arg("first"));
  m.def("clip_limit", &py_clip_limit, py::arg("clip"), py::arg("clip_norm"), py::arg("world_size"));
  m.def("l2_norm", &py_l2_norm, py::arg("grad").noconvert());
  m.def("clip_scale", &py_clip_scale, py::arg("grad").noconvert(), py::arg("limit"));
  m.def("correct_momentum", &correct_momentum, py::arg("velocity").noconvert(),
        py::arg("momentum").noconvert(), py::arg("grad").noconvert(), py::arg("factor"),
        py::arg("scale"), py::arg("nesterov"));
  m.def("momentum_step", &py_momentum_step, py::arg("momentum").noconvert(),
        py::arg("grad").noconvert(), py::arg("factor"), py::arg("scale"), py::arg("nesterov"));
  m.def("subtract_sent_masking", &subtract_sent_masking, py::arg("velocity").noconvert(),
        py::arg("momentum").noconvert(), py::arg("sent").noconvert(), py::arg("masking"));
  m.def("subtract_estimate", &subtract_estimate, py::arg("difference").noconvert(),
        py::arg("grad").noconvert(), py::arg("estimate").noconvert());
  m.def("add_average", &add_average, py::arg("mean").noconvert(), py::arg("average").noconvert(),
        py::arg("out").noconvert());
  m.def("add_sent", &add_sent, py::arg("estimate").noconvert(), py::arg("difference").noconvert(),
        py::arg("unsent").noconvert(), py::arg("out").noconvert());
}

}  // namespace gradcomp::bindings
