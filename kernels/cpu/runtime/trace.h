// What each kernel call of a program takes, for TRACEA_PROFILE=FILE: a line for every run of a node,
//
//     node's name <tab> values of the program's symbols <tab> nanoseconds of each call, all iterations
//     <tab> when the run began, in nanoseconds of the monotonic clock, its thread, and the bytes of its arena
//
// numbers between commas; for tracea_observe the numbers themselves; for TRACEA_NVTX ranges around each
// call (runtime/nvtx.h); and for TRACEA_TIMELINE=FILE, a line for every run
//
//     node's name <tab> values of the program's symbols <tab> when the run began and ended
//     <tab> call, thread, begin and end of each task, in nanoseconds since the run began
//
// Off, each costs a run one comparison.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include "runtime/executor.h"
#include "runtime/nvtx.h"
#include "runtime/tracea.h"

#if defined(_WIN32)  // the C library there would end lines in two characters
#define O_CLOEXEC (O_NOINHERIT | O_BINARY)
#endif

namespace tracea {

constexpr size_t kMaxLabel = 512, kMaxNumber = 21;  // bytes of a name, of a number and its comma

// The file that an environment variable asks for, or kNoTrace.
inline int open_trace(const char* variable, Error& error) {
  const char* path = getenv(variable);
  if (!path || !*path) return kNoTrace;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) error.fail("%s names %.300s, which cannot be written.", variable, path);
  return file;
}

inline void close_trace(int file) {
  if (file != kNoTrace) close(file);
}

inline char* put_numbers(char* at, const int64_t* numbers, int32_t count, char end) {
  for (int32_t i = 0; i < count; ++i)
    at += snprintf(at, kMaxNumber + 1, i ? ",%lld" : "%lld", static_cast<long long>(numbers[i]));
  *at++ = end;
  return at;
}

inline const TraceaObserver* observer = nullptr;

// Whether anybody wants to know of a run.
inline bool observed(const Run& run) {
  return run.host.trace != kNoTrace || run.host.nvtx || __atomic_load_n(&observer, __ATOMIC_ACQUIRE);
}

// Appends the line to the file; several runs may do so at once.
inline bool write_line(Run& run, const Program& program, const TraceaNodeRun& made) {
  const size_t numbers = made.symbol_count + made.call_count;
  char* line = static_cast<char*>(malloc(kMaxLabel + (numbers + 4) * (kMaxNumber + 1)));
  if (!line) return run.error.fail("There is no memory for a profile.");
  char* at = line + snprintf(line, kMaxLabel, "%.*s\t", static_cast<int>(kMaxLabel - 2), made.node);
  const int64_t when[] = {made.start_ns, made.thread, made.arena_bytes};
  at = put_numbers(at, made.symbols, program.symbol_count, '\t');
  at = put_numbers(at, made.call_ns, program.call_count, '\t');
  at = put_numbers(at, when, 3, '\n');
  const size_t size = static_cast<size_t>(at - line);
  const bool ok = write(run.host.trace, line, size) == static_cast<ssize_t>(size);
  free(line);
  return ok || run.error.fail("The profile cannot be written.");
}

// Runs all calls, each timed, and tells who asked for it.
inline bool run_traced(Run& run, const Program& program, int64_t* symbols, Memory* buffers) {
  run.timed = true, run.links = false;
  int64_t* taken = static_cast<int64_t*>(calloc(static_cast<size_t>(program.call_count) + 1, sizeof(int64_t)));
  if (!taken) return run.error.fail("There is no memory for a profile.");
  const Nvtx* nvtx = run.host.nvtx;
  const int64_t start = nanoseconds();
  if (nvtx) nvtx->push(run.host.label);
  bool ok = execute(run, program, symbols, buffers, [&](int32_t i) {
    const int64_t begin = nanoseconds();
    if (nvtx) nvtx->push(kPhases[program.calls[i].opcode - 1]);
    const bool done = run_call(run, program, i, symbols, buffers);
    if (nvtx) nvtx->pop();
    taken[i] += nanoseconds() - begin;
    return done;
  });
  if (nvtx) nvtx->pop();
  const TraceaNodeRun made = {
      sizeof(TraceaNodeRun), run.host.label, symbols, taken, static_cast<size_t>(program.symbol_count),
      static_cast<size_t>(program.call_count), start, this_thread(), run.arena_bytes};
  if (ok && run.host.trace != kNoTrace) ok = write_line(run, program, made);
  const TraceaObserver* asked = __atomic_load_n(&observer, __ATOMIC_ACQUIRE);
  if (ok && asked && asked->run) asked->run(asked->user, &made);
  free(taken);
  return ok;
}

// Runs all calls, each task timed, and appends the line.
inline bool run_timed(Run& run, const Program& program, int64_t* symbols, Memory* buffers) {
  Timeline timeline = {};
  run.timeline = &timeline;
  const int64_t began = nanoseconds();
  bool ok = execute(run, program, symbols, buffers, [&](int32_t i) {
    timeline.call = i;
    return run_call(run, program, i, symbols, buffers);
  });
  run.timeline = nullptr;
  const int64_t when[] = {began, nanoseconds()};
  const size_t numbers = static_cast<size_t>(4 * timeline.count + program.symbol_count) + 4;
  char* line = ok ? static_cast<char*>(malloc(kMaxLabel + numbers * (kMaxNumber + 1))) : nullptr;
  if (ok && !line) ok = run.error.fail("There is no memory for a timeline.");
  if (ok) {
    char* at = line + snprintf(line, kMaxLabel, "%.*s\t", static_cast<int>(kMaxLabel - 2),
                               run.host.label);
    at = put_numbers(at, symbols, program.symbol_count, '\t');
    at = put_numbers(at, when, 2, '\t');
    int64_t left = timeline.count;
    timeline.for_each([&](const TaskTime& task) {
      const int64_t of_task[] = {task.call, task.thread, task.begin - began, task.end - began};
      at = put_numbers(at, of_task, 4, --left ? ',' : '\n');
    });
    if (!timeline.count) *at++ = '\n';
    const size_t size = static_cast<size_t>(at - line);
    if (write(run.host.timeline, line, size) != static_cast<ssize_t>(size))
      ok = run.error.fail("The timeline cannot be written.");
  }
  timeline.release();
  free(line);
  return ok;
}

}  // namespace tracea
