// The part of ONNX Runtime's C ABI this library uses, written from ABI facts: the table of
// functions is append-only, so a slot number names a function for good.  No ONNX Runtime header
// is needed.  64-bit targets only.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct OrtApi;  // an array of function pointers; see ORT_SLOT
struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtOpAttr;
struct OrtShapeInferContext;
struct OrtKeyValuePairs;

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // null when the runtime is older
  const char* (*GetVersionString)(void);
};

enum OrtCode : int { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };
enum OrtElement : int { ORT_F32 = 1, ORT_U8 = 2, ORT_I8 = 3, ORT_I16 = 5, ORT_I32 = 6, ORT_I64 = 7, ORT_BOOL = 9, ORT_F16 = 10, ORT_BF16 = 16 };
constexpr int kOrtRequired = 0;       // OrtCustomOpInputOutputCharacteristic
constexpr int kOrtMemDefault = 0;     // OrtMemType
constexpr int kOrtAllocatorArena = 1;  // OrtAllocatorType
constexpr int kOrtAttrInts = 2;       // OrtOpAttrType

// 26 pointer-sized words; members newer than `version` are not read.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);  // may return null: CPU
  OrtElement (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  OrtElement (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int**, int**);
  void (*ReleaseMayInplace)(int*, int*);
  size_t (*GetAliasMap)(int**, int**);
  void (*ReleaseAliasMap)(int*, int*);
};
static_assert(sizeof(void*) == 8, "64-bit targets only");
static_assert(offsetof(OrtCustomOp, CreateKernelV2) == 17 * 8, "layout");
static_assert(sizeof(OrtCustomOp) == 26 * 8, "layout");

