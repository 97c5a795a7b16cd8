// The threads of a session, as a node sees them.  The API does not tell their number, and the
// machine's processors are no substitute: dividing small work costs a session of one thread up to
// half its speed.  So a node registers the threads that take its tasks.
#pragma once
#include <pthread.h>

#include "runtime/core.h"

namespace tracea {

constexpr int32_t kMaxHelpers = 64;

struct ThreadRegistry {
  int32_t shared;  // in an earlier run, a call had work for several threads
  int32_t count;  // helpers beside whoever calls; those past kMaxHelpers are not kept
  pthread_t helper[kMaxHelpers];
};

inline int64_t threads_of(const ThreadRegistry& registry) {
  return 1 + min(__atomic_load_n(&registry.count, __ATOMIC_RELAXED), kMaxHelpers);
}

// Only the thread itself adds itself, so an entry that is not written yet is another thread's.
inline void register_thread(ThreadRegistry& registry) {
  const pthread_t self = pthread_self();
  const int32_t known = __atomic_load_n(&registry.count, __ATOMIC_RELAXED);
  for (int32_t i = 0; i < known && i < kMaxHelpers; ++i)
    if (pthread_equal(__atomic_load_n(&registry.helper[i], __ATOMIC_RELAXED), self)) return;
  if (known >= kMaxHelpers) return;
  const int32_t slot = __atomic_fetch_add(&registry.count, 1, __ATOMIC_RELAXED);
  if (slot < kMaxHelpers) __atomic_store_n(&registry.helper[slot], self, __ATOMIC_RELAXED);
}

// A job whose tasks register the threads that run them.
struct RegisteringTask {
  void (*task)(void*, size_t);
  void* job;
  pthread_t caller;
  ThreadRegistry* registry;
};

inline void run_registering(void* usr, size_t index) {
  const RegisteringTask& outer = *static_cast<const RegisteringTask*>(usr);
  if (!pthread_equal(outer.caller, pthread_self())) register_thread(*outer.registry);
  outer.task(outer.job, index);
}

}  // namespace tracea
