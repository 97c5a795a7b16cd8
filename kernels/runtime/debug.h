// What TRACEA_BARRIERS, TRACEA_DEBUG, TRACEA_PROCESSORS and TRACEA_TIMEOUT ask of every run.
#pragma once
#include <time.h>

#include "runtime/core.h"

namespace tracea {

struct DebugOptions {
  bool guard;       // runtime/guard.h
  int64_t timeout;  // nanoseconds of a run, 0: any
  int32_t processors;  // among which work is divided, 0: those that are usable
  bool barriers;       // calls are not linked (cpu/runtime/linker.h)
};

constexpr int64_t kMostProcessors = 4096;

inline int64_t nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

// False, with the reason, for values that mean nothing.
inline bool read_debug(DebugOptions* out, Error& error) {
  *out = {};
  const char* mode = getenv("TRACEA_DEBUG");
  if (mode && *mode) {
    if (strcmp(mode, "guard")) return error.fail("TRACEA_DEBUG is '%.40s', but must be guard.", mode);
    out->guard = true;
  }
  const char* barriers = getenv("TRACEA_BARRIERS");
  if (barriers && *barriers) {
    if (strcmp(barriers, "1"))
      return error.fail("TRACEA_BARRIERS is '%.40s', but must be 1.", barriers);
    out->barriers = true;
  }
  const char* count = getenv("TRACEA_PROCESSORS");
  if (count && *count) {
    int64_t number = 0;
    for (const char* digit = count; number >= 0 && *digit; ++digit)
      number = *digit >= '0' && *digit <= '9' ? min(number * 10 + (*digit - '0'), kMostProcessors + 1) : -1;
    if (number < 1 || number > kMostProcessors)
      return error.fail("TRACEA_PROCESSORS is '%.40s', but must be a number from 1 to %d.", count,
                        static_cast<int>(kMostProcessors));
    out->processors = static_cast<int32_t>(number);
  }
  const char* limit = getenv("TRACEA_TIMEOUT");
  if (!limit || !*limit) return true;
  constexpr double kMost = 1e9;
  char* end = nullptr;
  const double seconds = strtod(limit, &end);
  if (*end || !(seconds > 0 && seconds <= kMost))
    return error.fail("TRACEA_TIMEOUT is '%.40s', but must be a number of seconds above 0.", limit);
  out->timeout = static_cast<int64_t>(seconds * 1e9);
  return true;
}

// Tasks that are left out once the deadline has passed.
struct WatchedTasks {
  void (*task)(void*, size_t);
  void* job;
  int64_t deadline;
};

inline void watched_task(void* usr, size_t index) {
  const WatchedTasks& all = *static_cast<const WatchedTasks*>(usr);
  if (nanoseconds() <= all.deadline) all.task(all.job, index);
}

}  // namespace tracea
