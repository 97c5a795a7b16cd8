// Op types as ONNX Runtime sees them: described, registered in one domain, their plans read.
// A backend's runtime.cpp says how a node is created, computed and destroyed.
#pragma once
#include <sched.h>

#include "runtime/ort_abi.h"
#include "runtime/core.h"
#include "runtime/op_type.h"
#include "runtime/plan.h"  // the backend's: Program and Reader

// What ONNX Runtime calls; another name where a library holds several runtimes.
#ifndef TRACEA_ENTRY
#define TRACEA_ENTRY RegisterCustomOps
#endif

namespace tracea {

constexpr uint32_t kApiVersion = 17;  // the first with thread pool and shape inference

struct CustomOp : OrtCustomOp {
  const tracea_op_type* type;
  const char* provider;  // null: the CPU's
};

// What the nodes of every type run under an execution provider.
struct KernelFunctions {
  OrtStatus* (*create)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** out);
  OrtStatus* (*compute)(void* kernel, OrtKernelContext*);
  void (*destroy)(void* kernel);
  OrtStatus* (*infer)(const OrtCustomOp*, OrtShapeInferContext*);
  const char* provider;  // null: the CPU's
};

inline const tracea_op_type& type_of(const OrtCustomOp* op) {
  return *static_cast<const CustomOp*>(op)->type;
}

// A status with the error's sentence; `about` is an op type or the library's domain.
inline OrtStatus* status_of(const OrtApi* api, const Error& error, const char* about,
                            OrtCode code) {
  char text[sizeof error.text + 128];
  snprintf(text, sizeof text, "%.100s: %s", about, error.text);
  return ort::CreateStatus(api, code, static_cast<const char*>(text));
}

inline void describe(CustomOp* op, const tracea_op_type* type, const KernelFunctions& functions) {
  op->type = type;
  op->provider = functions.provider;
  op->version = kApiVersion;
  op->GetName = [](const OrtCustomOp* o) { return type_of(o).name; };
  op->GetExecutionProviderType = [](const OrtCustomOp* o) -> const char* {
    return static_cast<const CustomOp*>(o)->provider;
  };
  op->GetInputType = [](const OrtCustomOp* o, size_t i) {
    return static_cast<OrtElement>(type_of(o).elements[i]);
  };
  op->GetInputTypeCount = [](const OrtCustomOp* o) -> size_t {
    return static_cast<size_t>(type_of(o).inputs);
  };
  op->GetOutputType = [](const OrtCustomOp* o, size_t i) {
    const tracea_op_type& t = type_of(o);
    return static_cast<OrtElement>(t.elements[static_cast<size_t>(t.inputs) + i]);
  };
  op->GetOutputTypeCount = [](const OrtCustomOp* o) -> size_t {
    return static_cast<size_t>(type_of(o).outputs);
  };
  op->GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return kOrtRequired; };
  op->GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return kOrtRequired; };
  op->GetInputMemoryType = [](const OrtCustomOp*, size_t) { return kOrtMemDefault; };
  op->KernelDestroy = functions.destroy;
  op->CreateKernelV2 = functions.create;
  op->KernelComputeV2 = functions.compute;
  op->InferOutputShapeFn = functions.infer;
  op->GetStartVersion = [](const OrtCustomOp*) { return 1; };
}

// The words of a node's plan.
struct PlanAttribute {
  int64_t* words = nullptr;
  size_t count = 0;

  ~PlanAttribute() { free(words); }

  // ONNX Runtime's status, or null; with `error` set if there are too many words.
  OrtStatus* read(const OrtApi* api, const OrtKernelInfo* info, Error& error) {
    OrtStatus* status = ort::KernelInfoGetAttributeArray_int64(
        api, info, "plan", static_cast<int64_t*>(nullptr), &count);
    if (status) return status;
    if (count <= static_cast<size_t>(kMaxWords))
      words = static_cast<int64_t*>(malloc((count + 1) * sizeof *words));
    if (!words) return error.fail("There is no memory for a plan of %zu words.", count), nullptr;
    return ort::KernelInfoGetAttributeArray_int64(api, info, "plan", words, &count);
  }
};

// Decodes a plan, whose inputs and outputs must be those of the node's type.
inline bool decode(const tracea_op_type& type, const PlanAttribute& plan, Program* program,
                   Error& error) {
  if (!Reader(plan.words, static_cast<int64_t>(plan.count), program, &error).program())
    return false;
  bool same = type.inputs == program->input_count && type.outputs == program->output_count;
  for (int32_t i = 0; same && i < type.inputs + type.outputs; ++i)
    same = type.elements[i] == program->tensors[i].type;
  return same || error.fail("The plan's inputs and outputs are not those of its op type.");
}

// The library's one domain.  ONNX Runtime keeps pointers into it and does not own them.
struct Registration {
  OrtCode failure;  // the code of statuses with this library's own errors
  const OrtApi* api;
  CustomOp* ops;
  OrtCustomOpDomain* domain;
  bool ready, locked;

  // ONNX Runtime's status, or null; with `error` set if there is no memory.  Each type gets a
  // kernel for each of `providers` providers.
  OrtStatus* create(const OrtApi* with, const char* name, const tracea_op_type* types,
                    int32_t type_count, const KernelFunctions* functions, int32_t providers,
                    Error& error) {
    const size_t count = static_cast<size_t>(type_count) * static_cast<size_t>(providers);
    api = with;
    ops = static_cast<CustomOp*>(calloc(count + 1, sizeof *ops));
    if (!ops) return error.fail("There is no memory for the op types."), nullptr;
    OrtStatus* status = ort::CreateCustomOpDomain(api, name, &domain);
    for (size_t i = 0; !status && i < count; ++i) {
      const size_t provider = i % static_cast<size_t>(providers);
      describe(&ops[i], &types[i / static_cast<size_t>(providers)], functions[provider]);
      status = ort::CustomOpDomain_Add(api, domain, &ops[i]);
    }
    ready = !status;
    if (status) release();
    return status;
  }

  // Once nothing that could use the domain is left: the runtime holds the library open for as long
  // as session options or a session does.
  void release() {
    if (domain) ort::ReleaseCustomOpDomain(api, domain);
    free(ops);
    domain = nullptr, ops = nullptr, ready = false;
  }
};

// What RegisterCustomOps does.  `prepare(api, version, error)` creates the domain, the first time;
// it may leave it out, and then nothing is registered.  `name()` says whose errors these are.
template <class Prepare, class Name>
OrtStatus* register_custom_ops(Registration& known, OrtSessionOptions* options,
                               const OrtApiBase* base, Prepare prepare, Name name) {
  Error error;
  const OrtApi* api = base->GetApi(kApiVersion);
  if (!api) {
    error.fail("This library needs ONNX Runtime 1.%u or later, this is %.20s.", kApiVersion,
               base->GetVersionString());
    return status_of(base->GetApi(1), error, name(), known.failure);
  }
  while (__atomic_test_and_set(&known.locked, __ATOMIC_ACQUIRE)) sched_yield();
  OrtStatus* status = nullptr;
  if (!known.ready) status = prepare(api, base->GetVersionString(), error);
  else if (known.api != api)
    error.fail("Another copy of ONNX Runtime in this process uses this library.");
  const bool ready = known.ready;
  __atomic_clear(&known.locked, __ATOMIC_RELEASE);
  if (error.set) return status_of(api, error, name(), known.failure);
  return status || !ready ? status : ort::AddCustomOpDomain(api, options, known.domain);
}

}  // namespace tracea
