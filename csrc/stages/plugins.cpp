// Checks of plug-in codecs, the adapter from their C functions to Codec, and loading of libraries.
#include "stages/plugins.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "codec/payload.hpp"
#include "kernels/kernels.hpp"
#include "stages/registry.hpp"

namespace gradcomp {
namespace {

constexpr std::uint32_t kAllowedCaps =
    GRADCOMP_CAP_SUMMABLE | GRADCOMP_CAP_SEEDED | GRADCOMP_CAP_FINITE | GRADCOMP_CAP_PRIVATE_NOISE;
constexpr std::size_t kMaxParams = 16;
constexpr std::size_t kMaxName = 40;
constexpr double kMaxInteger = 9007199254740992.0;  // 2^53: doubles hold all whole numbers up to it
constexpr std::size_t kMaxPayload = 0xFFFFFFFF;     // maximum of a frame's length field

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

// Calls a function of a plug-in. It must not throw; an exception becomes an error text, as it would
// otherwise end the program.
template <typename Fn>
const char* guarded(Fn&& fn) noexcept {
  try {
    return fn();
  } catch (...) {
    return "it threw a C++ exception, which a plug-in must not";
  }
}

// A codec that calls the plug-in's functions with the parameter values of one spec.
class PluginCodec final : public Codec {
 public:
  PluginCodec(const gradcomp_plugin_codec& plugin, std::vector<double> params)
      : plugin_(plugin), params_(std::move(params)) {}

  Caps caps() const noexcept override {
    Caps caps;
    caps.summable = has(GRADCOMP_CAP_SUMMABLE);
    caps.seeded = has(GRADCOMP_CAP_SEEDED);
    caps.finite = has(GRADCOMP_CAP_FINITE);
    caps.private_noise = has(GRADCOMP_CAP_PRIVATE_NOISE);
    caps.payload_type = caps.summable ? PayloadType::kFloat32 : PayloadType::kBytes;
    return caps;
  }

  // 0 if the plug-in's function fails; encode() then fails, too, and reports the reason.
  std::size_t max_encoded_size(std::size_t n) const noexcept override {
    std::size_t size = 0;
    return size_of(n, &size) == nullptr ? size : 0;
  }

  Status encode(Span<const float> x, const Call& call, Span<std::uint8_t> out,
                std::size_t* written) const override {
    *written = 0;
    if (x.empty()) return {};
    std::size_t most = 0;
    if (const char* const reason = size_of(x.size(), &most)) {
      return {Code::kArgument, failed("cannot encode", x.size(), reason)};
    }
    GRADCOMP_TRY(check_room(out, most));
    std::size_t size = 0;
    if (const char* const reason = guarded([&] {
          return plugin_.encode(plugin_.context, params_.data(), x.data(), x.size(), call.cols,
                                call.stream, out.data(), most, &size);
        })) {
      return {Code::kArgument, failed("cannot encode", x.size(), reason)};
    }
    if (size > most || (has(GRADCOMP_CAP_SUMMABLE) && size != most)) {
      const std::string allowed = has(GRADCOMP_CAP_SUMMABLE) ? "exactly " : "at most ";
      const std::string reason = "the payload has " + std::to_string(size) +
                                 " bytes, and max_payload_size promises " + allowed +
                                 std::to_string(most);
      return {Code::kArgument, failed("cannot encode", x.size(), reason.c_str())};
    }
    *written = size;
    return {};
  }

  Status decode(Span<const std::uint8_t> in, const Call& call, Span<float> y) const override {
    if (y.empty()) return check_payload_size(in, 0, 0);
    if (has(GRADCOMP_CAP_SUMMABLE)) {
      GRADCOMP_TRY(check_payload_size(in, max_encoded_size(y.size()), y.size()));
    }
    const char* const reason = guarded([&] {
      return plugin_.decode(plugin_.context, params_.data(), in.data(), in.size(), call.stream,
                            y.data(), y.size());
    });
    if (reason == nullptr) return {};
    return wire_error(failed("cannot decode", y.size(), reason));
  }

  Status decode_add(Span<const std::uint8_t> in, const Call& call, float weight,
                    Span<float> acc) const override {
    // No scratch memory: the plug-in may itself run codecs of gradcomp on this thread.
    const std::unique_ptr<float[]> y(new (std::nothrow) float[acc.size()]);
    if (y == nullptr) return capacity_error("memory ran out");
    GRADCOMP_TRY(decode(in, call, {y.get(), acc.size()}));
    kernels().f32_add(reinterpret_cast<const std::uint8_t*>(y.get()), weight, acc.data(),
                      acc.size());
    return {};
  }

 private:
  bool has(std::uint32_t cap) const noexcept { return (plugin_.caps & cap) != 0; }

