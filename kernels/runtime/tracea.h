/* The kernels of tracea-graph for any program: C99, no other header needed.
 *
 *   TraceaTensorView a = tracea_matrix(pa, m, k), b = tracea_matrix(pb, k, n), c = tracea_matrix(pc, m, n);
 *   if (tracea_gemm(&a, &b, NULL, &c, NULL, NULL) != TRACEA_SUCCESS) {
 *     char why[TRACEA_MAX_ERROR];
 *     tracea_get_last_error(why, sizeof why);
 *   }
 *
 * Every function may be called from several threads at once.  None aborts, throws or prints: a
 * failure is a status, and tracea_get_last_error has the sentence, per thread.  Memory that a view
 * names must be there: that is all a caller has to promise.
 */
#ifndef TRACEA_H
#define TRACEA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A library serves programs compiled against an equal major and an equal or lower minor version. */
#define TRACEA_ABI_MAJOR 1
#define TRACEA_ABI_MINOR 2 /* 1: tracea_observe, 2: tracea_device */
#define TRACEA_ABI_VERSION ((TRACEA_ABI_MAJOR << 16) | TRACEA_ABI_MINOR)

#define TRACEA_MAX_RANK 8
#define TRACEA_MAX_ERROR 512 /* bytes of a message, its end included */
#define TRACEA_CPU (-1)      /* device_id of host memory; CUDA devices count from 0 */

#if defined(TRACEA_BUILD) && defined(_WIN32)
#define TRACEA_EXPORT __declspec(dllexport)
#elif defined(TRACEA_BUILD)
#define TRACEA_EXPORT __attribute__((visibility("default")))
#else
#define TRACEA_EXPORT
#endif

typedef enum TraceaStatus {
  TRACEA_SUCCESS = 0,
  TRACEA_INVALID_PARAMS = 1,     /* what was asked for makes no sense */
  TRACEA_UNSUPPORTED_CONFIG = 2, /* it makes sense, but this library or machine cannot do it */
  TRACEA_CUDA_ERROR = 3,
  TRACEA_CPU_ERROR = 4           /* no memory, or a run that failed */
} TraceaStatus;

/* ONNX's numbers of element types. */
typedef enum TraceaDType {
  TRACEA_F32 = 1, TRACEA_U8 = 2, TRACEA_I8 = 3, TRACEA_I16 = 5, TRACEA_I32 = 6, TRACEA_I64 = 7,
  TRACEA_BOOL = 9, TRACEA_F16 = 10, TRACEA_BF16 = 16
} TraceaDType;

/* A tensor in memory that the caller owns.  Strides are in elements, may be 0 (repeated; operands
 * only) or negative; ptr is the address of element 0, aligned to its own size. */
typedef struct TraceaTensorView {
  void* ptr;
  int32_t rank;
  int64_t shape[TRACEA_MAX_RANK];
  int64_t stride[TRACEA_MAX_RANK];
  int32_t dtype;     /* TraceaDType */
  int32_t device_id; /* TRACEA_CPU, or a CUDA device */
} TraceaTensorView;

typedef enum TraceaActivation {
  TRACEA_NONE, TRACEA_RELU, TRACEA_SIGMOID, TRACEA_TANH, TRACEA_GELU, TRACEA_GELU_TANH, TRACEA_SILU
} TraceaActivation;

/* Parameters begin with their own size, so that later versions can add fields at the end; a null
 * pointer stands for the defaults of the _INIT macros. */
typedef struct TraceaGemmParams {
  uint32_t struct_size;
  int32_t activation; /* TraceaActivation */
} TraceaGemmParams;
#define TRACEA_GEMM_PARAMS_INIT {sizeof(TraceaGemmParams), TRACEA_NONE}

/* How a convolution is computed.  3x3 kernels at stride 1, padded by 1, of prepared weights may use
 * Winograd's algorithm: F(2x2) is about as exact as direct sums, F(4x4) ten times less. */
typedef enum TraceaConvAlgorithm {
  TRACEA_CONV_AUTO, /* F(2x2) where it is defined and pays */
  TRACEA_CONV_DIRECT,
  TRACEA_CONV_WINOGRAD2,
  TRACEA_CONV_WINOGRAD4
} TraceaConvAlgorithm;

