// Runs the calls of a loop once per iteration: serially, with every thread at each call, or, where
// iterations are independent, one iteration per thread.  Values between the calls of a parallel
// iteration stay in that thread's own memory, and no thread waits for others between two calls.
#pragma once
#include "runtime/host_loops.h"
#include "runtime/slots.h"

namespace tracea {

constexpr int64_t kMinRows = 64;  // of a parallel iteration: products of fewer rows are slow

// A loop whose iterations of `step` rows run in parallel.
struct ParallelLoop {
  Run* run;
  const Program* program;
  const int64_t* symbols;
  const Memory* buffers;
  int32_t loop;
  int64_t extent, step;
  Slots slots;
  bool failed;
};

inline int64_t aligned_bytes(const Temp& temp, const Memory& memory) {
  return ceil_div(memory.count * element_size(temp.type), kAlign) * kAlign;
}

// Lays out the temps private to one iteration one after another; returns the bytes they take.
inline int64_t place_own(const Program& program, int32_t loop, char* memory, Memory* buffers) {
  Memory* temps = buffers + program.input_count + program.output_count;
  int64_t at = 0;
  for (int32_t i = 0; i < program.temp_count; ++i) {
    if (program.temps[i].loop != loop) continue;
    temps[i].data = memory + at;
    at += aligned_bytes(program.temps[i], temps[i]);
  }
  return at;
}

inline int64_t bytes_per_iteration(const Program& program, int32_t loop, const Memory* buffers) {
  const Memory* temps = buffers + program.input_count + program.output_count;
  int64_t total = 0;
  for (int32_t i = 0; i < program.temp_count; ++i)
    if (program.temps[i].loop == loop &&
        __builtin_add_overflow(total, aligned_bytes(program.temps[i], temps[i]), &total))
      return -1;
  return total;
}

// Keeps the first error of all iterations: the run reports it.
inline void report_error(ParallelLoop& job, Run& own) {
  if (__atomic_exchange_n(&job.failed, true, __ATOMIC_ACQ_REL)) {
    if (own.status) ort::ReleaseStatus(own.host.api, own.status);
    return;
  }
  job.run->error = own.error;
  job.run->status = own.status;
}

inline void iteration_task(void* usr, size_t index) {
  ParallelLoop& job = *static_cast<ParallelLoop*>(usr);
  if (__atomic_load_n(&job.failed, __ATOMIC_RELAXED)) return;
  const Program& program = *job.program;
  const Loop& loop = program.loops[job.loop];
  const size_t symbols = static_cast<size_t>(program.all_values()) * sizeof(int64_t);
  const size_t buffers = static_cast<size_t>(program.input_count + program.output_count +
                                             program.temp_count) * sizeof(Memory);
  int64_t* now = static_cast<int64_t*>(__builtin_alloca(symbols));
  Memory* memory = static_cast<Memory*>(__builtin_alloca(buffers));
  memcpy(now, job.symbols, symbols);
  memcpy(memory, job.buffers, buffers);
  int64_t* row = &now[program.symbol_count + 2 * job.loop];
  row[0] = static_cast<int64_t>(index) * job.step;
  row[1] = min(row[0] + job.step, job.extent);
  Host host = job.run->host;
  host.processors = 1;
  Run own(host, job.run->context);
  own.deadline = job.run->deadline;
  own.alone = true;
  const int slot = claim_slot(job.slots);
  place_own(program, job.loop, memory_of(job.slots, slot), memory);
  bool ok = true;
  for (int32_t call = loop.first; ok && call <= loop.last; ++call)
    ok = run_call(own, program, call, now, memory);
  release_slot(job.slots, slot);
  if (!ok) report_error(job, own);
}

// Rows per iteration: at most as planned, so that threads get equally many iterations; 0 if too few
// threads would get one.
inline int64_t rows_per_iteration(const Loop& loop, int64_t extent, int64_t processors) {
  const int64_t rounds = ceil_div(ceil_div(extent, loop.step), processors);
  const int64_t even = ceil_div(ceil_div(extent, rounds * processors), 16) * 16;
  const int64_t step = min(loop.step, max(even, kMinRows));
  return 4 * ceil_div(extent, step) >= 3 * processors ? step : 0;
}

template <class Each>
bool run_serially(const Loop& loop, int64_t extent, int64_t* row, Each each) {
  for (row[0] = 0; row[0] < extent; row[0] += loop.step) {
    row[1] = min(row[0] + loop.step, extent);
    for (int32_t call = loop.first; call <= loop.last; ++call)
      if (!each(call)) return false;
  }
  return true;
}

// Runs every iteration of a loop; `each(index)` runs one call.  Calls that are timed run one after another.
template <class Each>
bool run_loop(Run& run, const Program& program, int32_t index, int64_t* symbols, Memory* buffers,
              Each each) {
  const Loop& loop = program.loops[index];
  int64_t extent, *row = &symbols[program.symbol_count + 2 * index];
  if (!evaluate(loop.extent, symbols, &extent) || extent > INT64_MAX / 2 - loop.step)
    return run.error.fail("The rows of loop %d cannot be counted.", index);
  if (extent <= 0) return true;
  // guarded temps have memory of their own
  if (!loop.parallel || run.host.debug.guard) return run_serially(loop, extent, row, each);
  ParallelLoop job = {&run, &program, symbols, buffers, index, extent, 0, {}, false};
  Scratch scratch(run);
  const int64_t bytes = bytes_per_iteration(program, index, buffers);
  if (!run.timed) job.step = rows_per_iteration(loop, extent, run.host.processors);
  const int64_t tasks = job.step ? ceil_div(extent, job.step) : 1;
  if (bytes < 0 || !make_slots(run, scratch, tasks, max(bytes, 1), &job.slots)) return false;
  if (tasks > 1) return run.parallel(tasks, iteration_task, &job) && !job.failed;
  place_own(program, index, memory_of(job.slots, 0), buffers);
  return run_serially(loop, extent, row, each);
}

}  // namespace tracea
