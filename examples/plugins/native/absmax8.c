/* Example plug-in as a shared library: the codec "absmax8", an 8-bit level per element.
 *
 * Levels are in [-127, 127], in steps of the largest magnitude / 127. With a threshold above 0,
 * elements below threshold * largest magnitude get level 0. The payload is the step (float32), then
 * the levels (int8).
 *
 * docs/plugins.md explains the file. To build it:
 *
 *   cc -O2 -ffp-contract=off -shared -fPIC -I csrc/include examples/plugins/native/absmax8.c \
 *      -o absmax8.so -lm
 */
#include <math.h>
#include <string.h>

#include "gradcomp/gradcomp.h"

static const char* max_payload_size(void* context, const double* params, size_t n, size_t* size) {
  (void)context, (void)params;
  *size = sizeof(float) + n;
  return NULL;
}

static const char* encode(void* context, const double* params, const float* x, size_t n,
                          size_t cols, uint64_t stream, uint8_t* out, size_t capacity,
                          size_t* written) {
  (void)context, (void)cols, (void)stream, (void)capacity;
  float largest = 0;
  int finite = 1;
  for (size_t i = 0; i < n; ++i) {
    finite &= isfinite(x[i]) != 0;
    largest = fmaxf(largest, fabsf(x[i]));
  }
  /* Limited so that 127 * step is finite. */
  const float step = finite ? fminf(largest / 127, 0x1.020406p121f) : NAN;
  const float least = (float)params[0] * largest;
  memcpy(out, &step, sizeof step);
  for (size_t i = 0; i < n; ++i) {
    const int kept = step > 0 && fabsf(x[i]) >= least; /* false if step is NaN */
    const float level = kept ? fminf(fmaxf(nearbyintf(x[i] / step), -127), 127) : 0;
    out[sizeof step + i] = (uint8_t)(int8_t)level;
  }
  *written = sizeof step + n;
  return NULL;
}

static const char* decode(void* context, const double* params, const uint8_t* payload, size_t size,
                          uint64_t stream, float* y, size_t n) {
  (void)context, (void)params, (void)stream;
  float step;
  if (size != sizeof step + n) return "the payload must have 4 bytes and one per element";
  memcpy(&step, payload, sizeof step);
  if (step < 0 || isinf(step)) return "the step must not be negative or infinite";
  for (size_t i = 0; i < n; ++i) y[i] = step * (int8_t)payload[sizeof step + i];
  return NULL;
}

static const gradcomp_plugin_param parameters[] = {
    {"threshold", GRADCOMP_REAL, 0.0, 0.0, 1.0,
     "elements below this fraction of the largest magnitude become 0"},
};

static const gradcomp_plugin_codec codec = {
    .abi_version = GRADCOMP_PLUGIN_ABI_VERSION,
    .id = 0x8002,
    .version = 1,
    .caps = GRADCOMP_CAP_FINITE,
    .name = "absmax8",
    .summary = "8-bit levels in steps of the largest magnitude / 127",
    .nonfinite = "a tensor with NaN or Inf becomes all NaN",
    .params = parameters,
    .param_count = 1,
    .max_payload_size = max_payload_size,
    .encode = encode,
    .decode = decode,
};

const gradcomp_plugin_codec* gradcomp_plugin(size_t i) { return i == 0 ? &codec : NULL; }
