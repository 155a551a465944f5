/* The C ABI from C99: that the header compiles there is half of the test. */
#include <stdio.h>
#include <string.h>

#include "gradcomp/gradcomp.h"

#define EXPECT(condition)                                             \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      return 1;                                                       \
    }                                                                 \
  } while (0)

int check_capi(void);

/* A whole spec: its memory's arrays are the caller's. */
static int check_spec(void) {
  const float grad[4] = {1.0f, -4.0f, 2.0f, 0.5f};
  float residual[4] = {0, 0, 0, 0};
  float sent[4];
  uint8_t buffer[256];
  size_t written = 0;
  gradcomp_memory memory = {residual, NULL, 0, 0, 0};
  gradcomp_call call = {0, 0, 0};
  gradcomp_spec* spec = NULL;
  gradcomp_codec* codec = NULL;

  EXPECT(gradcomp_spec_create("powersgd(rank=2)", &spec) == GRADCOMP_SPEC);
  EXPECT(strstr(gradcomp_last_error(), "several phases") != NULL);
  EXPECT(gradcomp_spec_create("topk(", &spec) == GRADCOMP_SPEC);
  EXPECT(gradcomp_spec_create("signum|sign", &spec) == GRADCOMP_OK);
  EXPECT(gradcomp_spec_keeps(spec) == GRADCOMP_KEEPS_MOMENTUM);
  EXPECT(gradcomp_spec_scheduled(spec) == 0);
  gradcomp_spec_destroy(spec);

  EXPECT(gradcomp_spec_create("residual|topk(ratio=ramp(from=1,to=0.25,steps=1))", &spec) ==
         GRADCOMP_OK);
  EXPECT(gradcomp_spec_keeps(spec) == GRADCOMP_KEEPS_RESIDUAL);
  EXPECT(gradcomp_spec_scheduled(spec) == 1);
  EXPECT(gradcomp_spec_codec(spec, 5, 0, &codec) == GRADCOMP_OK);
  EXPECT(strcmp(gradcomp_codec_spec(codec), "topk(ratio=0.25,values=fp32)") == 0);
  EXPECT(gradcomp_spec_encode(spec, codec, grad, 4, NULL, 1, &call, buffer, sizeof buffer,
                              &written) == GRADCOMP_ARGUMENT);
  EXPECT(gradcomp_spec_encode(spec, codec, grad, 4, &memory, 1, &call, buffer, sizeof buffer,
                              &written) == GRADCOMP_OK);
  EXPECT(gradcomp_decode(codec, buffer, written, &call, sent, 4) == GRADCOMP_OK);
  EXPECT(sent[0] == 0.0f && sent[1] == -4.0f && residual[0] == 1.0f && residual[1] == 0.0f);
  call.step = 1;
  EXPECT(gradcomp_spec_encode(spec, codec, grad, 4, &memory, 1, &call, buffer, sizeof buffer,
                              &written) == GRADCOMP_OK);
  EXPECT(residual[0] == 2.0f && residual[2] == 4.0f);
  gradcomp_codec_destroy(codec);
  gradcomp_spec_destroy(spec);
  gradcomp_spec_destroy(NULL);

  /* The residual follows the learning rate, and waits at a rate of 0. */
  EXPECT(gradcomp_spec_create("residual(lr=scale)|topk(k=1)", &spec) == GRADCOMP_OK);
  EXPECT(gradcomp_spec_keeps(spec) == (GRADCOMP_KEEPS_RESIDUAL | GRADCOMP_KEEPS_LR));
  EXPECT(gradcomp_spec_codec(spec, 0, 0, &codec) == GRADCOMP_OK);
  memory.last_lr = 0.5f;
  memory.lr = 0.25f;
  EXPECT(gradcomp_spec_encode(spec, codec, grad, 4, &memory, 1, &call, buffer, sizeof buffer,
                              &written) == GRADCOMP_OK);
  EXPECT(residual[0] == 5.0f && residual[1] == -4.0f && residual[2] == 0.0f);
  memory.lr = 0.0f;
  EXPECT(gradcomp_spec_encode(spec, codec, grad, 4, &memory, 1, &call, buffer, sizeof buffer,
                              &written) == GRADCOMP_OK);
  EXPECT(gradcomp_decode(codec, buffer, written, &call, sent, 4) == GRADCOMP_OK);
  EXPECT(sent[1] == -4.0f && residual[0] == 5.0f && residual[1] == -4.0f);
  memory.lr = -1.0f;
  EXPECT(gradcomp_spec_encode(spec, codec, grad, 4, &memory, 1, &call, buffer, sizeof buffer,
                              &written) == GRADCOMP_ARGUMENT);
  gradcomp_codec_destroy(codec);
  gradcomp_spec_destroy(spec);

  /* Half of the residual waits. */
  EXPECT(gradcomp_spec_create("residual(average=0.5)|topk(k=1)", &spec) == GRADCOMP_OK);
  EXPECT(gradcomp_spec_codec(spec, 0, 0, &codec) == GRADCOMP_OK);
  memory.lr = 0.0f;
  EXPECT(gradcomp_spec_encode(spec, codec, grad, 4, &memory, 1, &call, buffer, sizeof buffer,
                              &written) == GRADCOMP_OK);
  EXPECT(gradcomp_decode(codec, buffer, written, &call, sent, 4) == GRADCOMP_OK);
  EXPECT(sent[1] == -6.0f && sent[0] == 0.0f);
  EXPECT(residual[0] == 6.0f && residual[1] == -2.0f && residual[2] == 2.0f);
  gradcomp_codec_destroy(codec);
  gradcomp_spec_destroy(spec);

  /* These need averages or norms of all ranks, which this interface does not know. */
  const char* const joint[] = {"ef21|topk(k=1)", "momentum_correction(clip=joint_norm)|topk(k=1)"};
  float momentum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  memory.momentum = momentum;
  for (size_t i = 0; i < sizeof joint / sizeof *joint; ++i) {
    EXPECT(gradcomp_spec_create(joint[i], &spec) == GRADCOMP_OK);
    EXPECT(gradcomp_spec_codec(spec, 0, 0, &codec) == GRADCOMP_OK);
    EXPECT(gradcomp_spec_encode(spec, codec, grad, 4, &memory, 1, &call, buffer, sizeof buffer,
                                &written) == GRADCOMP_SPEC);
    gradcomp_codec_destroy(codec);
    gradcomp_spec_destroy(spec);
  }

  EXPECT(gradcomp_rank_seed(1, 0) != gradcomp_rank_seed(1, 1));
  EXPECT(gradcomp_codec_name(0) != NULL);
  EXPECT(gradcomp_codec_name(1000000) == NULL);
  return 0;
}