namespace ort {

// `ort::Name(api, ...)` calls the function in slot `n` of the table, which is `ort::kName`.
#define ORT_SLOT(n, name, result, ...)                                               \
  constexpr size_t k##name = n;                                                       \
  template <class... Args>                                                           \
  inline result name(const OrtApi* api, Args... args) {                              \
    using Function = result (*)(__VA_ARGS__);                                        \
    return reinterpret_cast<Function>(reinterpret_cast<void* const*>(api)[n])(args...); \
  }

using S = OrtStatus*;  // null is success; whoever keeps a status releases it
ORT_SLOT(0, CreateStatus, S, int code, const char* message)
ORT_SLOT(93, ReleaseStatus, void, OrtStatus*)
ORT_SLOT(26, CreateCustomOpDomain, S, const char* domain, OrtCustomOpDomain**)
ORT_SLOT(27, CustomOpDomain_Add, S, OrtCustomOpDomain*, const OrtCustomOp*)
ORT_SLOT(28, AddCustomOpDomain, S, OrtSessionOptions*, OrtCustomOpDomain*)
ORT_SLOT(101, ReleaseCustomOpDomain, void, OrtCustomOpDomain*)
ORT_SLOT(163, KernelInfoGetAttributeArray_int64, S, const OrtKernelInfo*, const char* name,
         int64_t* out, size_t* count)
ORT_SLOT(244, KernelInfo_GetNodeName, S, const OrtKernelInfo*, char* out, size_t* size)
ORT_SLOT(237, HasSessionConfigEntry, S, const OrtSessionOptions*, const char* key, int* found)
ORT_SLOT(238, GetSessionConfigEntry, S, const OrtSessionOptions*, const char* key, char* out,
         size_t* size)
ORT_SLOT(391, KernelInfo_GetConfigEntries, S, const OrtKernelInfo*, OrtKeyValuePairs**)  // in tables
ORT_SLOT(297, GetKeyValue, const char*, const OrtKeyValuePairs*, const char* key)  // of version 24
ORT_SLOT(300, ReleaseKeyValuePairs, void, OrtKeyValuePairs*)                       // and later
ORT_SLOT(249, KernelInfoGetConstantInput_tensor, S, const OrtKernelInfo*, size_t, int* constant,
         const OrtValue**)  // borrowed; lies where it lies for as long as the session lives
ORT_SLOT(90, KernelContext_GetInput, S, const OrtKernelContext*, size_t, const OrtValue**)
ORT_SLOT(91, KernelContext_GetOutput, S, OrtKernelContext*, size_t, const int64_t* dims,
         size_t rank, OrtValue**)
ORT_SLOT(274, KernelContext_ParallelFor, S, const OrtKernelContext*,
         void (*task)(void* job, size_t index), size_t total, size_t batches, void* job)
ORT_SLOT(193, KernelContext_GetGPUComputeStream, S, const OrtKernelContext*, void**)
ORT_SLOT(253, KernelContext_GetAllocator, S, const OrtKernelContext*, const OrtMemoryInfo*,
         OrtAllocator**)
ORT_SLOT(278, KernelInfoGetAllocator, S, const OrtKernelInfo*, int memory,
         OrtAllocator**)  // in tables of version 18 and later
ORT_SLOT(77, AllocatorGetInfo, S, const OrtAllocator*, const OrtMemoryInfo**)
ORT_SLOT(72, MemoryInfoGetId, S, const OrtMemoryInfo*, int*)
ORT_SLOT(75, AllocatorAlloc, S, OrtAllocator*, size_t bytes, void**)
ORT_SLOT(76, AllocatorFree, S, OrtAllocator*, void*)
ORT_SLOT(132, ReleaseAllocator, void, OrtAllocator*)
ORT_SLOT(69, CreateCpuMemoryInfo, S, int allocator, int memory, OrtMemoryInfo**)
ORT_SLOT(94, ReleaseMemoryInfo, void, OrtMemoryInfo*)
ORT_SLOT(51, GetTensorMutableData, S, OrtValue*, void**)
ORT_SLOT(65, GetTensorTypeAndShape, S, const OrtValue*, OrtTensorTypeAndShapeInfo**)
ORT_SLOT(414, GetTensorElementTypeAndShapeDataReference, S, const OrtValue*, int* type,
         const int64_t** dims, size_t* rank)  // no allocation; in tables of version 30 and later
ORT_SLOT(61, GetDimensionsCount, S, const OrtTensorTypeAndShapeInfo*, size_t*)
ORT_SLOT(62, GetDimensions, S, const OrtTensorTypeAndShapeInfo*, int64_t*, size_t)
ORT_SLOT(57, CreateTensorTypeAndShapeInfo, S, OrtTensorTypeAndShapeInfo**)
ORT_SLOT(58, SetTensorElementType, S, OrtTensorTypeAndShapeInfo*, int)
ORT_SLOT(59, SetDimensions, S, OrtTensorTypeAndShapeInfo*, const int64_t*, size_t)
ORT_SLOT(271, SetSymbolicDimensions, S, OrtTensorTypeAndShapeInfo*, const char**, size_t)
ORT_SLOT(99, ReleaseTensorTypeAndShapeInfo, void, OrtTensorTypeAndShapeInfo*)
ORT_SLOT(267, ShapeInferContext_GetInputCount, S, const OrtShapeInferContext*, size_t*)
ORT_SLOT(268, ShapeInferContext_GetInputTypeShape, S, const OrtShapeInferContext*, size_t,
         OrtTensorTypeAndShapeInfo**)  // borrowed
ORT_SLOT(269, ShapeInferContext_GetAttribute, S, const OrtShapeInferContext*, const char*,
         const OrtOpAttr**)
ORT_SLOT(270, ShapeInferContext_SetOutputTypeShape, S, const OrtShapeInferContext*, size_t,
         const OrtTensorTypeAndShapeInfo*)
ORT_SLOT(272, ReadOpAttr, S, const OrtOpAttr*, int type, void* data, size_t bytes, size_t* out)
#undef ORT_SLOT
constexpr size_t kSlots = 415;  // of a table that holds all of these

}  // namespace ort
