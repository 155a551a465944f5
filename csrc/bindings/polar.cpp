#include <string>

#include "bindings/bindings.hpp"
#include "bindings/common.hpp"
#include "polar/encoder.hpp"
#include "polar/list_decoder.hpp"
#include "polar/sc_decoder.hpp"

namespace gradcomp::bindings {
namespace {

using polar_code::Code;

template <typename T>
Array<T> make(std::size_t rows, std::size_t columns) {
  return Array<T>({static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(columns)});
}

template <typename T>
Array<T> copy(const std::vector<T>& values) {
  return Array<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

// Wrong arguments of a study raise ValueError or MemoryError, as in numpy.
template <typename Fn>
void call(const Fn& fn) {
  Status status;
  {
    py::gil_scoped_release release;
    status = fn();
  }
  if (status.ok()) return;
  PyErr_SetString(status.code() == gradcomp::Code::kCapacity ? PyExc_MemoryError : PyExc_ValueError,
                  status.message().c_str());
  throw py::error_already_set();
}

polar_code::Construction construction_named(const std::string& name) {
  using polar_code::Construction;
  if (name == "bec") return Construction::kBec;
  if (name == "bhattacharyya") return Construction::kBhattacharyya;
  if (name == "ga") return Construction::kGaussian;
  if (name == "mc") return Construction::kMonteCarlo;
  throw py::value_error("construction is '" + name +
                        "'; it must be 'bec', 'bhattacharyya', 'ga' or 'mc'");
}

class PyPolarCode {
 public:
  PyPolarCode(std::size_t length, std::size_t message, const std::string& construction,
              double snr_db, std::uint64_t seed, std::uint32_t trials) {
    const polar_code::Design design{construction_named(construction), snr_db, seed, trials};
    call([&] { return polar_code::make_code(length, message, design, &code_); });
  }

  const Code& code() const { return code_; }

  Array<std::uint8_t> encode(const Array<std::uint8_t>& messages, bool systematic) const {
    auto codewords = make<std::uint8_t>(rows(messages), code_.length);
    const auto from = input(messages);
    const auto to = output(codewords);
    call([&] { return polar_code::encode(code_, from, systematic, to); });
    return codewords;
  }

  // (messages, the LLR of each decision: [rows, mother], or [0, mother] without trace)
  py::tuple decode(const Array<double>& llrs, bool systematic, bool min_sum, bool trace) const {
    auto messages = make<std::uint8_t>(rows(llrs), code_.message);
    auto seen = make<double>(trace ? rows(llrs) : 0, code_.mother());
    const auto from = input(llrs);
    const auto to = output(messages);
    const auto to_seen = output(seen);
    call([&] { return sc_decode(code_, from, {min_sum, systematic}, to, to_seen); });
    return py::make_tuple(messages, seen);
  }

  // (messages: [rows, paths, K], metrics: [rows, paths])
  py::tuple list_decode(const Array<double>& llrs, std::size_t list_size, bool systematic,
                        bool min_sum) const {
    const std::size_t paths = polar_code::path_count(code_, list_size);
    Array<std::uint8_t> messages({rows(llrs), paths, code_.message});
    auto metrics = make<double>(rows(llrs), paths);
    const auto from = input(llrs);
    const auto to = output(messages);
    const auto to_metrics = output(metrics);
    call([&] {
      return polar_code::list_decode(code_, from, list_size, {min_sum, systematic}, to, to_metrics);
    });
    return py::make_tuple(messages, metrics);
  }

  // As decode(). `seed` or `uniforms` (neither: deterministic) make rounding random.
  py::tuple compress(const Array<std::uint8_t>& source, double llr, double shortened_llr,
                     bool min_sum, const py::object& seed, const py::object& uniforms,
                     bool trace) const {
    polar_code::CompressOptions options;
    options.llr = llr;
    options.shortened_llr = shortened_llr;
    options.min_sum = min_sum;
    Array<double> given;
    if (!uniforms.is_none()) {
      given = uniforms.cast<Array<double>>();
      options.rounding = polar_code::Rounding::kGiven;
      options.uniforms = input(given);
    } else if (!seed.is_none()) {
      options.rounding = polar_code::Rounding::kSeeded;
      options.seed = seed.cast<std::uint64_t>();
    }
    auto messages = make<std::uint8_t>(rows(source), code_.message);
    auto seen = make<double>(trace ? rows(source) : 0, code_.mother());
    const auto from = input(source);
    const auto to = output(messages);
    const auto to_seen = output(seen);
    call([&] { return sc_compress(code_, from, options, to, to_seen); });
    return py::make_tuple(messages, seen);
  }

 private:
  template <typename T>
  static std::size_t rows(const Array<T>& array) {
    if (array.ndim() != 2) throw py::value_error("not an array of two dimensions");
    return static_cast<std::size_t>(array.shape(0));
  }

  Code code_;
};

void transform(Array<std::uint8_t>& bits, unsigned log2) {
  const auto rows = output(bits);
  call([&] { return polar_code::transform_rows(rows, log2); });
}

}  // namespace

void bind_polar(py::module_& m) {
  py::class_<PyPolarCode>(m, "PolarCode")
      .def(py::init<std::size_t, std::size_t, const std::string&, double, std::uint64_t,
                    std::uint32_t>(),
           py::arg("length"), py::arg("message"), py::arg("construction"), py::arg("design_snr_db"),
           py::arg("seed"), py::arg("trials"))
      .def_property_readonly("mother", [](const PyPolarCode& c) { return c.code().mother(); })
      .def_property_readonly("kept", [](const PyPolarCode& c) { return copy(c.code().kept); })
      .def_property_readonly("information",
                             [](const PyPolarCode& c) { return copy(c.code().information); })
      .def_property_readonly("frozen", [](const PyPolarCode& c) { return copy(c.code().frozen); })
      .def_property_readonly("reliability",
                             [](const PyPolarCode& c) { return copy(c.code().reliability); })
      .def("encode", &PyPolarCode::encode, py::arg("messages").noconvert(), py::arg("systematic"))
      .def("decode", &PyPolarCode::decode, py::arg("llrs").noconvert(), py::arg("systematic"),
           py::arg("min_sum"), py::arg("trace") = false)
      .def("list_decode", &PyPolarCode::list_decode, py::arg("llrs").noconvert(),
           py::arg("list_size"), py::arg("systematic"), py::arg("min_sum"))
      .def("compress", &PyPolarCode::compress, py::arg("source").noconvert(), py::arg("llr"),
           py::arg("shortened_llr"), py::arg("min_sum"), py::arg("seed"), py::arg("uniforms"),
           py::arg("trace") = false);
  m.def("polar_transform", &transform, py::arg("bits").noconvert(), py::arg("log2"));
  m.attr("POLAR_MAX_LENGTH") = std::size_t{1} << polar_code::kMaxLog2;
}

}  // namespace gradcomp::bindings
