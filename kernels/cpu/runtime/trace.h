// What each kernel call of a program takes, for TRACEA_PROFILE=FILE: a line for every run of a node,
//
//     node's name <tab> values of the program's symbols <tab> nanoseconds of each call, all iterations
//     <tab> when the run began, in nanoseconds of the monotonic clock, and its thread
//
// numbers between commas; and for TRACEA_TIMELINE=FILE, a line for every run
//
//     node's name <tab> values of the program's symbols <tab> when the run began and ended
//     <tab> call, thread, begin and end of each task, in nanoseconds since the run began
//
// Off, each costs a run one comparison.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include "runtime/executor.h"

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

// Runs all calls, each timed, and appends the line; several runs may do so at once.
inline bool run_traced(Run& run, const Program& program, int64_t* symbols,
                       Memory* buffers) {
  const size_t numbers = static_cast<size_t>(program.symbol_count + program.call_count);
  int64_t* taken = static_cast<int64_t*>(calloc(numbers + 1, sizeof(int64_t)));
  char* line = static_cast<char*>(malloc(kMaxLabel + (numbers + 3) * (kMaxNumber + 1)));
  bool ok = taken && line;
  if (!ok) run.error.fail("There is no memory for a profile.");
  const int64_t when[] = {nanoseconds(), this_thread()};
  ok = ok && execute(run, program, symbols, buffers, [&](int32_t i) {
    const int64_t start = nanoseconds();
    const bool done = run_call(run, program, i, symbols, buffers);
    taken[i] += nanoseconds() - start;
    return done;
  });
  if (ok) {
    char* at = line + snprintf(line, kMaxLabel, "%.*s\t", static_cast<int>(kMaxLabel - 2),
                               run.host.label);
    at = put_numbers(at, symbols, program.symbol_count, '\t');
    at = put_numbers(at, taken, program.call_count, '\t');
    at = put_numbers(at, when, 2, '\n');
    const size_t size = static_cast<size_t>(at - line);
    if (write(run.host.trace, line, size) != static_cast<ssize_t>(size))
      ok = run.error.fail("The profile cannot be written.");
  }
  free(taken);
  free(line);
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
    for (int64_t i = 0; i < timeline.count; ++i) {
      TaskTime& task = timeline.tasks[i];
      const int64_t of_task[] = {task.call, task.thread, task.begin - began, task.end - began};
      at = put_numbers(at, of_task, 4, i + 1 < timeline.count ? ',' : '\n');
    }
    if (!timeline.count) *at++ = '\n';
    const size_t size = static_cast<size_t>(at - line);
    if (write(run.host.timeline, line, size) != static_cast<ssize_t>(size))
      ok = run.error.fail("The timeline cannot be written.");
  }
  free(timeline.tasks);
  free(line);
  return ok;
}

}  // namespace tracea
