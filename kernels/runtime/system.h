// What operating systems do each in its own way, for Linux, macOS and Windows.
#pragma once
#include <sched.h>
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
#include <sys/syscall.h>
#include <time.h>

#include "runtime/quota.h"
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

// As many of them as this thread may use at a time: a container has a part of them, or of their time.
inline int32_t usable_processors() {
  int32_t count = processors();
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) count = CPU_COUNT(&set);
  count = static_cast<int32_t>(min(count, known_quota()));
#endif
  return static_cast<int32_t>(max(1, count));
}

// Whether threads can sleep until a word changes.
#if defined(__linux__)
constexpr bool kSleepsOnWords = true;
#else
constexpr bool kSleepsOnWords = false;
#endif

// Sleeps while *word == value, for so many nanoseconds at most; may return earlier.  Where the
// system has nothing of the kind, other threads get their turn.
inline void sleep_while(const uint32_t* word, uint32_t value, int64_t nanoseconds) {
#if defined(__linux__)
  constexpr int kWait = 128;  // FUTEX_WAIT_PRIVATE
  const timespec limit = {nanoseconds / 1000000000, nanoseconds % 1000000000};
  syscall(SYS_futex, word, kWait, value, &limit, nullptr, 0);
#else
  (void)word, (void)value, (void)nanoseconds;
  sched_yield();
#endif
}

// Wakes up to so many threads that sleep while *word has a value.
inline void wake(const uint32_t* word, int32_t threads) {
#if defined(__linux__)
  constexpr int kWake = 129;  // FUTEX_WAKE_PRIVATE
  syscall(SYS_futex, word, kWake, threads, nullptr, nullptr, 0);
#else
  (void)word, (void)threads;
#endif
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
