/* The C interface of gradcomp's codecs (C99). The only header for code outside csrc.
 *
 * Every function may be called from any thread. No function throws, prints or aborts. A codec is
 * immutable; one codec serves any number of threads at once. */
#ifndef GRADCOMP_GRADCOMP_H_
#define GRADCOMP_GRADCOMP_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define GRADCOMP_API
#else
#define GRADCOMP_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Increases when this header changes incompatibly. */
#define GRADCOMP_ABI_VERSION 2
GRADCOMP_API int gradcomp_abi_version(void);

typedef enum {
  GRADCOMP_OK = 0,
  GRADCOMP_SPEC = 1,     /* the spec string is wrong */
  GRADCOMP_WIRE = 2,     /* the bytes are not a valid frame or payload */
  GRADCOMP_CAPACITY = 3, /* a buffer is too small, a tensor too large, or memory ran out */
  GRADCOMP_ARGUMENT = 4  /* the caller broke the contract of the call */
} gradcomp_status;

/* The reason of the last failure on this thread. Never NULL; valid until the thread's next call. */
GRADCOMP_API const char* gradcomp_last_error(void);

typedef struct gradcomp_codec gradcomp_codec;

/* A codec from a spec string such as "topk(ratio=0.01)". On failure *out is NULL. */
GRADCOMP_API gradcomp_status gradcomp_codec_create(const char* spec, gradcomp_codec** out);
GRADCOMP_API void gradcomp_codec_destroy(gradcomp_codec* codec); /* NULL is allowed */
/* The canonical spec; lives as long as the codec. */
GRADCOMP_API const char* gradcomp_codec_spec(const gradcomp_codec* codec);

/* The capabilities of codecs, X(name, NAME, bit): the one list of them, for C, C++ and Python. */
#define GRADCOMP_EACH_CAP(X)                                                                     \
  /* Payloads of ranks may be added element by element and decoded once: up to rounding, the sum \
   * is the payload of the sum. Frames of other codecs are gathered. */                          \
  X(summable, SUMMABLE, 1)                                                                       \
  /* The bytes depend on seed, step and tensor_id; decoding needs the same three. */             \
  X(seeded, SEEDED, 2)                                                                           \
  /* decode_add touches O(payload) elements, not O(n). */                                        \
  X(sparse, SPARSE, 4)                                                                           \
  /* Finite inputs decode to finite values. */                                                   \
  X(finite, FINITE, 8)                                                                           \
  /* Encoding draws noise that ranks should not share. */                                        \
  X(private_noise, PRIVATE_NOISE, 16)                                                            \
  /* The tensors of a bucket are looked at as a whole before any of them is encoded. */          \
  X(whole_bucket, WHOLE_BUCKET, 32)                                                              \
  /* Summable, but the decode of a sum is not the sum of the decodes: error feedback must        \
   * subtract the decode of the sum, not that of one rank's payload. */                          \
  X(nonlinear, NONLINEAR, 64)                                                                    \
  /* Averages of past steps make payloads smaller. */                                            \
  X(learns, LEARNS, 128)

typedef enum {
#define GRADCOMP_CAP_BIT(name, NAME, bit) GRADCOMP_CAP_##NAME = bit,
  GRADCOMP_EACH_CAP(GRADCOMP_CAP_BIT)
#undef GRADCOMP_CAP_BIT
} gradcomp_cap;
/* The sum of the codec's gradcomp_cap bits. */
GRADCOMP_API uint32_t gradcomp_codec_caps(const gradcomp_codec* codec);

/* The random numbers of a call are a function of these three numbers alone. */
typedef struct {
  uint64_t seed;
  uint64_t step;
  uint64_t tensor_id;
} gradcomp_call;

/* Bare payloads, for engines whose both ends agree on codec, spec, numel and call beforehand.
 * A buffer of gradcomp_max_payload_size(codec, n) bytes is always large enough for n elements. */
GRADCOMP_API size_t gradcomp_max_payload_size(const gradcomp_codec* codec, size_t n);
GRADCOMP_API gradcomp_status gradcomp_encode(const gradcomp_codec* codec, const float* x, size_t n,
                                             const gradcomp_call* call, uint8_t* out,
                                             size_t capacity, size_t* written);
