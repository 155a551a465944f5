#include <cmath>
#include <new>
#include <string>
#include <type_traits>

#include "base/rng.hpp"
#include "codec/feedback.hpp"
#include "codec/memory.hpp"
#include "gradcomp/gradcomp.h"
#include "stages/compile.hpp"
#include "stages/plugins.hpp"
#include "stages/registry.hpp"
#include "stages/spec.hpp"
#include "wire/frame.hpp"

struct gradcomp_codec {
  gradcomp::CompiledCodec compiled;
};

struct gradcomp_spec {
  gradcomp::Spec spec;
  std::string text;
};

namespace {

using gradcomp::Call;
using gradcomp::Code;
using gradcomp::Frame;
using gradcomp::Status;

static_assert(GRADCOMP_SPEC == static_cast<int>(Code::kSpec));
static_assert(GRADCOMP_WIRE == static_cast<int>(Code::kWire));
static_assert(GRADCOMP_CAPACITY == static_cast<int>(Code::kCapacity));
static_assert(GRADCOMP_ARGUMENT == static_cast<int>(Code::kArgument));

std::string& last_error() {
  thread_local std::string message;
  return message;
}

// Runs fn, which returns a Status. The only exception it can throw is that memory ran out.
template <typename Fn>
gradcomp_status guarded(Fn&& fn) noexcept {
  try {
    const Status status = fn();
    if (!status.ok()) last_error() = status.message();
    return static_cast<gradcomp_status>(status.code());
  } catch (...) {
    last_error().clear();  // there may be no memory for a text
    return GRADCOMP_CAPACITY;
  }
}

Status check(const void* codec, const void* data, std::size_t size) {
  if (codec == nullptr) return gradcomp::argument_error("codec is NULL");
  if (data == nullptr && size != 0) return gradcomp::argument_error("a buffer is NULL");
  return {};
}

// Callers may pass NULL for an empty buffer; codecs expect a pointer.
template <typename T>
gradcomp::Span<T> span(T* data, std::size_t size) {
  static std::remove_const_t<T> nothing{};
  return {data == nullptr ? &nothing : data, size};
}

Call make_call(const gradcomp_call* call) {
  Call made;
  made.scratch = &gradcomp::thread_scratch();
  if (call != nullptr) {
    made.stream = gradcomp::derive_stream(call->seed, call->step, call->tensor_id);
  }
  return made;
}

Status check_rates(const gradcomp::MemoryStep& step) {
  for (const float rate : {step.last_lr, step.lr}) {
    if (!(std::isfinite(rate) && rate >= 0)) {
      return gradcomp::argument_error("a learning rate is " + std::to_string(rate) +
                                      "; it must be at least 0 and finite");
    }
  }
  return {};
}

Status compile(std::string_view text, gradcomp_codec** out) {
  auto codec = std::make_unique<gradcomp_codec>();
  GRADCOMP_TRY(gradcomp::compile_codec(text, &codec->compiled));
  *out = codec.release();
  return {};
}

Status open(const gradcomp_codec* codec, const std::uint8_t* bytes, std::size_t size, std::size_t n,
            Frame* frame) {
  GRADCOMP_TRY(check(codec, bytes, size));
  GRADCOMP_TRY(gradcomp::open_frame(codec->compiled, span(bytes, size), frame));
  if (frame->numel == n) return {};
  return gradcomp::wire_error("the frame holds " + std::to_string(frame->numel) +
                              " elements, not " + std::to_string(n));
}

}  // namespace

extern "C" {

int gradcomp_abi_version(void) { return GRADCOMP_ABI_VERSION; }

const char* gradcomp_last_error(void) { return last_error().c_str(); }

gradcomp_status gradcomp_codec_create(const char* spec, gradcomp_codec** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return gradcomp::argument_error("out is NULL");
    *out = nullptr;
    if (spec == nullptr) return gradcomp::argument_error("spec is NULL");
    return compile(spec, out);
  });
}

void gradcomp_codec_destroy(gradcomp_codec* codec) { delete codec; }

const char* gradcomp_codec_spec(const gradcomp_codec* codec) {
  return codec->compiled.spec.c_str();
}

uint32_t gradcomp_codec_caps(const gradcomp_codec* codec) {
  uint32_t bits = 0;
  gradcomp::for_each_cap(codec->compiled.codec->caps(),
                         [&](const char*, gradcomp_cap bit) { bits |= bit; });
  return bits;
}

size_t gradcomp_max_payload_size(const gradcomp_codec* codec, size_t n) {
  return codec->compiled.codec->max_encoded_size(n);
}

