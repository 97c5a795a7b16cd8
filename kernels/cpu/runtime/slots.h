// Scratch for running tasks: as many slots as tasks can run at once, each claimed by one of them.
#pragma once
#include <sched.h>

#include "runtime/run.h"

namespace tracea {

constexpr int64_t kMaxSlots = 64;

struct Slots {
  char* memory;
  int64_t bytes;  // of one slot
  uint64_t free;  // one bit each
};

// Slots for `tasks` tasks that need `bytes` each; false when there is no memory.
inline bool make_slots(Run& run, Scratch& scratch, int64_t tasks, int64_t bytes, Slots* slots) {
  const int64_t count = min(min(tasks, kMaxSlots), max(run.host.processors, 1));
  slots->bytes = ceil_div(bytes, kAlign) * kAlign;
  slots->free = count == kMaxSlots ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
  int64_t all;
  if (__builtin_mul_overflow(count, slots->bytes, &all)) all = -1;
  slots->memory = scratch.take(all);
  return slots->memory != nullptr;
}

inline int claim_slot(Slots& slots) {
  for (;;) {
    uint64_t seen = __atomic_load_n(&slots.free, __ATOMIC_RELAXED);
    while (seen) {
      const uint64_t lowest = seen & (~seen + 1);
      if (__atomic_compare_exchange_n(&slots.free, &seen, seen ^ lowest, true, __ATOMIC_ACQUIRE,
                                      __ATOMIC_RELAXED))
        return __builtin_ctzll(lowest);
    }
    sched_yield();  // more threads than processors
  }
}

inline void release_slot(Slots& slots, int slot) {
  __atomic_fetch_or(&slots.free, uint64_t{1} << slot, __ATOMIC_RELEASE);
}

inline char* memory_of(const Slots& slots, int slot) { return slots.memory + slot * slots.bytes; }

}  // namespace tracea