GRADCOMP_API gradcomp_status gradcomp_decode(const gradcomp_codec* codec, const uint8_t* payload,
                                             size_t size, const gradcomp_call* call, float* y,
                                             size_t n);
/* Error feedback around gradcomp_encode, in one or two passes over memory: encodes
 * beta * residual + gamma * grad and subtracts the decode of the payload from it; residual becomes
 * the rest. Elements that are not finite become 0. After an error residual must be discarded. */
GRADCOMP_API gradcomp_status gradcomp_encode_with_residual(const gradcomp_codec* codec,
                                                           float* residual, const float* grad,
                                                           size_t n, float beta, float gamma,
                                                           const gradcomp_call* call, uint8_t* out,
                                                           size_t capacity, size_t* written);
/* acc += weight * decoded */
GRADCOMP_API gradcomp_status gradcomp_decode_add(const gradcomp_codec* codec,
                                                 const uint8_t* payload, size_t size,
                                                 const gradcomp_call* call, float weight,
                                                 float* acc, size_t n);

/* A whole spec such as "residual|topk(ratio=0.01)": a memory, parameters that may follow a
 * schedule, and a codec. For engines that average without the rounds of the Python package; specs
 * of several phases (powersgd) are refused. Immutable, as codecs are. */
typedef struct gradcomp_spec gradcomp_spec;
GRADCOMP_API gradcomp_status gradcomp_spec_create(const char* text, gradcomp_spec** out);
GRADCOMP_API void gradcomp_spec_destroy(gradcomp_spec* spec); /* NULL is allowed */
/* The canonical text; lives as long as the spec. */
GRADCOMP_API const char* gradcomp_spec_text(const gradcomp_spec* spec);

#define GRADCOMP_KEEPS_RESIDUAL 1u /* the unsent rest */
#define GRADCOMP_KEEPS_MOMENTUM 2u
#define GRADCOMP_KEEPS_LR 4u /* the learning rate of the residual's last step: lr=scale */
/* State that the memory keeps between steps: a sum of the bits above. */
GRADCOMP_API uint32_t gradcomp_spec_keeps(const gradcomp_spec* spec);
/* Whether the codec depends on step or epoch. */
GRADCOMP_API int gradcomp_spec_scheduled(const gradcomp_spec* spec);
/* The codec at a step of an epoch, both counted from 0. */
GRADCOMP_API gradcomp_status gradcomp_spec_codec(const gradcomp_spec* spec, uint64_t step,
                                                 uint64_t epoch, gradcomp_codec** out);

/* gradcomp_encode with the spec's memory around it. `codec` is the codec of call->step. The arrays
 * of the memory have n elements, all 0 before step 0; NULL if it keeps none. The clipping of
 * momentum_correction depends on `world_size`. After an error the arrays must be discarded. */
typedef struct {
  float* residual;
  float* momentum;
  /* With GRADCOMP_KEEPS_LR, learning rates in [0, FLT_MAX]: of the last step whose rate was not 0
   * (0 if there was none), and of this step. At a rate of 0 the gradient is encoded without the
   * residual, which waits. */
  float last_lr;
  float lr;
  int fresh; /* not 0: the arrays are all 0 after step 0, too; for steps that were undone */
} gradcomp_memory;
GRADCOMP_API gradcomp_status gradcomp_spec_encode(const gradcomp_spec* spec,
                                                  const gradcomp_codec* codec, const float* grad,
                                                  size_t n, const gradcomp_memory* memory,
                                                  size_t world_size, const gradcomp_call* call,
                                                  uint8_t* out, size_t capacity, size_t* written);

/* The seed of a rank's own random numbers, for a job seeded with `seed`. */
GRADCOMP_API uint64_t gradcomp_rank_seed(uint64_t seed, uint64_t rank);
/* The name of registered codec i; NULL if there are not so many. */
GRADCOMP_API const char* gradcomp_codec_name(size_t i);

/* Self-describing frames (docs/wire-format.md). */
GRADCOMP_API size_t gradcomp_max_frame_size(const gradcomp_codec* codec, size_t n);
GRADCOMP_API gradcomp_status gradcomp_frame_encode(const gradcomp_codec* codec, const float* x,
                                                   size_t n, const gradcomp_call* call,
                                                   uint8_t* out, size_t capacity, size_t* written);
