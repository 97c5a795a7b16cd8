// Which threads a session has.  The API does not say, and the machine's processors are no answer:
// dividing what is faster undivided costs a session of one thread up to half its speed.  So a node
// remembers the threads that came to take its tasks.
#pragma once
#include <pthread.h>

#include "runtime/core.h"

namespace tracea {

constexpr int32_t kMaxCrew = 64;

struct Crew {
  int32_t count;  // helpers beside whoever calls; those past kMaxCrew are not kept
  pthread_t helper[kMaxCrew];
};

inline int64_t threads_of(const Crew& crew) {
  return 1 + least(__atomic_load_n(&crew.count, __ATOMIC_RELAXED), kMaxCrew);
}

// Only the thread itself adds itself, so that a place which is not written yet is another's.
inline void join(Crew& crew) {
  const pthread_t self = pthread_self();
  const int32_t known = __atomic_load_n(&crew.count, __ATOMIC_RELAXED);
  for (int32_t i = 0; i < known && i < kMaxCrew; ++i)
    if (pthread_equal(__atomic_load_n(&crew.helper[i], __ATOMIC_RELAXED), self)) return;
  if (known >= kMaxCrew) return;
  const int32_t place = __atomic_fetch_add(&crew.count, 1, __ATOMIC_RELAXED);
  if (place < kMaxCrew) __atomic_store_n(&crew.helper[place], self, __ATOMIC_RELAXED);
}

// A job whose tasks tell who runs them.
struct Watched {
  void (*task)(void*, size_t);
  void* job;
  pthread_t caller;
  Crew* crew;
};

inline void watched_task(void* usr, size_t index) {
  const Watched& watched = *static_cast<const Watched*>(usr);
  if (!pthread_equal(watched.caller, pthread_self())) join(*watched.crew);
  watched.task(watched.job, index);
}

}  // namespace tracea
