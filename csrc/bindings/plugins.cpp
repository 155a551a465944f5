// Bindings of plug-ins. A codec in Python becomes a plug-in codec (gradcomp.h) whose functions call
// methods of a Python object with the GIL held. Arguments and results are copied, so no pointer
// outlives a call.
#include "stages/plugins.hpp"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/bindings.hpp"
#include "stages/registry.hpp"

namespace py = pybind11;

namespace gradcomp::bindings {
namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

struct Param {
  std::string name;
  gradcomp_param_type type;
};

// Context of a Python plug-in. Never destroyed once registered: the registry's row refers to it.
struct PythonPlugin {
  py::object codec;
  std::vector<Param> params;

  // Parameter values as a Python dict of bool, int and float.
  py::dict values(const double* numbers) const {
    py::dict values;
    for (std::size_t i = 0; i < params.size(); ++i) {
      const py::str name(params[i].name);
      if (params[i].type == GRADCOMP_BOOLEAN) {
        values[name] = py::bool_(numbers[i] != 0);
      } else if (params[i].type == GRADCOMP_INTEGER) {
        values[name] = py::int_(static_cast<std::int64_t>(numbers[i]));
      } else {
        values[name] = py::float_(numbers[i]);
      }
    }
    return values;
  }
};

[[noreturn]] void refuse(const std::string& reason) { throw std::runtime_error(reason); }

std::string type_of(const py::object& object) {
  return py::str(py::type::of(object).attr("__name__"));
}

// Runs fn(plugin) with the GIL held. Returns nullptr, or the reason of a failure, which for Python
// exceptions includes the traceback.
template <typename Fn>
const char* with_python(void* context, const Fn& fn) {
  thread_local std::string reason;
  if (Py_IsInitialized() == 0) return "the Python interpreter has ended";
  const py::gil_scoped_acquire gil;
  try {
    fn(*static_cast<const PythonPlugin*>(context));
    return nullptr;
  } catch (const py::error_already_set& error) {
    reason = error.what();
    // The call fails, and the main thread raises KeyboardInterrupt again.
    if (error.matches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return reason.c_str();
}

const char* max_payload_size(void* context, const double* params, std::size_t n,
                             std::size_t* size) {
  return with_python(context, [&](const PythonPlugin& plugin) {
    const py::object given = plugin.codec.attr("max_payload_size")(n, plugin.values(params));
    try {
      *size = given.cast<std::size_t>();
    } catch (const py::cast_error&) {
      refuse("max_payload_size must return a whole number of bytes, not " +
             std::string(py::repr(given)));
    }
  });
}

const char* encode(void* context, const double* params, const float* x, std::size_t n,
                   std::size_t cols, std::uint64_t stream, std::uint8_t* out, std::size_t capacity,
                   std::size_t* written) {
  return with_python(context, [&](const PythonPlugin& plugin) {
    std::vector<std::size_t> shape{n};
    if (cols != 0 && py::cast<bool>(plugin.codec.attr("matrices"))) shape = {n / cols, cols};
    const Floats copy(shape, x);
    const py::object payload = plugin.codec.attr("encode")(copy, plugin.values(params), stream);
    Py_buffer bytes;
    if (PyObject_GetBuffer(payload.ptr(), &bytes, PyBUF_SIMPLE) != 0) {
      PyErr_Clear();
      refuse("encode must return contiguous bytes-like data, not a " + type_of(payload));
    }
    *written = static_cast<std::size_t>(bytes.len);  // the caller compares it with capacity, too
    if (*written <= capacity) std::memcpy(out, bytes.buf, *written);
    PyBuffer_Release(&bytes);
  });
}

const char* decode(void* context, const double* params, const std::uint8_t* payload,
                   std::size_t size, std::uint64_t stream, float* y, std::size_t n) {
  return with_python(context, [&](const PythonPlugin& plugin) {
    const py::bytes copy(reinterpret_cast<const char*>(payload), size);
    const py::object made = plugin.codec.attr("decode")(copy, n, plugin.values(params), stream);
    if (!py::isinstance<py::array>(made)) {
      refuse("decode must return a numpy array, not a " + type_of(made));
    }
    const auto array = py::reinterpret_borrow<py::array>(made);
    if (!array.dtype().equal(py::dtype::of<float>()) ||
        static_cast<std::size_t>(array.size()) != n) {
      refuse("decode must return " + std::to_string(n) + " float32, not " +
             std::to_string(array.size()) + " " + std::string(py::str(array.dtype())));
    }
    const Floats values(array);  // contiguous
    std::memcpy(y, values.data(), n * sizeof(float));
  });
}

std::uint32_t cap_of(const std::string& name) {
  if (name == "summable") return GRADCOMP_CAP_SUMMABLE;
  if (name == "seeded") return GRADCOMP_CAP_SEEDED;
  if (name == "finite") return GRADCOMP_CAP_FINITE;
  if (name == "private_noise") return GRADCOMP_CAP_PRIVATE_NOISE;
  throw py::value_error("unknown cap '" + name +
                        "': known are summable, seeded, finite and private_noise");
}

gradcomp_param_type type_of(const std::string& name) {
  return name == "bool" ? GRADCOMP_BOOLEAN : name == "int" ? GRADCOMP_INTEGER : GRADCOMP_REAL;
}

// Row of a parameter: name, type ("bool", "int" or "float"), default, min, max, doc.
using ParamRow = std::tuple<std::string, std::string, double, double, double, std::string>;

// Registers a codec. Returns the reason for a refusal; empty on success.
std::string register_codec(const py::object& codec, const std::string& name, std::uint32_t id,
                           std::uint32_t version, const std::string& summary,
                           const std::string& nonfinite, const std::vector<std::string>& caps,
                           const std::vector<ParamRow>& params) {
  gradcomp_plugin_codec plugin{};
  plugin.abi_version = GRADCOMP_PLUGIN_ABI_VERSION;
  plugin.id = id;
  plugin.version = version;
  for (const std::string& cap : caps) plugin.caps |= cap_of(cap);
  plugin.name = name.c_str();
  plugin.summary = summary.c_str();
  plugin.nonfinite = nonfinite.c_str();
  auto* const context = new PythonPlugin{codec, {}};
  std::vector<gradcomp_plugin_param> rows;
  for (const auto& [param, type, standard, min, max, doc] : params) {
    rows.push_back({param.c_str(), type_of(type), standard, min, max, doc.c_str()});
    context->params.push_back({param, type_of(type)});
  }
  plugin.params = rows.data();
  plugin.param_count = rows.size();
  plugin.context = context;
  plugin.max_payload_size = max_payload_size;
  plugin.encode = encode;
  plugin.decode = decode;
  const Status status = register_plugin(plugin, Origin::kPython);
  if (!status.ok()) delete context;
  return status.message();
}

// Loads a shared library. Returns the reason for a failure; empty on success.
std::string load_library(const std::string& path) {
  const py::gil_scoped_release release;
  return load_plugin(path).message();
}

}  // namespace

void bind_plugins(py::module_& m) {
  m.def("register_codec", &register_codec, py::arg("codec"), py::arg("name"), py::arg("id"),
        py::arg("version"), py::arg("summary"), py::arg("nonfinite"), py::arg("caps"),
        py::arg("params"));
  m.def("load_plugin", &load_library, py::arg("path"));
  m.def("load_environment_plugins", &load_environment_plugins,
        py::call_guard<py::gil_scoped_release>());
  m.def("report_plugin_fault", &report_plugin_fault, py::arg("fault"));
  m.def("plugin_faults", &plugin_faults);
  m.def("stage_count", [] { return registry().size(); });
}

}  // namespace gradcomp::bindings
