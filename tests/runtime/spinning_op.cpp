// A custom op without inputs whose output is 1 if its session's threads may spin, else 0.
#include <stdlib.h>

#include "runtime/custom_ops.h"
#include "runtime/session_config.h"

namespace {

using namespace tracea;

Registration registration;
SessionConfig config;
const int32_t elements[] = {ORT_I64};
const tracea_op_type type = {"MaySpin", 0, 1, elements};

OrtStatus* create(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** out) {
  *out = new int64_t(may_spin(api, info, config));
  return nullptr;
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) {
  OrtValue* value = nullptr;
  void* data = nullptr;
  const int64_t dims[] = {1};
  OrtStatus* status = ort::KernelContext_GetOutput(registration.api, context, size_t{0}, dims,
                                                   size_t{1}, &value);
  if (!status) status = ort::GetTensorMutableData(registration.api, value, &data);
  if (!status) *static_cast<int64_t*>(data) = *static_cast<int64_t*>(kernel);
  return status;
}

OrtStatus* prepare(const OrtApi* api, const char* version, Error& error) {
  config.by_node = tells_config(version);
  const KernelFunctions functions = {
      create, compute, [](void* kernel) { delete static_cast<int64_t*>(kernel); },
      [](const OrtCustomOp*, OrtShapeInferContext*) -> OrtStatus* { return nullptr; }, nullptr};
  return registration.create(api, "tests.spinning", &type, 1, &functions, 1, error);
}

}  // namespace

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  OrtStatus* status = register_custom_ops(registration, options, base, prepare, [] { return "tests"; });
  if (!status) note_spinning(registration.api, options, config);
  return status;
}