  const char* size_of(std::size_t n, std::size_t* size) const noexcept {
    if (n == 0) return nullptr;
    const char* const reason =
        guarded([&] { return plugin_.max_payload_size(plugin_.context, params_.data(), n, size); });
    if (reason != nullptr) return reason;
    if (*size > kMaxPayload) return "max_payload_size is above 4294967295";
    if (has(GRADCOMP_CAP_SUMMABLE) && *size % sizeof(float) != 0) {
      return "max_payload_size of a summable codec must be a multiple of 4";
    }
    return nullptr;
  }

  std::string failed(const char* doing, std::size_t n, const char* reason) const {
    return "the plug-in codec " + quoted(plugin_.name) + " " + doing + " " + std::to_string(n) +
           " elements: " + reason;
  }

  const gradcomp_plugin_codec plugin_;
  const std::vector<double> params_;
};

// Plug-ins of this process. Never destroyed: registry rows point into it.
struct Plugins {
  std::mutex mutex;  // guards the next two
  std::deque<std::string> texts;
  std::vector<std::string> faults;
  std::mutex loading;                 // guards the next one
  std::map<void*, Status> libraries;  // result of loading, by handle of dlopen
};

Plugins& plugins() {
  static Plugins* const only = new Plugins;
  return *only;
}

// Stores a text until the process ends.
const char* keep(std::string text) {
  const std::lock_guard<std::mutex> lock(plugins().mutex);
  return plugins().texts.emplace_back(std::move(text)).c_str();
}

// Whether a text follows kNameRule.
bool is_name(const char* text) {
  if (text == nullptr || *text < 'a' || *text > 'z') return false;
  const std::string_view name(text);
  return name.size() <= kMaxName &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

// Whether a text is a line of printable ASCII, not empty.
bool is_line(const char* text) {
  if (text == nullptr || *text == '\0') return false;
  for (; *text != '\0'; ++text) {
    if (*text < ' ' || *text > '~') return false;
  }
  return true;
}

Status refused(const std::string& who, const std::string& why) { return {Code::kSpec, who + why}; }

constexpr const char* kNameRule =
    " must be at most 40 lower-case letters, digits and underscores, and begin with a letter";

Status check_codec(const gradcomp_plugin_codec& codec) {
  if (codec.abi_version != GRADCOMP_PLUGIN_ABI_VERSION) {
    return refused("a plug-in codec", " has version " + std::to_string(codec.abi_version) +
                                          " of the interface, and this gradcomp has " +
                                          std::to_string(GRADCOMP_PLUGIN_ABI_VERSION) +
                                          ": build the plug-in against this gradcomp.h");
  }
  if (!is_name(codec.name)) {
    return refused("the name of a plug-in codec",
                   kNameRule + (is_line(codec.name) ? ", not " + quoted(codec.name) : ""));
  }
  const std::string who = "the plug-in codec " + quoted(codec.name);
  if (codec.id < kFirstPluginId || codec.id > 0xFFFF) {
    return refused(who, " has the id " + std::to_string(codec.id) +
                            "; it must be in [32768, 65535] (0x8000 to 0xFFFF)");
  }
  if (codec.version == 0) return refused(who, " has the version 0; versions count from 1");
  if ((codec.caps & ~kAllowedCaps) != 0) {
    return refused(who, " has the caps " + std::to_string(codec.caps) +
                            "; allowed are summable, seeded, finite and private_noise");
  }
  if (!is_line(codec.summary) || !is_line(codec.nonfinite)) {
    return refused(who, " needs a summary and a nonfinite, each a line of printable ASCII");
  }
  if (codec.max_payload_size == nullptr || codec.encode == nullptr || codec.decode == nullptr) {
    return refused(who, " needs max_payload_size, encode and decode, and one is NULL");
  }
  if (codec.param_count > kMaxParams || (codec.param_count > 0 && codec.params == nullptr)) {
    return refused(who, " has " + std::to_string(codec.param_count) + " parameters; at most " +
                            std::to_string(kMaxParams) + " are allowed, in an array");
  }
  return {};
}

Status check_param(const std::string& who, const gradcomp_plugin_param& param) {
  if (!is_name(param.name))
    return refused(who, std::string(": the name of a parameter") + kNameRule);
  const std::string name = ": the parameter " + quoted(param.name);
  if (!is_line(param.doc)) return refused(who, name + " needs a doc, a line of printable ASCII");
  switch (param.type) {
    case GRADCOMP_BOOLEAN:
      if (param.default_value == 0 || param.default_value == 1) return {};
      return refused(who, name + " is a boolean, and its default must be 0 or 1");
    case GRADCOMP_INTEGER:
      for (const double one : {param.default_value, param.min, param.max}) {
        if (one == std::trunc(one) && std::abs(one) <= kMaxInteger) continue;
        return refused(who, name + " needs whole numbers up to 2^53");
      }
      break;
    case GRADCOMP_REAL:
      break;
    default:
      return refused(who, name + " has an unknown type");
  }
  if (std::isfinite(param.default_value) && param.min <= param.default_value &&
      param.default_value <= param.max) {
    return {};
  }
  return refused(who, name + " needs min <= default <= max");
}

// The registry's description of a parameter, with copies of its texts.
ParamInfo describe(const gradcomp_plugin_param& param) {
  const char* const name = keep(param.name);
  const char* const doc = keep(param.doc);
  Value value;
  value.real = param.default_value + 0.0;
  switch (param.type) {
    case GRADCOMP_BOOLEAN:
      return boolean_param(name, param.default_value == 1 ? "true" : "false", doc);
    case GRADCOMP_INTEGER:
      value.type = ParamType::kInteger;
      value.integer = static_cast<std::int64_t>(param.default_value);
      return integer_param(name, keep(value.text()), static_cast<std::int64_t>(param.min),
                           static_cast<std::int64_t>(param.max), doc);
    default:
      break;
  }
  return real_param(name, keep(value.text()), param.min, param.max, doc);
}

// A parameter's value as plug-ins get it.
double number(const Params& params, const ParamInfo& info) {
  switch (info.type) {
    case ParamType::kInteger:
      return static_cast<double>(params.integer(info.name));
    case ParamType::kBoolean:
      return params.boolean(info.name) ? 1.0 : 0.0;
    default:
      return params.real(info.name);
  }
}

using Export = const gradcomp_plugin_codec*(size_t);

// Registers all codecs that a library exports.
Status register_all(void* library) {
  auto* const get = reinterpret_cast<Export*>(dlsym(library, "gradcomp_plugin"));
  if (get == nullptr) {
    return {Code::kSpec, "it exports no function gradcomp_plugin: see docs/plugins.md"};
  }
  for (std::size_t i = 0;; ++i) {
    const gradcomp_plugin_codec* const codec = get(i);
    if (codec == nullptr) return {};
    GRADCOMP_TRY(register_plugin(*codec, Origin::kLibrary));
  }
}

}  // namespace

Status register_plugin(const gradcomp_plugin_codec& codec, Origin origin) {
  GRADCOMP_TRY(check_codec(codec));
  StageInfo row;
  for (std::size_t i = 0; i < codec.param_count; ++i) {
    const gradcomp_plugin_param& param = codec.params[i];
    GRADCOMP_TRY(check_param("the plug-in codec " + quoted(codec.name), param));
    for (std::size_t j = 0; j < i; ++j) {
      if (std::string_view(param.name) == codec.params[j].name) {
        return refused("the plug-in codec " + quoted(codec.name),
                       " has two parameters " + quoted(param.name));
      }
    }
    row.params.push_back(describe(param));
  }
  row.name = row.example = keep(codec.name);
  row.id = static_cast<std::uint16_t>(codec.id);
  row.summary = keep(codec.summary);
  row.nonfinite = keep(codec.nonfinite);
  char id[8];
  std::snprintf(id, sizeof id, "0x%04X", static_cast<unsigned>(row.id));
  row.paper =
      keep(std::string("a plug-in (") + (origin == Origin::kPython ? "Python" : "shared library") +
           "), codec id " + id + ", version " + std::to_string(codec.version));
  row.origin = origin;
  row.version = codec.version;
  gradcomp_plugin_codec kept = codec;
  kept.name = row.name;
  kept.summary = row.summary;
  kept.nonfinite = row.nonfinite;
  kept.params = nullptr;  // copied into the row
  row.make = [kept, params = row.params](const Recipe& recipe) {
    std::vector<double> values;
    for (const ParamInfo& param : params) values.push_back(number(recipe.params, param));
    return std::make_unique<PluginCodec>(kept, std::move(values));
  };
  return add_stage(std::move(row));
}

Status load_plugin(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return {Code::kSpec, "cannot load the plug-in " + quoted(path) + ": " +
                             (reason == nullptr ? "no reason was given" : reason)};
  }
  const std::lock_guard<std::mutex> lock(plugins().loading);
  std::map<void*, Status>& libraries = plugins().libraries;
  const auto known = libraries.find(library);
  if (known != libraries.end()) return known->second;
  Status status = register_all(library);
  if (!status.ok()) {
    status = {status.code(), "the plug-in " + quoted(path) + ": " + status.message()};
  }
  return libraries[library] = std::move(status);
}

void load_environment_plugins() {
  static std::once_flag* const once = new std::once_flag;
  std::call_once(*once, [] {
    const char* const variable = std::getenv("GRADCOMP_PLUGINS");
    std::string_view rest = variable == nullptr ? "" : variable;
    while (!rest.empty()) {
      const std::string path(rest.substr(0, rest.find(':')));
      rest.remove_prefix(std::min(path.size() + 1, rest.size()));
      if (path.empty()) continue;
      const Status status = load_plugin(path);
      if (!status.ok()) report_plugin_fault("GRADCOMP_PLUGINS: " + status.message());
    }
  });
}

void report_plugin_fault(std::string fault) {
  const std::lock_guard<std::mutex> lock(plugins().mutex);
  plugins().faults.push_back(std::move(fault));
}

std::vector<std::string> plugin_faults() {
  const std::lock_guard<std::mutex> lock(plugins().mutex);
  return plugins().faults;
}

}  // namespace gradcomp
