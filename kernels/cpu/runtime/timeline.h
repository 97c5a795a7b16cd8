// When each task of a run begins and ends, and on which thread, for TRACEA_TIMELINE
// (runtime/trace.h).
#pragma once
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#include <stdlib.h>
#include <unistd.h>

#include "runtime/debug.h"

namespace tracea {

// The system's number of the thread.
inline int64_t this_thread() {
#ifdef SYS_gettid
  return syscall(SYS_gettid);
#else
  return 0;
#endif
}

struct TaskTime {
  int64_t call, thread, begin, end;
};

// The tasks of a run, in the order in which their calls began.  Only the thread that runs the calls
// adds places, some while tasks write theirs: places stay where they are.
struct Timeline {
  struct Part {
    Part* next;
    int64_t count;
    TaskTime task[];
  };
  Part *first, *last;
  int64_t count, call;

  // Places for so many tasks, or null if there is no memory.
  TaskTime* add(int64_t more) {
    const size_t bytes = sizeof(Part) + static_cast<size_t>(more) * sizeof(TaskTime);
    Part* part = static_cast<Part*>(malloc(bytes));
    if (!part) return nullptr;
    part->next = nullptr, part->count = more;
    for (int64_t i = 0; i < more; ++i) part->task[i] = {call, 0, 0, 0};
    (last ? last->next : first) = part;
    return last = part, count += more, part->task;
  }

  template <class Each>
  void for_each(Each each) const {
    for (const Part* part = first; part; part = part->next)
      for (int64_t i = 0; i < part->count; ++i) each(part->task[i]);
  }

  void release() {
    while (Part* part = first) first = part->next, free(part);
  }
};

struct TimedTasks {
  void (*task)(void*, size_t);
  void* job;
  TaskTime* times;
};

inline void timed_task(void* usr, size_t index) {
  const TimedTasks& all = *static_cast<const TimedTasks*>(usr);
  TaskTime& time = all.times[index];
  time.thread = this_thread(), time.begin = nanoseconds();
  all.task(all.job, index);
  time.end = nanoseconds();
}

}  // namespace tracea
