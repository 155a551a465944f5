// Codecs from outside this repository, as rows of the registry: those of shared libraries, and
// those in Python, which the bindings describe in the same way.
#pragma once

#include <string>
#include <vector>

#include "base/status.hpp"
#include "codec/stage.hpp"
#include "gradcomp/gradcomp.h"

namespace gradcomp {

// Checks a codec and adds its row. Texts are copied; its functions and its context must stay valid
// as long as the process.
Status register_plugin(const gradcomp_plugin_codec& codec, Origin origin);

// Loads a shared library and registers the codecs that its gradcomp_plugin() returns. A library is
// loaded once; a later call returns the first one's Status.
Status load_plugin(const std::string& path);

// At its first call, loads the libraries that the environment variable GRADCOMP_PLUGINS names.
void load_environment_plugins();

// Reasons of plug-ins that failed to load; errors about unknown stages repeat them.
void report_plugin_fault(std::string fault);
std::vector<std::string> plugin_faults();

}  // namespace gradcomp
