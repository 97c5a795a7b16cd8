// The subset of the CUDA driver API used here, declared without cuda.h: types, constants, and
// functions loaded by versioned name from libcuda, which is opened on first use.
#pragma once
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

namespace tracea {
namespace cu {

typedef int Result;
typedef int Device;
typedef uint64_t Address;
typedef struct ContextOfDriver* Context;
typedef struct ModuleOfDriver* Module;
typedef struct FunctionOfDriver* Function;
typedef struct StreamOfDriver* Stream;
typedef struct EventOfDriver* Event;
typedef struct GraphOfDriver* Graph;
typedef struct NodeOfDriver* Node;
typedef struct ExecOfDriver* Exec;

constexpr Result kOutOfMemory = 2;
// Errors that make every later driver call of the process fail: a faulting kernel or broken hardware.
inline bool is_final(Result result) {
  return result == 4 || result == 214 || result == 700 || result == 702 ||
         (result >= 714 && result <= 719) || result == 999;
}
enum { kMultiprocessors = 16, kMajor = 75, kMinor = 76 };  // CUdevice_attribute
enum { kMaxDynamicShared = 8, kPreferredCarveout = 9 };    // CUfunction_attribute
enum { kHost = 1, kDevice = 2 };                           // CUmemorytype
enum { kNonBlocking = 1, kPortable = 1, kUntimed = 2 };  // flags: a stream, host memory, an event

struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  Stream stream;
  void* attributes;
  unsigned attribute_count;
};
struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS_v2
  Function function;
  unsigned grid[3], block[3], shared;
  void** parameters;
  void** extra;
  void* kernel;
  Context context;
};
struct alignas(128) TensorMap {  // CUtensorMap
  uint64_t words[16];
};
enum { kMapU8 = 0, kMapF16 = 6, kMapF32 = 7, kMapBF16 = 9, kMapTf32 = 11 };   // CUtensorMapDataType
enum { kSwizzle64 = 2, kSwizzle128 = 3, kPromote256 = 3 };  // CUtensorMapSwizzle, CUtensorMapL2promotion
struct EdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
struct Copy3D {  // CUDA_MEMCPY3D
  size_t from_x, from_y, from_z, from_lod;
  int from_type;
  const void* from_host;
  Address from_device;
  void* from_array;
  void* reserved0;
  size_t from_pitch, from_height;
  size_t to_x, to_y, to_z, to_lod;
  int to_type;
  void* to_host;
  Address to_device;
  void* to_array;
  void* reserved1;
  size_t to_pitch, to_height;
  size_t width, height, depth;
};

#define TRACEA_CUDA(X)                                                                          \
  X(init, "cuInit", (unsigned))                                                                 \
  X(driver_version, "cuDriverGetVersion", (int*))                                               \
  X(error_name, "cuGetErrorName", (Result, const char**))                                       \
  X(error_text, "cuGetErrorString", (Result, const char**))                                     \
  X(device_count, "cuDeviceGetCount", (int*))                                                   \
  X(device, "cuDeviceGet", (Device*, int))                                                      \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, Device))                              \
  X(retain_context, "cuDevicePrimaryCtxRetain", (Context*, Device))                             \
  X(use_context, "cuCtxSetCurrent", (Context))                                                  \
  X(current_context, "cuCtxGetCurrent", (Context*))                                             \
  X(load_module, "cuModuleLoadData", (Module*, const void*))                                    \
  X(function, "cuModuleGetFunction", (Function*, Module, const char*))                          \
  X(set_function, "cuFuncSetAttribute", (Function, int, int))                                   \
  X(allocate, "cuMemAlloc_v2", (Address*, size_t))                                              \
  X(free_device, "cuMemFree_v2", (Address))                                                     \
  X(allocate_async, "cuMemAllocAsync", (Address*, size_t, Stream))                              \
  X(free_async, "cuMemFreeAsync", (Address, Stream))                                            \
  X(allocate_host, "cuMemHostAlloc", (void**, size_t, unsigned))                                \
  X(free_host, "cuMemFreeHost", (void*))                                                        \
  X(upload, "cuMemcpyHtoD_v2", (Address, const void*, size_t))                                  \
  X(upload_async, "cuMemcpyHtoDAsync_v2", (Address, const void*, size_t, Stream))               \
  X(download_async, "cuMemcpyDtoHAsync_v2", (void*, Address, size_t, Stream))                   \
  X(move_async, "cuMemcpyDtoDAsync_v2", (Address, Address, size_t, Stream))                    \
  X(capture_status, "cuStreamIsCapturing", (Stream, int*))                                      \
  X(create_stream, "cuStreamCreate", (Stream*, unsigned))                                       \
  X(destroy_stream, "cuStreamDestroy_v2", (Stream))                                             \
  X(wait_for_stream, "cuStreamSynchronize", (Stream))                                           \
  X(write_value, "cuStreamWriteValue32_v2", (Stream, Address, uint32_t, unsigned))               \
  X(create_event, "cuEventCreate", (Event*, unsigned))                                          \
  X(destroy_event, "cuEventDestroy_v2", (Event))                                                \
  X(record_event, "cuEventRecord", (Event, Stream))                                             \
  X(wait_for_event, "cuEventSynchronize", (Event))                                              \
  X(launch, "cuLaunchKernelEx", (const LaunchConfig*, Function, void**, void**))                \
  X(encode_map, "cuTensorMapEncodeTiled",                                                       \
    (TensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,       \
     const uint32_t*, int, int, int, int))                                                      \
  X(encode_pixels, "cuTensorMapEncodeIm2col",                                                   \
    (TensorMap*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const int*, const int*, \
     uint32_t, uint32_t, const uint32_t*, int, int, int, int))                                  \
  X(create_graph, "cuGraphCreate", (Graph*, unsigned))                                          \
  X(add_kernel, "cuGraphAddKernelNode_v2",                                                      \
    (Node*, Graph, const Node*, size_t, const KernelNode*))                                     \
  X(add_copy, "cuGraphAddMemcpyNode",                                                           \
    (Node*, Graph, const Node*, size_t, const Copy3D*, Context))                                \
  X(add_edges, "cuGraphAddDependencies_v2",                                                     \
    (Graph, const Node*, const Node*, const EdgeData*, size_t))                                 \
  X(instantiate, "cuGraphInstantiateWithFlags", (Exec*, Graph, unsigned long long))             \
  X(update_kernel, "cuGraphExecKernelNodeSetParams_v2", (Exec, Node, const KernelNode*))        \
  X(upload_graph, "cuGraphUpload", (Exec, Stream))                                              \
  X(launch_graph, "cuGraphLaunch", (Exec, Stream))                                              \
  X(destroy_exec, "cuGraphExecDestroy", (Exec))                                                 \
  X(destroy_graph, "cuGraphDestroy", (Graph))

struct Driver {
#define X(name, symbol, parameters) Result(*name) parameters;
  TRACEA_CUDA(X)
#undef X

  // Opens libcuda; returns null, or the name of the missing library or symbol.
  const char* open() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return "libcuda.so.1";
#define X(name, symbol, parameters)                                           \
  name = reinterpret_cast<Result(*) parameters>(dlsym(library, symbol));      \
  if (!name) return symbol;
    TRACEA_CUDA(X)
#undef X
    return nullptr;
  }
};

}  // namespace cu
}  // namespace tracea