typedef struct TraceaConv2dParams {
  uint32_t struct_size;
  int32_t stride[2];   /* rows, columns */
  int32_t dilation[2];
  int32_t padding[4];  /* above, left, below, right */
  int32_t groups;
  int32_t activation;
  int32_t algorithm;   /* TraceaConvAlgorithm */
} TraceaConv2dParams;
#define TRACEA_CONV2D_PARAMS_INIT \
  {sizeof(TraceaConv2dParams), {1, 1}, {1, 1}, {0, 0, 0, 0}, 1, TRACEA_NONE, TRACEA_CONV_AUTO}

typedef enum TraceaCausal {
  TRACEA_NOT_CAUSAL,
  TRACEA_CAUSAL_TOP_LEFT,    /* query i sees keys up to i */
  TRACEA_CAUSAL_BOTTOM_RIGHT /* the last query sees all keys */
} TraceaCausal;

typedef struct TraceaAttentionParams {
  uint32_t struct_size;
  float scale;     /* 0: 1 / sqrt(head size) */
  float softcap;   /* 0: none */
  int32_t causal;  /* TraceaCausal */
} TraceaAttentionParams;
#define TRACEA_ATTENTION_PARAMS_INIT {sizeof(TraceaAttentionParams), 0.0f, 0.0f, TRACEA_NOT_CAUSAL}

typedef enum TraceaNormKind { TRACEA_LAYER_NORM, TRACEA_RMS_NORM } TraceaNormKind;

typedef struct TraceaNormParams {
  uint32_t struct_size;
  int32_t kind; /* TraceaNormKind */
  float epsilon;
} TraceaNormParams;
#define TRACEA_NORM_PARAMS_INIT {sizeof(TraceaNormParams), TRACEA_LAYER_NORM, 1e-5f}

/* Streams are CUDA streams; host kernels have returned when the function has, and take null. */

/* c = activation(a b + bias): a [.., M, K], b [.., K, N] or [K, N], bias [N] or null, c [.., M, N]
 * with unit stride along N.  A transposed operand is one with its strides swapped. */
TRACEA_EXPORT TraceaStatus tracea_gemm(const TraceaTensorView* a, const TraceaTensorView* b,
                                       const TraceaTensorView* bias, const TraceaTensorView* c,
                                       const TraceaGemmParams* params, void* stream);

/* y = activation(x * w + bias): x [N, C, H, W], w [O, C / groups, kh, kw], bias [O] or null,
 * y [N, O, H', W'].  Channels-last tensors are views with other strides. */
TRACEA_EXPORT TraceaStatus tracea_conv2d(const TraceaTensorView* x, const TraceaTensorView* w,
                                         const TraceaTensorView* bias, const TraceaTensorView* y,
                                         const TraceaConv2dParams* params, void* stream);

/* y = softmax(scale q k' + mask) v: q [B, H, S, D], k [B, Hkv, T, D], v [B, Hkv, T, Dv],
 * y [B, H, S, Dv], H a multiple of Hkv; mask null or broadcast to [B, H, S, T] by strides of 0:
 * float32 is added, bool is true where a key is kept.  Rows without a key are 0. */
TRACEA_EXPORT TraceaStatus tracea_attention(const TraceaTensorView* q, const TraceaTensorView* k,
                                            const TraceaTensorView* v, const TraceaTensorView* mask,
                                            const TraceaTensorView* y,
                                            const TraceaAttentionParams* params, void* stream);

/* Normalizes rows of x [.., N]; gamma and beta [N] may be null. */
TRACEA_EXPORT TraceaStatus tracea_norm(const TraceaTensorView* x, const TraceaTensorView* gamma,
                                       const TraceaTensorView* beta, const TraceaTensorView* y,
                                       const TraceaNormParams* params, void* stream);

/* Weights that are used more than once: packed here, so that calls do not do it again.  The weight
 * and the bias are copied.  To be released; any number of threads may use one. */
