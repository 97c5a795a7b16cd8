// The library's entry point: where there is a GPU to use, registers one domain with every op type
// of the generated table; else nothing, and the model's own function bodies run.
// No C++ standard library, no exceptions: a failure is a status with one sentence.
#include "runtime/infer.h"
#include "runtime/node.h"

namespace tracea {
namespace {

constexpr uint32_t kApiVersion = 17;  // the first with shape inference

struct Op : OrtCustomOp {
  const tracea_gpu_type* type;
};

// Everything registration sets, once while the library is loaded.
struct State {
  const OrtApi* api;
  Op* ops;
  OrtCustomOpDomain* domain;
  bool ready;
  Error refused;  // why there is no GPU to use
};
State state;
pthread_mutex_t registering = PTHREAD_MUTEX_INITIALIZER;

const tracea_gpu_type& type_of(const OrtCustomOp* op) { return *static_cast<const Op*>(op)->type; }

OrtStatus* status_of(const OrtApi* api, const Error& error, const char* type) {
  char text[sizeof error.text + 128];
  snprintf(text, sizeof text, "%.100s: %s", type, error.text);
  return ort::CreateStatus(api, ORT_FAIL, static_cast<const char*>(text));
}

bool matches(const tracea_gpu_type& type, const Program& p, Error& error) {
  bool same = type.inputs == p.input_count && type.outputs == p.output_count;
  for (int32_t i = 0; same && i < p.tensor_count(); ++i)
    same = type.elements[i] == p.tensors[i].type;
  return same || error.fail("The plan's inputs and outputs are not those of its op type.");
}

void destroy(void* kernel) {
  Node* node = static_cast<Node*>(kernel);
  if (!node) return;
  close_node(*node);
  free(node);
}

OrtStatus* create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                  void** out) {
  const tracea_gpu_type& type = type_of(op);
  Run run = {api};
  size_t count = 0;
  OrtStatus* status = ort::KernelInfoGetAttributeArray_int64(
      api, info, "plan", static_cast<int64_t*>(nullptr), &count);
  if (status) return status;
  int64_t* words = static_cast<int64_t*>(
      count <= static_cast<size_t>(kMaxWords) ? malloc((count + 1) * 8) : nullptr);
  Node* node = static_cast<Node*>(calloc(1, sizeof(Node)));
  if (!words || !node) {
    run.error.fail("There is no memory for a plan of %zu words.", count);
    free(words), free(node);
    return status_of(api, run.error, type.name);
  }
  node->type = type.name;
  node->api = api;
  pthread_mutex_init(&node->mutex, nullptr);
  const bool ok =
      run.good(ort::KernelInfoGetAttributeArray_int64(api, info, "plan", words, &count)) &&
      Reader(words, static_cast<int64_t>(count), &node->program, &run.error).program() &&
      matches(type, node->program, run.error) && open_node(run, *node, info, words, static_cast<int64_t>(count));
  free(words);
  if (ok) return *out = node, nullptr;
  destroy(node);
  return run.status ? run.status : status_of(api, run.error, type.name);
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) {
  Node& node = *static_cast<Node*>(kernel);
  Run run = {node.api};
  if (run_node(run, node, context)) return nullptr;
  return run.status ? run.status : status_of(node.api, run.error, node.type);
}

OrtStatus* infer(const OrtCustomOp*, OrtShapeInferContext* context) {
  Inference(state.api, context).run();
  return nullptr;
}

void describe(Op* op, const tracea_gpu_type* type) {
  op->type = type;
  op->version = kApiVersion;
  op->GetName = [](const OrtCustomOp* o) { return type_of(o).name; };
  op->GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op->GetInputType = [](const OrtCustomOp* o, size_t i) {
    return static_cast<OrtElement>(type_of(o).elements[i]);
  };
  op->GetInputTypeCount = [](const OrtCustomOp* o) -> size_t {
    return static_cast<size_t>(type_of(o).inputs);
  };
  op->GetOutputType = [](const OrtCustomOp* o, size_t i) {
    return static_cast<OrtElement>(type_of(o).elements[static_cast<size_t>(type_of(o).inputs) + i]);
  };
  op->GetOutputTypeCount = [](const OrtCustomOp* o) -> size_t {
    return static_cast<size_t>(type_of(o).outputs);
  };
  op->GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return kOrtRequired; };
  op->GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return kOrtRequired; };
  op->GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kOrtMemDefault; };
  op->KernelDestroy = destroy;
  op->CreateKernelV2 = create;
  op->KernelComputeV2 = compute;
  op->InferOutputShapeFn = infer;
  op->GetStartVersion = [](const OrtCustomOp*) { return 1; };
}

// The domain is created once: the runtime keeps the pointers and does not own them.
OrtStatus* prepare(const OrtApi* api, Error& error) {
  const tracea_gpu_library& table = tracea_gpu_table;
  const size_t types = static_cast<size_t>(table.type_count);
  Op* ops = static_cast<Op*>(calloc(types + 1, sizeof(Op)));
  if (!ops) return error.fail("There is no memory for the op types."), nullptr;
  OrtCustomOpDomain* domain = nullptr;
  OrtStatus* status = ort::CreateCustomOpDomain(api, table.domain, &domain);
  for (size_t i = 0; !status && i < types; ++i) {
    describe(&ops[i], &table.types[i]);
    status = ort::CustomOpDomain_Add(api, domain, &ops[i]);
  }
  if (status) {
    if (domain) ort::ReleaseCustomOpDomain(api, domain);
    free(ops);
    return status;
  }
  state.api = api, state.ops = ops, state.domain = domain, state.ready = true;
  return nullptr;
}

__attribute__((destructor)) void leave() {
  if (!state.ready) return;
  ort::ReleaseCustomOpDomain(state.api, state.domain);
  free(state.ops);
}

}  // namespace
}  // namespace tracea

// Why there is no GPU to use, as a sentence; null where there is one, or nobody asked yet.
extern "C" __attribute__((visibility("default"))) const char* tracea_gpu_refusal() {
  return tracea::state.refused.set ? tracea::state.refused.text : nullptr;
}

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace tracea;
  Error error;
  const OrtApi* api = base->GetApi(kApiVersion);
  const char* library = tracea_gpu_table.domain;
  if (!api) {
    error.fail("This library needs ONNX Runtime 1.%u or later, this is %.20s.", kApiVersion,
               base->GetVersionString());
    return status_of(base->GetApi(1), error, library);
  }
  Lock lock(registering);
  if (state.refused.set) return nullptr;
  OrtStatus* status = nullptr;
  if (!state.ready) {
    if (!find_device(state.refused)) return nullptr;
    status = prepare(api, error);
  } else if (state.api != api) {
    error.fail("Another copy of ONNX Runtime in this process uses this library.");
  }
  if (error.set) return status_of(api, error, library);
  return status ? status : ort::AddCustomOpDomain(api, options, state.domain);
}
