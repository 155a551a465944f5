/* Encodes and decodes through gradcomp.h, for scripts/golden/check_program.py: where no Python is, as with musl.
 *
 * Each line of the input is SPEC SEED STEP TENSOR_ID HEX, with the bytes of the elements in hexadecimal digits, or "-"
 * for none. The line of output is the frame and the decoded elements, in the same form. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradcomp/gradcomp.h"

#define LONGEST 100000

static char line[LONGEST];
static char spec[LONGEST];
static char digits[LONGEST];

static size_t from_hex(uint8_t* out) {
  size_t n = strcmp(digits, "-") == 0 ? 0 : strlen(digits) / 2;
  for (size_t i = 0; i < n; ++i) {
    unsigned byte = 0;
    sscanf(digits + 2 * i, "%2x", &byte);
    out[i] = (uint8_t)byte;
  }
  return n;
}

static void print_hex(const void* bytes, size_t size) {
  if (size == 0) putchar('-');
  for (size_t i = 0; i < size; ++i) printf("%02x", ((const uint8_t*)bytes)[i]);
}

static int answer(void) {
  static float x[LONGEST / 8];
  static float y[LONGEST / 8];
  gradcomp_call call;
  gradcomp_codec* codec = NULL;
  if (sscanf(line, "%s %" SCNu64 " %" SCNu64 " %" SCNu64 " %s", spec, &call.seed, &call.step,
             &call.tensor_id, digits) != 5) {
    return 1;
  }
  const size_t n = from_hex((uint8_t*)x) / sizeof(float);
  if (gradcomp_codec_create(spec, &codec) != GRADCOMP_OK) return 1;
  const size_t capacity = gradcomp_max_frame_size(codec, n);
  uint8_t* frame = malloc(capacity);
  size_t size = 0;
  const int failed =
      gradcomp_frame_encode(codec, x, n, &call, frame, capacity, &size) != GRADCOMP_OK ||
      gradcomp_frame_decode(codec, frame, size, y, n) != GRADCOMP_OK;
  if (!failed) {
    print_hex(frame, size);
    putchar(' ');
    print_hex(y, n * sizeof(float));
    putchar('\n');
  }
  free(frame);
  gradcomp_codec_destroy(codec);
  return failed;
}

int main(void) {
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (answer()) {
      fprintf(stderr, "%s: %s\n", spec, gradcomp_last_error());
      return 1;
    }
  }
  return 0;
}
