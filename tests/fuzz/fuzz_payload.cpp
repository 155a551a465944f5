// libFuzzer target: arbitrary payloads for the decoders of every registered codec. Run by
// scripts/test cpp.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "codec/sparse_interface.hpp"
#include "stages/compile.hpp"
#include "stages/registry.hpp"

namespace {

using namespace gradcomp;

// Example spec of every codec, alone and with each coder that it allows.
std::vector<CompiledCodec> make_codecs() {
  std::vector<CompiledCodec> codecs;
  for (const StageInfo& info : registry()) {
    if (info.kind != StageKind::kCodec) continue;
    std::vector<std::string> specs = {info.example};
    for (const StageInfo& coder : registry()) {
      if (coder.kind == StageKind::kCoder && coder.symbols == info.symbols && !coder.is_default) {
        specs.push_back(std::string(info.example) + "|" + coder.name);
      }
    }
    for (const std::string& spec : specs) {
      codecs.emplace_back();
      if (!compile_codec(spec, &codecs.back()).ok()) std::abort();
    }
  }
  return codecs;
}

}  // namespace

// Input: index of the codec, numel (two bytes), then the payload.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<CompiledCodec> codecs = make_codecs();
  static Scratch scratch;
  if (size < 3) return 0;
  const CompiledCodec& codec = codecs[data[0] % codecs.size()];
  const std::size_t numel = (data[1] | std::size_t{data[2]} << 8) % 5000;
  // Exact size, so that the sanitizer sees every access beyond it; never null.
  const std::size_t bytes = size - 3;
  const std::unique_ptr<std::uint8_t[]> payload(new std::uint8_t[bytes]);
  std::copy_n(data + 3, bytes, payload.get());
  Call call;
  call.stream = 1;
  call.scratch = &scratch;
  std::vector<float> acc(numel, 1.0f);
  acc.reserve(1);  // never null
  const std::vector<float> before = acc;
  const Span<const std::uint8_t> in{payload.get(), bytes};
  const bool added = codec.codec->decode_add(in, call, 0.5f, {acc.data(), numel}).ok();
  if (!added && acc != before) std::abort();
  if (codec.codec->decode(in, call, {acc.data(), numel}).ok() != added) std::abort();
  const SparseInterface* const sparse = codec.codec->sparse();
  if (sparse == nullptr) return 0;
  std::vector<std::uint16_t> counts(numel + 1, 0);
  const bool counted =
      sparse->decode_add_count(in, call, 0.5f, {acc.data(), numel}, {counts.data(), numel}).ok();
  double sum = 0;
  const bool summed = sparse->sum_squares(in, call, numel, &sum).ok();
  if (counted != added || (added && !summed)) std::abort();
  return 0;
}
