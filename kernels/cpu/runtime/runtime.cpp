// The library's entry point: registers one domain with every op type of the generated table.
// No C++ standard library, no exceptions: a failure is a status with one sentence.
#include <sched.h>
#include <unistd.h>

#include "runtime/ort_abi.h"
#include "runtime/isa.h"
#include "runtime/node.h"
#include "runtime/shapes.h"
#include "runtime/validate.h"

extern "C" int malloc_trim(size_t) __attribute__((weak));  // glibc has it

namespace tracea {
namespace {

constexpr uint32_t kApiVersion = 17;      // the first with thread pool and shape inference
constexpr int kDimsByReferenceSince = 30;  // the first table known to hold that function

struct Op : OrtCustomOp {
  const tracea_op_type* type;
};

// Everything registration sets, once while the library is loaded; guarded by `locked` until it is
// `ready`.
struct State {
  const OrtApi* api;
  const tracea_isa_table* isa;
  Op* ops;
  OrtCustomOpDomain* domain;
  bool dims_by_reference, ready, locked;
  int trace;
};
State state;

const tracea_op_type& type_of(const OrtCustomOp* op) { return *static_cast<const Op*>(op)->type; }

OrtStatus* status_of(const OrtApi* api, const Error& error, const char* type) {
  char text[sizeof error.text + 128];
  snprintf(text, sizeof text, "%.100s: %s", type, error.text);
  return ort::CreateStatus(api, ORT_INVALID_ARGUMENT, static_cast<const char*>(text));
}

bool matches(const tracea_op_type& type, const Program& program, Error& error) {
  bool same = type.inputs == program.input_count && type.outputs == program.output_count;
  for (int32_t i = 0; same && i < type.inputs; ++i)
    same = type.input_type[i] == program.inputs[i].type;
  for (int32_t i = 0; same && i < type.outputs; ++i)
    same = type.output_type[i] == program.outputs[i].type;
  return same || error.fail("The plan's inputs and outputs are not those of its op type.");
}

bool decode(const tracea_op_type& type, const int64_t* words, size_t count, Node* node,
            Error& error) {
  return Reader(words, static_cast<int64_t>(count), &node->program, &error).program() &&
         matches(type, node->program, error);
}

// Sessions compute the filters of Winograd's transform when they open.  What that took on the way
// is free by now, but lies between what is kept: only malloc can give it back.
void trim_after_transforms(const Program& program) {
  for (int32_t i = 0; i < program.call_count; ++i)
    if (is_winograd(program.calls[i].opcode)) {
      if (malloc_trim) malloc_trim(0);
      return;
    }
}

// The node's name, fit for one line; "?" where it is too long.
OrtStatus* name_node(const OrtApi* api, const OrtKernelInfo* info, char* label) {
  size_t size = 0;
  OrtStatus* status = ort::KernelInfo_GetNodeName(api, info, static_cast<char*>(nullptr), &size);
  if (!status && size < kMaxLabel)
    status = ort::KernelInfo_GetNodeName(api, info, label, &size);
  else if (!status)
    strcpy(label, "?");
  for (char* c = label; *c; ++c)
    if (*c >= 0 && *c < ' ') *c = '?';
  return status;
}

void destroy(void* kernel) {
  Node* node = static_cast<Node*>(kernel);
  if (!node) return;
  if (node->host.memory)
    ort::ReleaseMemoryInfo(node->host.api, const_cast<OrtMemoryInfo*>(node->host.memory));
  release(node->view_cache);
  node->program.pool.release();
  free(node);
}

OrtStatus* create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                  void** out) {
  const tracea_op_type& type = type_of(op);
  Error error;
  size_t count = 0;
  OrtStatus* status = ort::KernelInfoGetAttributeArray_int64(
      api, info, "plan", static_cast<int64_t*>(nullptr), &count);
  if (status) return status;
  int64_t* words = static_cast<int64_t*>(count <= kMaxWords ? malloc((count + 1) * 8) : nullptr);
  Node* node = static_cast<Node*>(calloc(1, sizeof(Node)));
  OrtMemoryInfo* memory = nullptr;
  if (!words || !node) error.fail("There is no memory for a plan of %zu words.", count);
  if (!error.set)
    status = ort::KernelInfoGetAttributeArray_int64(api, info, "plan", words, &count);
  if (!error.set && !status)
    status = ort::CreateCpuMemoryInfo(api, kOrtAllocatorArena, kOrtMemDefault, &memory);
  if (!error.set && !status) {
    const int32_t processors = static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
    node->type = type.name;
    node->host = {api, memory, state.isa, processors, state.dims_by_reference, state.trace,
                  node->label, &node->registry, &node->view_cache, nullptr};
    if (state.trace != kNoTrace) status = name_node(api, info, node->label);
    if (decode(type, words, count, node, error)) {
      Memory* known = node->program.pool.array<Memory>(node->program.input_count);
      if (known) find_constants(node->host, info, node->program, known);
      else error.fail("There is no memory for %d inputs.", node->program.input_count);
      node->host.constants = known;
    }
  }
  free(words);
  if (!error.set && !status) {
    trim_after_transforms(node->program);
    return *out = node, nullptr;
  }
  destroy(node);
  return status ? status : status_of(api, error, type.name);
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) {
  const Node& node = *static_cast<const Node*>(kernel);
  Run run(node.host, context);
  run_program(run, node.program);
  if (run.error.set && !run.status) return status_of(node.host.api, run.error, node.type);
  return run.status;
}

OrtStatus* infer(const OrtCustomOp*, OrtShapeInferContext* context) {
  Inference(state.api, context, tracea_library_table.domain).run();
  return nullptr;
}

void describe(Op* op, const tracea_op_type* type) {
  op->type = type;
  op->version = kApiVersion;
  op->GetName = [](const OrtCustomOp* o) { return type_of(o).name; };
  op->GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op->GetInputType = [](const OrtCustomOp* o, size_t i) {
    return static_cast<OrtElement>(type_of(o).input_type[i]);
  };
  op->GetInputTypeCount = [](const OrtCustomOp* o) -> size_t {
    return static_cast<size_t>(type_of(o).inputs);
  };
  op->GetOutputType = [](const OrtCustomOp* o, size_t i) {
    return static_cast<OrtElement>(type_of(o).output_type[i]);
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

// 31 of "1.31.0"; 0 for anything else.
int minor_of(const char* version) {
  int minor = 0;
  if (strncmp(version, "1.", 2)) return 0;
  for (version += 2; *version >= '0' && *version <= '9' && minor < 1000; ++version)
    minor = minor * 10 + (*version - '0');
  return minor;
}

void release(const OrtApi* api, OrtCustomOpDomain* domain, Op* ops, int trace) {
  if (domain) ort::ReleaseCustomOpDomain(api, domain);
  free(ops);
  if (trace != kNoTrace) close(trace);
}

// The domain is created once: the runtime keeps the pointers and does not own them.
OrtStatus* prepare(const OrtApi* api, const char* version, Error& error) {
  const tracea_library& library = tracea_library_table;
  if (!check_tables(error)) return nullptr;
  const tracea_isa_table* isa = choose_isa(library, error);
  if (!isa) return nullptr;
  const int trace = open_trace(error);
  if (error.set) return nullptr;
  const size_t types = static_cast<size_t>(library.types);
  Op* ops = static_cast<Op*>(calloc(types + 1, sizeof(Op)));
  if (!ops) {
    release(api, nullptr, nullptr, trace);
    return error.fail("There is no memory for the op types."), nullptr;
  }
  OrtCustomOpDomain* domain = nullptr;
  OrtStatus* status = ort::CreateCustomOpDomain(api, library.domain, &domain);
  for (size_t i = 0; !status && i < types; ++i) {
    describe(&ops[i], &library.type[i]);
    status = ort::CustomOpDomain_Add(api, domain, &ops[i]);
  }
  if (status) {
    release(api, domain, ops, trace);
    return status;
  }
  state = {api, isa, ops, domain, minor_of(version) >= kDimsByReferenceSince, true, true,
           trace};
  return nullptr;
}

// The library is unloaded when nothing that could use the domain is left: the runtime holds it
// open for as long as session options or a session does.
__attribute__((destructor)) void leave() {
  if (state.ready) release(state.api, state.domain, state.ops, state.trace);
}

}  // namespace
}  // namespace tracea

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace tracea;
  Error error;
  const OrtApi* api = base->GetApi(kApiVersion);
  if (!api) {
    error.fail("This library needs ONNX Runtime 1.%u or later, this is %.20s.", kApiVersion,
               base->GetVersionString());
    return status_of(base->GetApi(1), error, library_name());
  }
  while (__atomic_test_and_set(&state.locked, __ATOMIC_ACQUIRE)) sched_yield();
  OrtStatus* status = nullptr;
  if (!state.ready) status = prepare(api, base->GetVersionString(), error);
  else if (state.api != api)
    error.fail("Another copy of ONNX Runtime in this process uses this library.");
  __atomic_clear(&state.locked, __ATOMIC_RELEASE);
  if (error.set) return status_of(api, error, library_name());
  return status ? status : ort::AddCustomOpDomain(api, options, state.domain);
}
