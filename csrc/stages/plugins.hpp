// Registration of plug-in codecs, which live outside this repository: in shared libraries or in
// Python, where the bindings wrap them as the same C struct. Each becomes a row of the registry.
#pragma once

#include <string>
#include <vector>

#include "base/status.hpp"
#include "codec/stage.hpp"
#include "gradcomp/gradcomp.h"

namespace gradcomp {

// Checks a codec and adds its row. Texts are copied; the functions and the context must stay valid
// until the process ends.
Status register_plugin(const gradcomp_plugin_codec& codec, Origin origin);

// Loads a shared library and registers the codecs that its gradcomp_plugin() returns. Loading a
// library again only returns the Status of the first time.
Status load_plugin(const std::string& path);

// Loads the libraries in the environment variable GRADCOMP_PLUGINS, a list of paths separated by
// colons. Only the first call has an effect.
void load_environment_plugins();

// Reasons why plug-ins failed to load; errors about unknown stages list them.
void report_plugin_fault(std::string fault);
std::vector<std::string> plugin_faults();

}  // namespace gradcomp
