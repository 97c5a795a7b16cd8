// The library's entry point: registers one domain with every op type of the generated table.
// No C++ standard library, no exceptions: a failure is a status with one sentence.
#include <unistd.h>

#define TRACEA_BUILD
#include "runtime/c_api.h"
#include "runtime/custom_ops.h"
#include "runtime/isa.h"
#include "runtime/node.h"
#include "runtime/session_config.h"
#include "runtime/shape_inference.h"
#include "runtime/validate.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace tracea {
namespace {

// Everything registration sets, once while the library is loaded.
struct State {
  Registration registration;
  const tracea_isa_table* isa;
  bool dims_by_reference;
  SessionConfig config;
  int trace, timeline;
  const Nvtx* nvtx;
  DebugOptions debug;
  ProcessorTopology topology;
};
State state = {{ORT_INVALID_ARGUMENT, nullptr, nullptr, nullptr, false, false}, nullptr, false,
               {}, kNoTrace, kNoTrace, nullptr, {}, {}};

OrtStatus* status_of(const OrtApi* api, const Error& error, const char* type) {
  return status_of(api, error, type, state.registration.failure);
}

// Sessions compute the filters of Winograd's transform when they open.  What that took on the way
// is free by now, but lies between what is kept: only malloc can give it back.
void trim_after_transforms(const Program& program) {
  for (int32_t i = 0; i < program.call_count; ++i)
    if (is_winograd(program.calls[i].opcode)) {
#if defined(__GLIBC__)
      malloc_trim(0);
#endif
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
  for (ViewCache* cache : node->view_cache) release(cache);
  node->program.pool.release();
  free(node);
}

OrtStatus* create(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                  void** out) {
  const tracea_op_type& type = type_of(op);
  Error error;
  PlanAttribute plan;
  OrtStatus* status = plan.read(api, info, error);
  if (status) return status;
  Node* node = static_cast<Node*>(calloc(1, sizeof(Node)));
  if (!node) error.fail("There is no memory for a node.");
  OrtMemoryInfo* memory = nullptr;
  if (!error.set && !status)
    status = ort::CreateCpuMemoryInfo(api, kOrtAllocatorArena, kOrtMemDefault, &memory);
  if (!error.set && !status) {
    const int32_t given = state.debug.processors, processors = given ? given : usable_processors();
    node->type = type.name;
    node->host = {api, memory, state.isa, processors, state.dims_by_reference,
                  may_spin(api, info, state.config), state.trace,
                  state.timeline, state.nvtx, state.debug, node->label, &node->registry, node->view_cache,
                  nullptr, &state.topology};
    status = name_node(api, info, node->label);
    if (decode(type, plan, &node->program, error)) {
      Memory* known = node->program.pool.array<Memory>(node->program.input_count);
      if (known) find_constants(node->host, info, node->program, known);
      else error.fail("There is no memory for %d inputs.", node->program.input_count);
      node->host.constants = known;
    }
  }
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
  ShapeInference(state.registration.api, context, tracea_library_table.domain).run();
  return nullptr;
}

OrtStatus* prepare(const OrtApi* api, const char* version, Error& error) {
  const tracea_library& library = tracea_library_table;
  if (!check_tables(error)) return nullptr;
  state.isa = choose_isa(library, error);
  if (!state.isa) return nullptr;
  if (!read_debug(&state.debug, error) || !find_topology(&state.topology, error)) return nullptr;
  state.nvtx = find_nvtx(error);
  if (error.set) return nullptr;
  const int trace = open_trace("TRACEA_PROFILE", error);
  const int timeline = error.set ? kNoTrace : open_trace("TRACEA_TIMELINE", error);
  if (error.set) return nullptr;
  state.dims_by_reference = lends_dims(version);
  state.config.by_node = tells_config(version);
  const KernelFunctions kernels = {create, compute, destroy, infer, nullptr};
  OrtStatus* status = state.registration.create(api, library.domain, library.type, library.types,
                                                &kernels, 1, error);
  if (state.registration.ready) {
    state.trace = trace, state.timeline = timeline;
  } else {
    close_trace(trace), close_trace(timeline);
  }
  return status;
}

__attribute__((destructor)) void leave() {
  local_threads.stop();
  drop_programs();
  local_memory.trim();
  close_trace(local_state.trace), close_trace(local_state.timeline);
  if (!state.registration.ready) return;
  state.registration.release();
  close_trace(state.trace), close_trace(state.timeline);
}

}  // namespace
}  // namespace tracea

extern "C" TRACEA_EXPORT OrtStatus* TRACEA_ENTRY(
    OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace tracea;
  OrtStatus* status = register_custom_ops(state.registration, options, base, prepare, library_name);
  if (!status && state.registration.ready) note_spinning(state.registration.api, options, state.config);
  return status;
}
