// The calls of a loop, once for each of its turns: one turn after another with every thread at
// each call, or, where no turn needs another, a thread for each turn.  What lies between the calls
// of such a turn then stays in that thread's own memory, and no thread waits for others between two
// calls.
#pragma once
#include "runtime/host_loops.h"
#include "runtime/slots.h"

namespace tracea {

constexpr int64_t kLeastRows = 64;  // of a turn that threads share: products of fewer rows are slow

// Turns that run apart, of `step` rows each.
struct Turns {
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

// ViewCache the temps that belong to one turn alone, one behind the other; the bytes they take.
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

inline int64_t bytes_of_turn(const Program& program, int32_t loop, const Memory* buffers) {
  const Memory* temps = buffers + program.input_count + program.output_count;
  int64_t total = 0;
  for (int32_t i = 0; i < program.temp_count; ++i)
    if (program.temps[i].loop == loop &&
        __builtin_add_overflow(total, aligned_bytes(program.temps[i], temps[i]), &total))
      return -1;
  return total;
}

// The first error of any turn is the run's.
inline void hand_over(Turns& turns, Run& own) {
  if (__atomic_exchange_n(&turns.failed, true, __ATOMIC_ACQ_REL)) {
    if (own.status) ort::ReleaseStatus(own.host.api, own.status);
    return;
  }
  turns.run->error = own.error;
  turns.run->status = own.status;
}

inline void turn_task(void* usr, size_t index) {
  Turns& turns = *static_cast<Turns*>(usr);
  if (__atomic_load_n(&turns.failed, __ATOMIC_RELAXED)) return;
  const Program& program = *turns.program;
  const Loop& loop = program.loops[turns.loop];
  const size_t symbols = static_cast<size_t>(program.all_values()) * sizeof(int64_t);
  const size_t buffers = static_cast<size_t>(program.input_count + program.output_count +
                                             program.temp_count) * sizeof(Memory);
  int64_t* now = static_cast<int64_t*>(__builtin_alloca(symbols));
  Memory* memory = static_cast<Memory*>(__builtin_alloca(buffers));
  memcpy(now, turns.symbols, symbols);
  memcpy(memory, turns.buffers, buffers);
  int64_t* row = &now[program.symbol_count + 2 * turns.loop];
  row[0] = static_cast<int64_t>(index) * turns.step;
  row[1] = min(row[0] + turns.step, turns.extent);
  Host host = turns.run->host;
  host.processors = 1;
  Run own(host, turns.run->context);
  own.alone = true;
  const int slot = claim_slot(turns.slots);
  place_own(program, turns.loop, memory_of(turns.slots, slot), memory);
  bool ok = true;
  for (int32_t call = loop.first; ok && call <= loop.last; ++call)
    ok = run_call(own, program, call, now, memory);
  release_slot(turns.slots, slot);
  if (!ok) hand_over(turns, own);
}

// Rows of a turn: no more than planned, and so many turns that all threads end together; 0 where
// too few threads would have one.
inline int64_t rows_apart(const Loop& loop, int64_t extent, int64_t processors) {
  const int64_t rounds = ceil_div(ceil_div(extent, loop.step), processors);
  const int64_t even = ceil_div(ceil_div(extent, rounds * processors), 16) * 16;
  const int64_t step = min(loop.step, max(even, kLeastRows));
  return 4 * ceil_div(extent, step) >= 3 * processors ? step : 0;
}

template <class Each>
bool run_in_turn(const Loop& loop, int64_t extent, int64_t* row, Each each) {
  for (row[0] = 0; row[0] < extent; row[0] += loop.step) {
    row[1] = min(row[0] + loop.step, extent);
    for (int32_t call = loop.first; call <= loop.last; ++call)
      if (!each(call)) return false;
  }
  return true;
}

// Every turn of a loop; `each(index)` runs one call.  Calls that are timed run one after another.
template <class Each>
bool run_loop(Run& run, const Program& program, int32_t index, int64_t* symbols, Memory* buffers,
              Each each) {
  const Loop& loop = program.loops[index];
  int64_t extent, *row = &symbols[program.symbol_count + 2 * index];
  if (!evaluate(loop.extent, symbols, &extent) || extent > INT64_MAX / 2 - loop.step)
    return run.error.fail("The rows of loop %d cannot be counted.", index);
  if (extent <= 0) return true;
  if (!loop.apart) return run_in_turn(loop, extent, row, each);
  Turns turns = {&run, &program, symbols, buffers, index, extent, 0, {}, false};
  Scratch scratch(run);
  const int64_t bytes = bytes_of_turn(program, index, buffers);
  if (run.host.trace == kNoTrace) turns.step = rows_apart(loop, extent, run.host.processors);
  const int64_t tasks = turns.step ? ceil_div(extent, turns.step) : 1;
  if (bytes < 0 || !make_slots(run, scratch, tasks, max(bytes, 1), &turns.slots)) return false;
  if (tasks > 1) return run.parallel(tasks, turn_task, &turns) && !turns.failed;
  place_own(program, index, memory_of(turns.slots, 0), buffers);
  return run_in_turn(loop, extent, row, each);
}

}  // namespace tracea
