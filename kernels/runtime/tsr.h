/* A small runtime over libraries of kernels, in the manner of driver interfaces: contexts, modules,
 * kernels, streams, memory, launches.  C99.
 *
 *   TsrContext* context;  TsrModule* module;  TsrKernel* gemm;  TsrStream* stream;
 *   tsrCreateContext(TSR_ABI_VERSION, TRACEA_CPU, &context);
 *   tsrLoadModule(context, "lib/libtracea_kernels.so", &module);
 *   tsrGetKernel(module, "gemm", &gemm);
 *   tsrCreateStream(context, &stream);
 *   tsrLaunch(gemm, stream, arguments, 4, NULL);
 *   tsrSynchronize(stream);
 *
 * A module is any library with tracea.h: a stand-alone one, or that of a model, for the context's
 * device.  Objects of a context
 * are destroyed before it; several threads may use one context, and each stream one thread at a time.
 */
#ifndef TSR_H
#define TSR_H

#include "tracea.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library serves programs of an equal major and an equal or lower minor version. */
#define TSR_ABI_MAJOR 1
#define TSR_ABI_MINOR 1 /* 1: GPUs, tsrStreamHandle */
#define TSR_ABI_VERSION ((TSR_ABI_MAJOR << 16) | TSR_ABI_MINOR)

typedef struct TsrContext TsrContext;
typedef struct TsrModule TsrModule;
typedef struct TsrKernel TsrKernel;
typedef struct TsrStream TsrStream;

/* device: TRACEA_CPU, or the number of a GPU, if the library was built for GPUs.  Fails with
 * TRACEA_UNSUPPORTED_CONFIG for another version than this library's, and for a device that it has no
 * backend for or that is not there. */
TRACEA_EXPORT TraceaStatus tsrCreateContext(uint32_t abi_version, int32_t device, TsrContext** out);
TRACEA_EXPORT TraceaStatus tsrDestroyContext(TsrContext* context);

TRACEA_EXPORT TraceaStatus tsrLoadModule(TsrContext* context, const char* path, TsrModule** out);
TRACEA_EXPORT TraceaStatus tsrUnloadModule(TsrModule* module);
/* The instruction set that the module's kernels run on here. */
TRACEA_EXPORT const char* tsrModuleIsa(const TsrModule* module);

/* name: gemm (a, b, bias, c), conv2d (x, w, bias, y), attention (q, k, v, mask, y), norm (x, gamma,
 * beta, y), or program (inputs, then outputs).  Kernels live as long as their module. */
TRACEA_EXPORT TraceaStatus tsrGetKernel(TsrModule* module, const char* name, TsrKernel** out);

/* Launches and copies of a stream run in order.  On a GPU they are not awaited: synchronize before the
 * host reads what was copied, or changes what is being copied. */
TRACEA_EXPORT TraceaStatus tsrCreateStream(TsrContext* context, TsrStream** out);
TRACEA_EXPORT TraceaStatus tsrSynchronize(TsrStream* stream);
TRACEA_EXPORT TraceaStatus tsrDestroyStream(TsrStream* stream);
/* The CUstream of a stream on a GPU; null on the CPU. */
TRACEA_EXPORT void* tsrStreamHandle(const TsrStream* stream);

/* Memory of the context's device, aligned for its vectors, and copies between it and the host. */
TRACEA_EXPORT TraceaStatus tsrAlloc(TsrContext* context, size_t bytes, void** out);
TRACEA_EXPORT TraceaStatus tsrFree(TsrContext* context, void* memory);
TRACEA_EXPORT TraceaStatus tsrCopyToDevice(TsrStream* stream, void* to, const void* from, size_t bytes);
TRACEA_EXPORT TraceaStatus tsrCopyToHost(TsrStream* stream, void* to, const void* from, size_t bytes);

/* The params of a "program" launch: a node's plan, and how many of the arguments are inputs. */
typedef struct TsrProgram {
  uint32_t struct_size;
  const int64_t* plan;
  size_t words;
  size_t inputs;
} TsrProgram;

/* An argument that is left out is an all-zero view.  params: the structure of tracea.h for the kernel
 * (TraceaGemmParams ...), TsrProgram, or null for the defaults. */
TRACEA_EXPORT TraceaStatus tsrLaunch(TsrKernel* kernel, TsrStream* stream,
                                     const TraceaTensorView* arguments, size_t count,
                                     const void* params);

/* As tracea_get_last_error: the calling thread's last message. */
TRACEA_EXPORT size_t tsrGetLastError(char* buf, size_t len);

#ifdef __cplusplus
}
#endif
#endif