int check_capi(void) {
  const float x[5] = {1.0f, -2.5f, 0.0f, 3.0f, -0.5f};
  const gradcomp_call call = {7, 3, 9};
  float y[5] = {9, 9, 9, 9, 9};
  uint8_t buffer[256];
  size_t written = 0;
  size_t numel = 0;
  gradcomp_codec* codec = NULL;

  EXPECT(check_spec() == 0);
  EXPECT(gradcomp_abi_version() == GRADCOMP_ABI_VERSION);
  EXPECT(gradcomp_codec_create("topk(k=2", &codec) == GRADCOMP_SPEC);
  EXPECT(codec == NULL);
  EXPECT(strstr(gradcomp_last_error(), "expected ',' or ')'") != NULL);
  EXPECT(gradcomp_codec_create(NULL, &codec) == GRADCOMP_ARGUMENT);

  EXPECT(gradcomp_codec_create("topk(k=2)", &codec) == GRADCOMP_OK);
  EXPECT(strcmp(gradcomp_codec_spec(codec), "topk(k=2,values=fp32)") == 0);
  EXPECT(gradcomp_codec_caps(codec) == (GRADCOMP_CAP_SPARSE | GRADCOMP_CAP_FINITE));
  EXPECT(gradcomp_max_payload_size(codec, 5) <= sizeof buffer);
  EXPECT(gradcomp_encode(codec, x, 5, &call, buffer, 3, &written) == GRADCOMP_CAPACITY);
  EXPECT(gradcomp_encode(codec, x, 5, &call, buffer, sizeof buffer, &written) == GRADCOMP_OK);
  EXPECT(gradcomp_decode(codec, buffer, written, &call, y, 5) == GRADCOMP_OK);
  EXPECT(y[0] == 0.0f && y[1] == -2.5f && y[3] == 3.0f);
  EXPECT(gradcomp_decode_add(codec, buffer, written, &call, 2.0f, y, 5) == GRADCOMP_OK);
  EXPECT(y[1] == -7.5f);
  EXPECT(gradcomp_decode(codec, buffer, written - 1, &call, y, 5) == GRADCOMP_WIRE);
  gradcomp_codec_destroy(codec);
  gradcomp_codec_destroy(NULL);

  EXPECT(gradcomp_codec_create("randomk(k=2)", &codec) == GRADCOMP_OK);
  EXPECT(gradcomp_max_frame_size(codec, 5) <= sizeof buffer);
  EXPECT(gradcomp_frame_encode(codec, x, 5, &call, buffer, sizeof buffer, &written) == GRADCOMP_OK);
  EXPECT(gradcomp_frame_numel(buffer, written, &numel) == GRADCOMP_OK);
  EXPECT(numel == 5);
  EXPECT(gradcomp_frame_decode(codec, buffer, written, y, 4) == GRADCOMP_WIRE);
  EXPECT(gradcomp_frame_decode(codec, buffer, written, y, 5) == GRADCOMP_OK);
  EXPECT(gradcomp_frame_decode_add(codec, buffer, written, -1.0f, y, 5) == GRADCOMP_OK);
  EXPECT(y[0] == 0.0f && y[1] == 0.0f && y[2] == 0.0f && y[3] == 0.0f && y[4] == 0.0f);
  buffer[written - 1] ^= 1;
  EXPECT(gradcomp_frame_decode(codec, buffer, written, y, 5) == GRADCOMP_WIRE);
  gradcomp_codec_destroy(codec);

  EXPECT(gradcomp_codec_create("topk(k=1)", &codec) == GRADCOMP_OK);
  {
    float residual[5] = {1.0f, 1.0f, 0.0f, 1.0f, 0.0f};
    EXPECT(gradcomp_encode_with_residual(codec, residual, x, 5, 2.0f, 1.0f, &call, buffer,
                                         sizeof buffer, &written) == GRADCOMP_OK);
    EXPECT(residual[0] == 3.0f && residual[1] == -0.5f && residual[3] == 0.0f);
    EXPECT(gradcomp_decode(codec, buffer, written, &call, y, 5) == GRADCOMP_OK);
    EXPECT(y[0] == 0.0f && y[3] == 5.0f);
    EXPECT(gradcomp_encode_with_residual(codec, NULL, x, 5, 1.0f, 1.0f, &call, buffer,
                                         sizeof buffer, &written) == GRADCOMP_ARGUMENT);
  }
  gradcomp_codec_destroy(codec);
  return 0;
}
