// A node: a decoded program, and what one call of it does.
#pragma once
#include "runtime/repeat.h"

namespace tracea {

struct Node {
  const char* type;  // the op type's name, for messages
  Host host;
  Program program;
  char label[kMaxLabel];  // the node's own name, when calls are timed
  ThreadRegistry registry;              // written while it runs, whatever else is constant
  ViewCache* view_cache[2];             // as well, each once
};

// Everything one call keeps on its stack besides the shapes.
struct Frame {
  int64_t* dims;  // [inputs][kMaxRank]
  int64_t* symbols;  // and the steps behind them
  Memory* buffers;  // inputs, outputs, temps
};

inline bool mismatch(Run& run, int32_t input, int32_t axis, int64_t actual, int64_t wanted) {
  return run.error.fail("Input %d has size %lld at axis %d, but must have %lld there.", input,
                        static_cast<long long>(actual), axis, static_cast<long long>(wanted));
}

// Where a tensor lies.  One without elements has no memory in ONNX Runtime, but a view without an
// address is one that is absent.
inline char* address_of(void* data) {
  alignas(kAlign) static char nothing[kAlign];
  return data ? static_cast<char*>(data) : nothing;
}

// Where the inputs lie that are constant: nobody need ask for them in every run.
inline void find_constants(const Host& host, const OrtKernelInfo* info, const Program& program,
                           Memory* known) {
  for (int32_t i = 0; i < program.input_count; ++i) {
    Outcome outcome(host.api, host.dims_by_reference);
    bool found;
    ConstantInput input;
    if (!find_constant(outcome, info, program, i, &found, &input) && outcome.status)
      ort::ReleaseStatus(host.api, outcome.status);
    if (found) known[i] = {static_cast<char*>(input.data), input.count};
  }
}

inline bool bind_inputs(Run& run, const Program& program, Frame& frame, Repeats& repeats) {
  const OrtApi* api = run.host.api;
  for (int32_t i = 0; i < program.input_count; ++i) {
    if (run.host.constants[i].data) {
      frame.buffers[i] = run.host.constants[i];
      continue;
    }
    const OrtValue* value = nullptr;
    void* data = nullptr;
    if (!run.good(ort::KernelContext_GetInput(api, run.context, static_cast<size_t>(i), &value)))
      return false;
    if (!value) return run.error.fail("Input %d is missing.", i);
    int64_t* dims = frame.dims + i * kMaxRank;
    const int32_t rank = program.tensors[i].rank;
    if (!read_dims(run, value, i, rank, dims) ||
        !run.good(ort::GetTensorMutableData(api, const_cast<OrtValue*>(value), &data)))
      return false;
    int64_t count = 1;
    for (int32_t axis = 0; axis < rank; ++axis) count *= dims[axis];
    frame.buffers[i] = {address_of(data), count};
  }
  for (int32_t s = 0; s < program.symbol_count; ++s)
    frame.symbols[s] = symbol_value(program, frame.dims, s,
                                    [&](int32_t i) { return run.host.constants[i].data != nullptr; });
  compute(program.steps, program.step_count, program.all_symbols(), frame.symbols);
  for (int32_t i = 0; i < program.input_count; ++i) {
    if (run.host.constants[i].data) continue;
    const Tensor& tensor = program.tensors[i];
    const int64_t* actual = frame.dims + i * kMaxRank;
    int64_t wanted[kMaxRank];
    bool repeats_it = false;
    for (int32_t axis = 0; axis < tensor.rank; ++axis) {
      if (!evaluate(tensor.dims[axis], frame.symbols, &wanted[axis]))
        return run.error.fail("The size of input %d at axis %d cannot be computed.", i, axis);
      if (wanted[axis] == actual[axis]) continue;
      if (actual[axis] != 1 || !(tensor.loose >> axis & 1))
        return mismatch(run, i, axis, actual[axis], wanted[axis]);
      repeats_it = true;
    }
    if (repeats_it && !repeat(run, tensor, actual, wanted, repeats, &frame.buffers[i]))
      return false;
  }
  return true;
}

inline bool bind_outputs(Run& run, const Program& program, Frame& frame) {
  const OrtApi* api = run.host.api;
  for (int32_t i = 0; i < program.output_count; ++i) {
    const Tensor& tensor = program.tensors[program.input_count + i];
    int64_t dims[kMaxRank], count = element_size(tensor.type);
    for (int32_t axis = 0; axis < tensor.rank; ++axis)
      if (!evaluate(tensor.dims[axis], frame.symbols, &dims[axis]) || dims[axis] < 0 ||
          __builtin_mul_overflow(count, dims[axis], &count))
        return run.error.fail("The size of output %d at axis %d cannot be computed.", i, axis);
    OrtValue* value = nullptr;
    void* data = nullptr;
    if (!run.good(ort::KernelContext_GetOutput(api, run.context, static_cast<size_t>(i),
                                               static_cast<const int64_t*>(dims),
                                               static_cast<size_t>(tensor.rank), &value)))
      return false;
    if (!value) return run.error.fail("Output %d is missing.", i);
    if (!run.good(ort::GetTensorMutableData(api, value, &data))) return false;
    frame.buffers[program.input_count + i] = {address_of(data), count / element_size(tensor.type)};
  }
  return true;
}

// Lays out the temps in `small`, where they fit it, or in the arena.
inline bool bind_temps(Run& run, const Program& program, Frame& frame, Scratch& arena,
                       char* small) {
  int64_t sizes[kMaxTemps], found[kMaxTemps], bytes = 0;
  Memory* temps = frame.buffers + program.input_count + program.output_count;
  ViewCache** cache = &run.host.view_cache[run.links];
  run.view_cache = cached_views(cache, program, frame.symbols);
  for (int32_t i = 0; !run.view_cache && i < program.temp_count; ++i) {
    int64_t *count = &temps[i].count, *size = &sizes[i];
    if (!evaluate(program.temps[i].count, frame.symbols, count) || *count < 0 ||
        __builtin_mul_overflow(*count, element_size(program.temps[i].type), size) ||
        *size > INT64_MAX / 4)
      return run.error.fail("The size of temp %d cannot be computed.", i);
    *size = program.temps[i].loop < 0 ? ceil_div(*size, kAlign) * kAlign : 0;
  }
  bytes = run.view_cache ? run.view_cache->bytes : lay_out(program, sizes, found, run.links);
  run.arena_bytes = bytes;
  const int64_t* offsets = run.view_cache ? run.view_cache->offsets : found;
  char* memory = program.temp_count == 0 || (bytes >= 0 && bytes <= kSmallArena) ? small
                                                                                 : arena.take(bytes);
  for (int32_t i = 0; memory && i < program.temp_count; ++i) {
    temps[i].data = memory + offsets[i];
    if (run.view_cache) temps[i].count = run.view_cache->counts[i];
  }
  if (!memory || keeps(cache)) return memory != nullptr;
  if (ViewCache* made = fill_view_cache(run, program, frame.symbols, frame.buffers, found, bytes))
    keep(cache, made);
  return true;
}

inline bool run_program(Run& run, const Program& program) {
  const size_t buffers =
      static_cast<size_t>(program.input_count + program.output_count + program.temp_count);
  // At most 45 KiB: the counts were checked when the plan was decoded.
  Frame frame = {
      static_cast<int64_t*>(__builtin_alloca(static_cast<size_t>(program.input_count) * kMaxRank *
                                             sizeof(int64_t))),
      static_cast<int64_t*>(
          __builtin_alloca(static_cast<size_t>(program.all_values() + 1) * sizeof(int64_t))),
      static_cast<Memory*>(__builtin_alloca(buffers * sizeof(Memory)))};
  Scratch arena(run);
  Repeats repeats;
  run.links = links_calls(run);
  alignas(kAlign) char small[kSmallArena];
  if (!bind_inputs(run, program, frame, repeats) || !bind_outputs(run, program, frame) ||
      !bind_temps(run, program, frame, arena, small))
    return false;
  if (run.host.debug.timeout) run.deadline = nanoseconds() + run.host.debug.timeout;
  if (run.host.debug.guard) return run_guarded(run, program, frame.symbols, frame.buffers);
  if (observed(run))
    return run_traced(run, program, frame.symbols, frame.buffers);
  if (run.host.timeline != kNoTrace)
    return run_timed(run, program, frame.symbols, frame.buffers);
  return execute(run, program, frame.symbols, frame.buffers, [&](int32_t i) {
    return run_call(run, program, i, frame.symbols, frame.buffers);
  });
}

}  // namespace tracea
