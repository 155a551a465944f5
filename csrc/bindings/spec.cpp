#include "stages/spec.hpp"

#include <pybind11/stl.h>

#include <string>

#include "bindings/bindings.hpp"
#include "bindings/common.hpp"
#include "stages/registry.hpp"

namespace gradcomp::bindings {
namespace {

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
// steps, whether they count epochs, and the step from which those of steps stay as they are)
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
                        spec.scheduled_by(Schedule::Unit::kEpochs), spec.step_schedules_end());
}

// The canonical text of a spec at a step of an epoch: without schedules.
std::string spec_at(const std::string& text, std::int64_t step, std::int64_t epoch) {
  Spec spec;
  raise_unless_ok(parse_spec(text, &spec));
  return spec.at(step, epoch).text();
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

}  // namespace

void bind_spec(py::module_& m) {
  m.def("parse_spec", &parse, py::arg("spec"));
  m.def("spec_at", &spec_at, py::arg("spec"), py::arg("step"), py::arg("epoch"));
  m.def("stages", &stages);
}

}  // namespace gradcomp::bindings
