// The library's entry point.  With a usable GPU it registers a domain with every op type of the
// generated table; otherwise it registers nothing and the model's function bodies run.  No C++
// standard library, no exceptions: a failure is a status with one sentence.
#define TRACEA_BUILD
#include "runtime/c_api.h"
#include "runtime/custom_ops.h"
#include "runtime/node.h"
#include "runtime/shape_inference.h"

namespace tracea {
namespace {

// State set by the first registration, for the lifetime of the library.
struct State {
  Registration registration;
  bool dims_by_reference, tells_device;
  Error refused;  // why no GPU is usable
};
State state = {{ORT_FAIL, nullptr, nullptr, nullptr, false, false}, false, false, {}};

OrtStatus* status_of(const OrtApi* api, const Error& error, const char* type) {
  return status_of(api, error, type, state.registration.failure);
}

void destroy(void* kernel) {
  Node* node = static_cast<Node*>(kernel);
  if (!node) return;
  close_node(*node);
  free(node);
}

// The device of the execution provider a node belongs to, if ONNX Runtime reports it.
bool device_of(Outcome& run, bool resident, const OrtKernelInfo* info, int32_t* ordinal) {
  if (!resident || !state.tells_device) return wanted_device(run.error, ordinal);
  OrtAllocator* allocator = nullptr;
  const OrtMemoryInfo* memory = nullptr;
  int number = 0;
  Outcome asking(run.api, false);
  const bool told =
      asking.good(ort::KernelInfoGetAllocator(run.api, info, kOrtMemDefault, &allocator)) &&
      asking.good(ort::AllocatorGetInfo(run.api, static_cast<const OrtAllocator*>(allocator),
                                        &memory)) &&
      asking.good(ort::MemoryInfoGetId(run.api, memory, &number));
  if (allocator) ort::ReleaseAllocator(run.api, allocator);
  if (asking.status) ort::ReleaseStatus(run.api, asking.status);
  return told ? (*ordinal = number, true) : wanted_device(run.error, ordinal);
}

OrtStatus* create_at(bool resident, const OrtCustomOp* op, const OrtApi* api,
                     const OrtKernelInfo* info, void** out) {
  const tracea_op_type& type = type_of(op);
  Outcome run(api, state.dims_by_reference);
  PlanAttribute plan;
  if (OrtStatus* status = plan.read(api, info, run.error)) return status;
  Node* node = static_cast<Node*>(calloc(1, sizeof(Node)));
  if (!node) run.error.fail("There is no memory for a node.");
  if (run.error.set) return free(node), status_of(api, run.error, type.name);
  node->type = type.name;
  node->api = api;
  node->dims_by_reference = state.dims_by_reference;
  node->shared.resident = resident;
  pthread_mutex_init(&node->mutex, nullptr);
  int32_t ordinal = 0;
  const bool ok = device_of(run, resident, info, &ordinal) &&
                  (node->shared.device = device_at(run.error, ordinal)) &&
                  decode(type, plan, &node->program, run.error) &&
                  open_node(run, *node, info, plan.words, static_cast<int64_t>(plan.count));
  if (ok) return *out = node, nullptr;
  destroy(node);
  return run.status ? run.status : status_of(api, run.error, type.name);
}

OrtStatus* create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                  void** out) {
  return create_at(false, op, api, info, out);
}

OrtStatus* create_on_device(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                            void** out) {
  return create_at(true, op, api, info, out);
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) {
  Node& node = *static_cast<Node*>(kernel);
  Outcome run(node.api, node.dims_by_reference);
  if (node.shared.resident ? run_on_device(run, node, context) : run_node(run, node, context))
    return nullptr;
  return run.status ? run.status : status_of(node.api, run.error, node.type);
}

OrtStatus* infer(const OrtCustomOp*, OrtShapeInferContext* context) {
  ShapeInference(state.registration.api, context, tracea_gpu_table.domain).run();
  return nullptr;
}

OrtStatus* prepare(const OrtApi* api, const char* version, Error& error) {
  if (state.refused.set || !find_device(state.refused)) return nullptr;
  const tracea_gpu_library& table = tracea_gpu_table;
  state.dims_by_reference = lends_dims(version);
  state.tells_device = minor_version(version) >= 18;
  // nodes of the CPU provider copy tensors between host and device; works in every wheel
  const KernelFunctions kernels[] = {
      {create, compute, destroy, infer, nullptr},
      {create_on_device, compute, destroy, infer, "CUDAExecutionProvider"}};
  return state.registration.create(api, table.domain, table.types, table.type_count,
                                   kernels, 2, error);
}

__attribute__((destructor)) void leave() {
  if (state.registration.ready) state.registration.release();
}

}  // namespace
}  // namespace tracea

// Why no GPU is usable, as a sentence; null if one is or before the first registration.
extern "C" __attribute__((visibility("default"))) const char* tracea_gpu_refusal() {
  return tracea::state.refused.set ? tracea::state.refused.text : nullptr;
}

extern "C" __attribute__((visibility("default"))) OrtStatus* TRACEA_ENTRY(
    OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace tracea;
  return register_custom_ops(state.registration, options, base, prepare,
                             [] { return tracea_gpu_table.domain; });
}
