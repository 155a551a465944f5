// gradcomp's codecs as BytePS compressors. Workers and servers load the same library, built against
// BytePS' headers and gradcomp.h (byteps_compressors/build.py).
//
// BytePS cuts a tensor into partitions and makes one compressor per partition, on every worker and
// on one server. In each step, a worker compresses its partition and pushes the message. The server
// decompresses the messages, adds them and compresses the sum; every worker pulls and decompresses
// it.
//
// Keyword arguments of a compressor (BytePS passes them as text without blanks):
//   compressor_type=gradcomp gradcomp_spec=SPEC    any spec without an algorithm
//   compressor_type=gradcomp_CODEC [PARAM=VALUE]   a codec by name
//   gradcomp_memory=NAME  with a codec by name: memory of the spec, such as residual; default: none
//   gradcomp_tensor=ID    result of gradcomp_byteps_tensor; default 0: a state of its own
//   gradcomp_seed=N       equal on all workers; default 0
//   gradcomp_feedback=1   error feedback on the server: its error is added to the next sum
//
// A message is either raw, with the size of the partition in memory, or coded and shorter: a Header
// and the codec's payload.
//
// For checkpoints, workers read and write the servers' residuals between steps
// (gradcomp_byteps_ask). These exchanges use the push_pull of the gradient. A message must be
// shorter than the partition, so the residual travels in pieces. To read, every worker pushes a
// Header with kRead and pulls the piece. To write, every worker pushes a Header with kWrite, which
// worker 0 alone follows with the piece. Servers answer with a Header of the same kind.
//
// This file registers the compressors. worker.cpp and server.cpp implement them over partition.hpp,
// and exports.cpp has the functions for Python.
#include <cstddef>
#include <memory>
#include <string>

#include "byteps/common/compressor/compressor_registry.h"
#include "gradcomp/gradcomp.h"
#include "partition.hpp"

namespace gradcomp_byteps {
namespace {

using byteps::common::compressor::CompressorRegistry;
using byteps::common::compressor::kwargs_t;

std::string take(const kwargs_t& kwargs, const char* name, const char* otherwise) {
  const auto found = kwargs.find(name);
  return found == kwargs.end() ? otherwise : found->second;
}

// The spec in the arguments; "MEMORY|CODEC(PARAM=VALUE,...)" for a codec by name.
std::string spec_of(const std::string& codec, const kwargs_t& kwargs) {
  if (codec.empty()) return take(kwargs, "gradcomp_spec", "");
  std::string params;
  for (const auto& [name, value] : kwargs) {
    if (name == "compressor_type" || name.compare(0, 9, "gradcomp_") == 0) continue;
    params += (params.empty() ? "" : ",") + name + "=" + value;
  }
  const std::string memory = take(kwargs, "gradcomp_memory", "");
  return (memory.empty() ? "" : memory + "|") + codec + (params.empty() ? "" : "(" + params + ")");
}

// Ends the process in modes of BytePS whose servers do not decompress.
void refuse_modes() {
  if (variable("BYTEPS_ENABLE_ASYNC") == "1") {
    fail(
        "BYTEPS_ENABLE_ASYNC=1: asynchronous servers add messages without decompressing them; "
        "unset it, or do not compress");
  }
  if (variable("BYTEPS_SERVER_ENGINE_BLOCKING") == "1") {
    fail(
        "BYTEPS_SERVER_ENGINE_BLOCKING=1: the blocking engine adds messages without decompressing "
        "them; unset it, or do not compress");
  }
}

std::unique_ptr<Compressor> make(const std::string& codec, const kwargs_t& kwargs, std::size_t size,
                                 DataType type) {
  refuse_modes();
  Options options;
  options.spec = spec_of(codec, kwargs);
  options.tensor = number(take(kwargs, "gradcomp_tensor", "0"), "gradcomp_tensor");
  options.seed = number(take(kwargs, "gradcomp_seed", "0"), "gradcomp_seed");
  options.feedback = take(kwargs, "gradcomp_feedback", "0") == "1";
  if (variable("DMLC_ROLE") == "server") {
    return make_server_partition(options, size, type);
  }
  return make_worker_partition(options, size, type);
}

void register_as(const std::string& name, const std::string& codec) {
  CompressorRegistry::Register(name + "_compressor",
                               [codec](const kwargs_t& kwargs, std::size_t size, DataType type) {
                                 return make(codec, kwargs, size, type);
                               });
}

// Registers the compressors when the library is loaded.
const bool registered = [] {
  register_as("gradcomp", "");
  for (std::size_t i = 0; gradcomp_codec_name(i) != nullptr; ++i) {
    register_as(std::string("gradcomp_") + gradcomp_codec_name(i), gradcomp_codec_name(i));
  }
  return true;
}();

}  // namespace
}  // namespace gradcomp_byteps
