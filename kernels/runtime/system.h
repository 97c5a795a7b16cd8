// What operating systems do each in its own way, for Linux, macOS and Windows.
#pragma once
#include <stdlib.h>
#include <unistd.h>

#include "runtime/core.h"

#if defined(_WIN32)
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <malloc.h>
#include <windows.h>
#undef near
#undef far
#undef small
#elif defined(__linux__)
#include <sched.h>
#endif

namespace tracea {

// Processors of this machine.
inline int32_t processors() {
#if defined(_WIN32)
  return static_cast<int32_t>(GetActiveProcessorCount(ALL_PROCESSOR_GROUPS));
#else
  return static_cast<int32_t>(sysconf(_SC_NPROCESSORS_ONLN));
#endif
}

// Those of them that this process may use.
inline int32_t usable_processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  return static_cast<int32_t>(max(1, processors()));
}

// Memory that begins on a cache line, for free_lines(); null if there is none.
inline void* allocate_lines(size_t bytes) {
#if defined(_WIN32)
  return _aligned_malloc(bytes, 64);
#else
  void* memory = nullptr;
  return posix_memalign(&memory, 64, bytes) ? nullptr : memory;
#endif
}
inline void free_lines(void* memory) {
#if defined(_WIN32)
  _aligned_free(memory);
#else
  free(memory);
#endif
}

}  // namespace tracea
