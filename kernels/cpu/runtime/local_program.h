// Runs plans without ONNX Runtime.  Decoded programs stay for calls of equal sizes: each is taken
// out while it runs, so threads never share one.
#pragma once
#include "runtime/c_checks.h"
#include "runtime/isa.h"
#include "runtime/local_host.h"
#include "runtime/node.h"
#include "runtime/validate.h"

namespace tracea {

struct LocalProgram {
  uint64_t hash;
  int64_t count;
  int64_t* words;
  Program program;
  Memory* constants;  // none: all null
  ThreadRegistry registry;
  ViewCache* view_cache[2];

  static void destroy(LocalProgram* p) {
    if (!p) return;
    for (ViewCache* cache : p->view_cache) release(cache);
    p->program.pool.release();
    free(p->words);
    free(p);
  }
};

struct LocalState {
  const tracea_isa_table* isa;
  int trace = kNoTrace, timeline = kNoTrace;
  const Nvtx* nvtx = nullptr;
  DebugOptions debug;
  ProcessorTopology topology;
  bool locked, tried;
  Error error;
};
inline LocalState local_state;

// The level that runs; null, with the reason, if there is none.
inline const tracea_isa_table* local_isa(Failure& failure) {
  LocalState& state = local_state;
  if (!__atomic_load_n(&state.tried, __ATOMIC_ACQUIRE)) {
    while (__atomic_test_and_set(&state.locked, __ATOMIC_ACQUIRE)) sched_yield();
    if (!state.tried) {
      const tracea_isa_table* isa = nullptr;
      if (check_tables(state.error)) isa = choose_isa(tracea_library_table, state.error);
      if (isa && read_debug(&state.debug, state.error) && find_topology(&state.topology, state.error)) {
        state.trace = open_trace("TRACEA_PROFILE", state.error);
        state.timeline = open_trace("TRACEA_TIMELINE", state.error);
      }
      if (isa && !state.error.set) state.nvtx = find_nvtx(state.error);
      fill_local_api();
      if (!state.error.set) state.isa = isa;
      __atomic_store_n(&state.tried, true, __ATOMIC_RELEASE);
    }
    __atomic_clear(&state.locked, __ATOMIC_RELEASE);
  }
  if (!state.isa) failure.refuse(TRACEA_UNSUPPORTED_CONFIG, "%s", state.error.text);
  return state.isa;
}

constexpr int32_t kKeptPrograms = 64;
inline LocalProgram* kept_programs[kKeptPrograms];

inline uint64_t hash_of(const int64_t* words, int64_t count) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t i = 0; i < count; ++i) {
    hash = (hash ^ static_cast<uint64_t>(words[i])) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

inline LocalProgram* decode_local(const int64_t* words, int64_t count, uint64_t hash,
                                  Failure& failure) {
  LocalProgram* made = static_cast<LocalProgram*>(calloc(1, sizeof(LocalProgram)));
  const size_t bytes = static_cast<size_t>(count) * sizeof *words;
  if (made) made->words = static_cast<int64_t*>(malloc(bytes + sizeof *words));
  if (!made || !made->words) {
    failure.refuse(TRACEA_CPU_ERROR, "There is no memory for a plan.");
    return LocalProgram::destroy(made), nullptr;
  }
  memcpy(made->words, words, bytes);
  made->hash = hash, made->count = count;
  Error error;
  if (Reader(made->words, count, &made->program, &error).program())
    made->constants = made->program.pool.array<Memory>(made->program.input_count);
  if (made->constants) return made;
  failure.refuse(TRACEA_INVALID_PARAMS, "%s", error.set ? error.text : "There is no memory.");
  return LocalProgram::destroy(made), nullptr;
}

// A decoded program of these words, which nobody else has.
inline LocalProgram* take_program(const int64_t* words, int64_t count, Failure& failure) {
  const uint64_t hash = hash_of(words, count);
  LocalProgram* known = __atomic_exchange_n(&kept_programs[hash % kKeptPrograms],
                                            static_cast<LocalProgram*>(nullptr), __ATOMIC_ACQ_REL);
  if (known && known->hash == hash && known->count == count &&
      !memcmp(known->words, words, static_cast<size_t>(count) * sizeof *words))
    return known;
  LocalProgram::destroy(known);
  return decode_local(words, count, hash, failure);
}

inline void give_program(LocalProgram* program) {
  LocalProgram** place = &kept_programs[program->hash % kKeptPrograms];
  LocalProgram::destroy(__atomic_exchange_n(place, program, __ATOMIC_ACQ_REL));
}

inline void drop_programs() {
  for (LocalProgram*& place : kept_programs)
    LocalProgram::destroy(
        __atomic_exchange_n(&place, static_cast<LocalProgram*>(nullptr), __ATOMIC_ACQ_REL));
}

// Whether the program takes these tensors.
inline bool takes(const Program& p, const LocalValue* inputs, size_t input_count,
                  const LocalValue* outputs, size_t output_count, Failure& failure) {
  if (input_count != static_cast<size_t>(p.input_count) ||
      output_count != static_cast<size_t>(p.output_count))
    return failure.refuse(TRACEA_INVALID_PARAMS,
                          "The program has %d inputs and %d outputs, not %zu and %zu.",
                          p.input_count, p.output_count, input_count, output_count);
  for (int32_t i = 0; i < p.input_count + p.output_count; ++i) {
    const bool in = i < p.input_count;
    const LocalValue& value = in ? inputs[i] : outputs[i - p.input_count];
    if (value.type != p.tensors[i].type || value.rank != p.tensors[i].rank)
      return failure.refuse(TRACEA_INVALID_PARAMS,
                            "%s %d has type %d and rank %d, but must have type %d and rank %d.",
                            in ? "Input" : "Output", in ? i : i - p.input_count, value.type,
                            value.rank, p.tensors[i].type, p.tensors[i].rank);
  }
  return true;
}

// Runs a plan on tensors; `label` names it in profiles.
inline bool run_words(const int64_t* words, int64_t count, LocalValue* inputs, size_t input_count,
                      LocalValue* outputs, size_t output_count, const char* label,
                      Failure& failure) {
  const tracea_isa_table* isa = local_isa(failure);
  if (!isa) return false;
  LocalProgram* own = take_program(words, count, failure);
  if (!own) return false;
  const Program& program = own->program;
  bool ok = takes(program, inputs, input_count, outputs, output_count, failure);
  for (int32_t i = 0; ok && i < program.call_count; ++i) {
    const int32_t opcode = program.calls[i].opcode;
    const auto held = kHeld[opcode - 1];
    if (held && !held(*isa))
      ok = failure.refuse(TRACEA_UNSUPPORTED_CONFIG, "This library holds no kernel for %s.",
                          kCalls[opcode - 1].name);
  }
  if (ok) {
    LocalContext context = {inputs, outputs, {}};
    const Host host = {local_api(), nullptr, isa, local_threads.threads(), true, true, local_state.trace,
                       local_state.timeline, local_state.nvtx, local_state.debug, label, &own->registry,
                       own->view_cache, own->constants, &local_state.topology};
    Run run(host, reinterpret_cast<OrtKernelContext*>(&context));
    ok = run_program(run, program);
    if (context.error.set) failure.refuse(TRACEA_INVALID_PARAMS, "%s", context.error.text);
    else if (run.error.set) failure.refuse(TRACEA_CPU_ERROR, "%s", run.error.text);
    ok = ok && !failure.set;
  }
  give_program(own);
  return ok;
}

}  // namespace tracea