gradcomp_status gradcomp_encode(const gradcomp_codec* codec, const float* x, size_t n,
                                const gradcomp_call* call, uint8_t* out, size_t capacity,
                                size_t* written) {
  return guarded([&]() -> Status {
    GRADCOMP_TRY(check(codec, x, n));
    GRADCOMP_TRY(check(written, out, capacity));
    if (n > gradcomp::kMaxNumel) return gradcomp::capacity_error("too many elements");
    return codec->compiled.codec->encode(span(x, n), make_call(call), span(out, capacity), written);
  });
}

gradcomp_status gradcomp_encode_with_residual(const gradcomp_codec* codec, float* residual,
                                              const float* grad, size_t n, float beta, float gamma,
                                              const gradcomp_call* call, uint8_t* out,
                                              size_t capacity, size_t* written) {
  return guarded([&]() -> Status {
    GRADCOMP_TRY(check(codec, residual, n));
    GRADCOMP_TRY(check(codec, grad, n));
    GRADCOMP_TRY(check(written, out, capacity));
    if (n > gradcomp::kMaxNumel) return gradcomp::capacity_error("too many elements");
    const gradcomp::Span<float> x = span(residual, n);
    const gradcomp::Feedback feedback(x, span(grad, n).data(), beta, gamma);
    Call made = make_call(call);
    made.feedback = &feedback;
    return gradcomp::encode_payload(*codec->compiled.codec, {x.data(), x.size()}, made,
                                    span(out, capacity), written);
  });
}

gradcomp_status gradcomp_decode(const gradcomp_codec* codec, const uint8_t* payload, size_t size,
                                const gradcomp_call* call, float* y, size_t n) {
  return guarded([&]() -> Status {
    GRADCOMP_TRY(check(codec, payload, size));
    GRADCOMP_TRY(check(codec, y, n));
    return codec->compiled.codec->decode(span(payload, size), make_call(call), span(y, n));
  });
}

gradcomp_status gradcomp_decode_add(const gradcomp_codec* codec, const uint8_t* payload,
                                    size_t size, const gradcomp_call* call, float weight,
                                    float* acc, size_t n) {
  return guarded([&]() -> Status {
    GRADCOMP_TRY(check(codec, payload, size));
    GRADCOMP_TRY(check(codec, acc, n));
    return codec->compiled.codec->decode_add(span(payload, size), make_call(call), weight,
                                             span(acc, n));
  });
}

gradcomp_status gradcomp_spec_create(const char* text, gradcomp_spec** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return gradcomp::argument_error("out is NULL");
    *out = nullptr;
    if (text == nullptr) return gradcomp::argument_error("text is NULL");
    auto spec = std::make_unique<gradcomp_spec>();
    GRADCOMP_TRY(gradcomp::parse_spec(text, &spec->spec));
    if (spec->spec.find(gradcomp::StageKind::kCodec) == nullptr) {
      return {Code::kSpec, "'" + spec->spec.text() +
                               "' is an algorithm of several phases, which engines without them "
                               "cannot run"};
    }
    spec->text = spec->spec.text();
    *out = spec.release();
    return {};
  });
}

void gradcomp_spec_destroy(gradcomp_spec* spec) { delete spec; }

const char* gradcomp_spec_text(const gradcomp_spec* spec) { return spec->text.c_str(); }

uint32_t gradcomp_spec_keeps(const gradcomp_spec* spec) {
  const gradcomp::Memory memory(spec->spec.find(gradcomp::StageKind::kMemory));
  return (memory.keeps_residual() ? GRADCOMP_KEEPS_RESIDUAL : 0) |
         (memory.keeps_momentum() ? GRADCOMP_KEEPS_MOMENTUM : 0) |
         (memory.scales() ? GRADCOMP_KEEPS_LR : 0);
}

int gradcomp_spec_scheduled(const gradcomp_spec* spec) {
  using Unit = gradcomp::Schedule::Unit;
  return spec->spec.scheduled_by(Unit::kSteps) || spec->spec.scheduled_by(Unit::kEpochs) ? 1 : 0;
}

gradcomp_status gradcomp_spec_codec(const gradcomp_spec* spec, uint64_t step, uint64_t epoch,
                                    gradcomp_codec** out) {
  return guarded([&]() -> Status {
    if (out == nullptr) return gradcomp::argument_error("out is NULL");
    *out = nullptr;
    if (spec == nullptr) return gradcomp::argument_error("spec is NULL");
    const gradcomp::Spec now =
        spec->spec.at(static_cast<std::int64_t>(step), static_cast<std::int64_t>(epoch));
    return compile(now.text_without_memory(), out);
  });
}

