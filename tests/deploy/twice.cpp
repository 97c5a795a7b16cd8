// A custom-op library that is not of this tool: `custom.Twice` doubles a float tensor.
#include "ort_abi.h"

namespace {

struct Node {
  const OrtApi* api;
};

OrtStatus* create(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo*, void** node) {
  *node = new Node{api};
  return nullptr;
}

OrtStatus* compute(void* node, OrtKernelContext* context) {
  const OrtApi* api = static_cast<Node*>(node)->api;
  const OrtValue* x;
  OrtValue* y;
  OrtTensorTypeAndShapeInfo* shape;
  size_t rank, total = 1;
  int64_t dims[8];
  void *from, *to;
  ort::KernelContext_GetInput(api, context, size_t{0}, &x);
  ort::GetTensorTypeAndShape(api, x, &shape);
  ort::GetDimensionsCount(api, shape, &rank);
  ort::GetDimensions(api, shape, dims, rank);
  ort::ReleaseTensorTypeAndShapeInfo(api, shape);
  ort::KernelContext_GetOutput(api, context, size_t{0}, dims, rank, &y);
  ort::GetTensorMutableData(api, const_cast<OrtValue*>(x), &from);
  ort::GetTensorMutableData(api, y, &to);
  for (size_t i = 0; i < rank; ++i) total *= dims[i];
  for (size_t i = 0; i < total; ++i)
    static_cast<float*>(to)[i] = 2 * static_cast<const float*>(from)[i];
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  static OrtCustomOp twice = {};
  twice.version = 17;
  twice.GetName = [](const OrtCustomOp*) { return "Twice"; };
  twice.GetExecutionProviderType = [](const OrtCustomOp*) { return static_cast<const char*>(nullptr); };
  twice.GetInputType = [](const OrtCustomOp*, size_t) { return ORT_F32; };
  twice.GetOutputType = [](const OrtCustomOp*, size_t) { return ORT_F32; };
  twice.GetInputTypeCount = twice.GetOutputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  twice.GetInputCharacteristic = twice.GetOutputCharacteristic =
      [](const OrtCustomOp*, size_t) { return kOrtRequired; };
  twice.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kOrtMemDefault; };
  twice.CreateKernelV2 = create;
  twice.KernelComputeV2 = compute;
  twice.KernelDestroy = [](void* node) { delete static_cast<Node*>(node); };
  twice.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  twice.GetEndVersion = [](const OrtCustomOp*) { return 1 << 20; };
  const OrtApi* api = base->GetApi(17);
  OrtCustomOpDomain* domain;
  ort::CreateCustomOpDomain(api, "custom", &domain);
  ort::CustomOpDomain_Add(api, domain, static_cast<const OrtCustomOp*>(&twice));
  return ort::AddCustomOpDomain(api, options, domain);
}