typedef struct TraceaPrepared TraceaPrepared;
TRACEA_EXPORT TraceaStatus tracea_prepare_gemm(const TraceaTensorView* b,
                                               const TraceaTensorView* bias,
                                               const TraceaGemmParams* params,
                                               TraceaPrepared** out);
TRACEA_EXPORT TraceaStatus tracea_prepare_conv2d(const TraceaTensorView* w,
                                                 const TraceaTensorView* bias,
                                                 const TraceaConv2dParams* params,
                                                 TraceaPrepared** out);
TRACEA_EXPORT TraceaStatus tracea_run_prepared(const TraceaPrepared* prepared,
                                               const TraceaTensorView* x,
                                               const TraceaTensorView* y, void* stream);
TRACEA_EXPORT void tracea_release_prepared(TraceaPrepared* prepared);

/* A program of a model's library: `plan` is the attribute of a node, which is checked word by word.
 * Tensors are dense and as the plan declares them. */
TRACEA_EXPORT TraceaStatus tracea_run_program(const int64_t* plan, size_t words,
                                              const TraceaTensorView* inputs, size_t input_count,
                                              const TraceaTensorView* outputs, size_t output_count,
                                              void* stream);

/* Threads that calls may use, the caller's included; 0: one for each usable core, the
 * default. */
TRACEA_EXPORT TraceaStatus tracea_set_threads(int32_t threads);
TRACEA_EXPORT int32_t tracea_get_threads(void);
/* Gives memory back that the library keeps between calls. */
TRACEA_EXPORT void tracea_trim(void);

/* What one run of a node, or of a call above, took. */
typedef struct TraceaNodeRun {
  uint32_t struct_size;
  const char* node;        /* its name in the model, or that of the function */
  const int64_t* symbols;  /* sizes that it ran with */
  const int64_t* call_ns;  /* nanoseconds of each kernel call */
  size_t symbol_count, call_count;
  int64_t start_ns;        /* of the monotonic clock */
  int64_t thread;          /* the system's number of it */
  int64_t arena_bytes;     /* memory between calls */
} TraceaNodeRun;

/* `run` is called after every run of this library's programs in this process, in ONNX Runtime too, on
 * the thread of that run, with what it points to valid until it returns. */
typedef struct TraceaObserver {
  void (*run)(void* user, const TraceaNodeRun* run);
  void* user;
} TraceaObserver;
/* Sets the observer, which must stay as long as it may be called; null: none, which is the default. */
TRACEA_EXPORT void tracea_observe(const TraceaObserver* observer);

/* Writes the calling thread's last message, cut to len bytes with its end, and returns its whole
 * length without the end; 0 if there is none.  buf may be null. */
TRACEA_EXPORT size_t tracea_get_last_error(char* buf, size_t len);
TRACEA_EXPORT void tracea_clear_error(void);

/* TRACEA_ABI_VERSION of the library, and the instruction set that its kernels run on here. */
TRACEA_EXPORT uint32_t tracea_version(void);
TRACEA_EXPORT const char* tracea_isa(void);
/* device_id of the memory that kernels work on: TRACEA_CPU, or the GPU that TRACEA_CUDA_DEVICE names
 * (0 by default).  Libraries for GPUs take tensors on any of them. */
TRACEA_EXPORT int32_t tracea_device(void);

/* Dense views. */
static inline TraceaTensorView tracea_dense(void* ptr, int32_t dtype, int32_t rank,
                                            const int64_t* shape) {
  TraceaTensorView view;
  int64_t stride = 1;
  int32_t i;
  view.ptr = ptr, view.rank = rank, view.dtype = dtype, view.device_id = TRACEA_CPU;
  for (i = 0; i < TRACEA_MAX_RANK; ++i) view.shape[i] = 1, view.stride[i] = 0;
  for (i = rank < TRACEA_MAX_RANK ? rank : TRACEA_MAX_RANK; i-- > 0;) {
    view.shape[i] = shape[i], view.stride[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  return view;
}
static inline TraceaTensorView tracea_matrix(float* ptr, int64_t rows, int64_t columns) {
  int64_t shape[2];
  shape[0] = rows, shape[1] = columns;
  return tracea_dense(ptr, TRACEA_F32, 2, shape);
}

#ifdef __cplusplus
}
#endif
#endif
