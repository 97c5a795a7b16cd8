// What each kernel call of a program takes, for TRACEA_PROFILE=FILE: a line for every run of a node,
//
//     node's name <tab> values of the program's symbols <tab> nanoseconds of each call, all iterations
//     <tab> when the run began, in nanoseconds of the monotonic clock, and its thread
//
// numbers between commas.  Off, it costs a run one comparison.
#pragma once
#include <fcntl.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include "runtime/executor.h"

#if defined(_WIN32)  // the C library there would end lines in two characters
#define O_CLOEXEC (O_NOINHERIT | O_BINARY)
#endif

namespace tracea {

constexpr size_t kMaxLabel = 512, kMaxNumber = 21;  // bytes of a name, of a number and its comma

// The file the environment asks for, or kNoTrace.
inline int open_trace(Error& error) {
  const char* path = getenv("TRACEA_PROFILE");
  if (!path || !*path) return kNoTrace;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) error.fail("TRACEA_PROFILE names %.300s, which cannot be written.", path);
  return file;
}

// The system's number of the thread.
inline int64_t this_thread() {
#ifdef SYS_gettid
  return syscall(SYS_gettid);
#else
  return 0;
#endif
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

}  // namespace tracea