/* The number of elements of a frame, from its checked header. */
GRADCOMP_API gradcomp_status gradcomp_frame_numel(const uint8_t* frame, size_t size, size_t* n);
GRADCOMP_API gradcomp_status gradcomp_frame_decode(const gradcomp_codec* codec,
                                                   const uint8_t* frame, size_t size, float* y,
                                                   size_t n);
GRADCOMP_API gradcomp_status gradcomp_frame_decode_add(const gradcomp_codec* codec,
                                                       const uint8_t* frame, size_t size,
                                                       float weight, float* acc, size_t n);

/* ---- Codecs from outside: a shared library that exports gradcomp_plugin() (docs/plugins.md) ----
 */

/* Changes when the structures below do. */
#define GRADCOMP_PLUGIN_ABI_VERSION 2u
/* Ids of gradcomp's own codecs are below; those of plug-ins go from here to 0xFFFF. */
#define GRADCOMP_FIRST_PLUGIN_ID 0x8000u

typedef enum { GRADCOMP_REAL = 0, GRADCOMP_INTEGER = 1, GRADCOMP_BOOLEAN = 2 } gradcomp_param_type;

/* A parameter in a spec. Values are doubles: whole for an integer, 0 or 1 for a boolean. */
typedef struct {
  const char* name; /* as the codec's name */
  uint32_t type;    /* a gradcomp_param_type */
  double default_value;
  double min; /* min and max are inclusive, and ignored for a boolean */
  double max;
  const char* doc;
} gradcomp_plugin_param;

/* A codec. Its functions must be safe to call from several threads at once, keep no state between
 * calls, and give the same bytes for the same arguments on every machine. They are never called for
 * tensors of 0 elements, whose payload is empty. Each returns NULL, or the reason for its failure:
 * a text that stays valid until the next call on this thread. No function may throw. `params` are
 * the values in the order of `gradcomp_plugin_codec.params`. */
typedef struct {
  uint32_t abi_version;  /* GRADCOMP_PLUGIN_ABI_VERSION */
  uint32_t id;           /* of frames; from GRADCOMP_FIRST_PLUGIN_ID to 0xFFFF, and nobody else's */
  uint32_t version;      /* from 1; raise it when the bytes change: ranks refuse another one */
  uint32_t caps;         /* of SUMMABLE, SEEDED, FINITE and PRIVATE_NOISE; see below */
  const char* name;      /* lower-case letters, digits and _, beginning with a letter */
  const char* summary;   /* one line of printable ASCII, as the next one */
  const char* nonfinite; /* treatment of NaN and Inf */
  const gradcomp_plugin_param* params;
  size_t param_count;
  void* context; /* handed to every function; NULL is allowed */
  /* Upper bound of the bytes of a payload of n elements, at most UINT32_MAX. With SUMMABLE a
   * payload has exactly that size and consists of float32, which engines add up. */
  const char* (*max_payload_size)(void* context, const double* params, size_t n, size_t* size);
  /* Writes at most `capacity` bytes, which is what max_payload_size says. `cols`: elements of a
   * row, where the tensor is a matrix [shape[0], rest]; 0 for a vector. decode is not told of it.
   * `stream` is the key of this call's random numbers (docs/wire-format.md). */
  const char* (*encode)(void* context, const double* params, const float* x, size_t n, size_t cols,
                        uint64_t stream, uint8_t* out, size_t capacity, size_t* written);
  /* Must check every byte: payloads come from a network. With SEEDED, `stream` is the encoder's;
   * else it has no meaning. */
  const char* (*decode)(void* context, const double* params, const uint8_t* payload, size_t size,
                        uint64_t stream, float* y, size_t n);
} gradcomp_plugin_codec;

/* Defined by a plug-in library, not by gradcomp: its codec i, or NULL from their number on. */
GRADCOMP_API const gradcomp_plugin_codec* gradcomp_plugin(size_t i);

/* Loads a plug-in library and registers its codecs for the life of the process; at the second call
 * with the same library nothing is left to do. Libraries in the environment variable
 * GRADCOMP_PLUGINS, separated by ':', are loaded when a spec first names an unknown stage. */
GRADCOMP_API gradcomp_status gradcomp_load_plugin(const char* path);

#ifdef __cplusplus
}
#endif

#endif /* GRADCOMP_GRADCOMP_H_ */