gradcomp_status gradcomp_spec_encode(const gradcomp_spec* spec, const gradcomp_codec* codec,
                                     const float* grad, size_t n, const gradcomp_memory* memory,
                                     size_t world_size, const gradcomp_call* call, uint8_t* out,
                                     size_t capacity, size_t* written) {
  return guarded([&]() -> Status {
    GRADCOMP_TRY(check(codec, grad, n));
    GRADCOMP_TRY(check(written, out, capacity));
    if (spec == nullptr) return gradcomp::argument_error("spec is NULL");
    if (n > gradcomp::kMaxNumel) return gradcomp::capacity_error("too many elements");
    const gradcomp::Memory kept(spec->spec.find(gradcomp::StageKind::kMemory));
    float* const residual = memory == nullptr ? nullptr : memory->residual;
    float* const momentum = memory == nullptr ? nullptr : memory->momentum;
    if (kept.keeps_residual()) GRADCOMP_TRY(check(spec, residual, n));
    if (kept.keeps_momentum()) GRADCOMP_TRY(check(spec, momentum, n));
    gradcomp::MemoryStep step;
    step.first = call == nullptr || call->step == 0;
    if (memory != nullptr) {
      step.first |= memory->fresh != 0;
      step.last_lr = memory->last_lr;
      step.lr = memory->lr;
    }
    if (kept.scales()) GRADCOMP_TRY(check_rates(step));
    return kept.encode(codec->compiled, span(grad, n), {span(residual, n), span(momentum, n)},
                       world_size, step, make_call(call), span(out, capacity), written);
  });
}

uint64_t gradcomp_rank_seed(uint64_t seed, uint64_t rank) {
  return gradcomp::derive_stream(seed, rank, 0);
}

const char* gradcomp_codec_name(size_t i) {
  gradcomp::load_environment_plugins();
  for (const gradcomp::StageInfo& info : gradcomp::registry()) {
    if (info.kind == gradcomp::StageKind::kCodec && i-- == 0) return info.name;
  }
  return nullptr;
}

gradcomp_status gradcomp_load_plugin(const char* path) {
  return guarded([&]() -> Status {
    if (path == nullptr) return gradcomp::argument_error("path is NULL");
    return gradcomp::load_plugin(path);
  });
}

size_t gradcomp_max_frame_size(const gradcomp_codec* codec, size_t n) {
  return gradcomp::max_frame_size(codec->compiled, n);
}

gradcomp_status gradcomp_frame_encode(const gradcomp_codec* codec, const float* x, size_t n,
                                      const gradcomp_call* call, uint8_t* out, size_t capacity,
                                      size_t* written) {
  return guarded([&]() -> Status {
    GRADCOMP_TRY(check(codec, x, n));
    GRADCOMP_TRY(check(written, out, capacity));
    return gradcomp::encode_frame(codec->compiled, span(x, n), make_call(call), span(out, capacity),
                                  written);
  });
}

gradcomp_status gradcomp_frame_numel(const uint8_t* frame, size_t size, size_t* n) {
  return guarded([&]() -> Status {
    GRADCOMP_TRY(check(n, frame, size));
    Frame parsed;
    GRADCOMP_TRY(gradcomp::parse_frame(span(frame, size), &parsed));
    *n = static_cast<std::size_t>(parsed.numel);
    return {};
  });
}

gradcomp_status gradcomp_frame_decode(const gradcomp_codec* codec, const uint8_t* frame,
                                      size_t size, float* y, size_t n) {
  return guarded([&]() -> Status {
    Frame parsed;
    GRADCOMP_TRY(check(codec, y, n));
    GRADCOMP_TRY(open(codec, frame, size, n, &parsed));
    Call call = make_call(nullptr);
    call.stream = parsed.stream;
    return codec->compiled.codec->decode(parsed.payload, call, span(y, n));
  });
}

gradcomp_status gradcomp_frame_decode_add(const gradcomp_codec* codec, const uint8_t* frame,
                                          size_t size, float weight, float* acc, size_t n) {
  return guarded([&]() -> Status {
    Frame parsed;
    GRADCOMP_TRY(check(codec, acc, n));
    GRADCOMP_TRY(open(codec, frame, size, n, &parsed));
    Call call = make_call(nullptr);
    call.stream = parsed.stream;
    return codec->compiled.codec->decode_add(parsed.payload, call, weight, span(acc, n));
  });
}

}  // extern "C"
