/* Plug-ins that are wrong in one way each: -DABI, -DNO_EXPORT, -DNULL_FUNCTION, ... */
#include "gradcomp/gradcomp.h"

static const char* max_payload_size(void* context, const double* params, size_t n, size_t* size) {
  (void)context, (void)params;
  *size = n;
  return NULL;
}

#ifndef NULL_FUNCTION
static const char* encode(void* context, const double* params, const float* x, size_t n,
                          size_t cols, uint64_t stream, uint8_t* out, size_t capacity,
                          size_t* written) {
  (void)context, (void)params, (void)x, (void)n, (void)cols;
  (void)stream, (void)out, (void)capacity;
  *written = 99;
  return NULL;
}
#endif

static const char* decode(void* context, const double* params, const uint8_t* payload, size_t size,
                          uint64_t stream, float* y, size_t n) {
  (void)context, (void)params, (void)payload, (void)size, (void)stream, (void)y, (void)n;
  return "no such payload";
}

static const gradcomp_plugin_param params[] = {
#ifdef TYPE
    {"p", (gradcomp_param_type)7, 0.0, 0.0, 1.0, "doc"},
#else
    {"p", GRADCOMP_INTEGER, 0.0, 0.0, 1.0, "doc"},
#endif
};

static const gradcomp_plugin_codec codec = {
#ifdef ABI
    .abi_version = 99,
#else
    .abi_version = GRADCOMP_PLUGIN_ABI_VERSION,
#endif
    .id = 0x8765,
    .version = 1,
#ifdef CAPS
    .caps = GRADCOMP_CAP_SPARSE,
#endif
#ifdef TAKEN
    .name = "topk",
#else
    .name = "hostile",
#endif
    .summary = "a plug-in with a fault",
    .nonfinite = "nobody knows",
    .params = params,
    .param_count = 1,
    .max_payload_size = max_payload_size,
#ifndef NULL_FUNCTION
    .encode = encode,
#endif
    .decode = decode,
};

#ifdef NO_EXPORT
const gradcomp_plugin_codec* other_name(size_t i);
const gradcomp_plugin_codec* other_name(size_t i) { return i == 0 ? &codec : NULL; }
#else
const gradcomp_plugin_codec* gradcomp_plugin(size_t i) { return i == 0 ? &codec : NULL; }
#endif
