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

// The tasks of a run, call after call.  Only the thread that runs the calls adds places, between
// its calls; each task then writes the place of its own.
struct Timeline {
  TaskTime* tasks;
  int64_t count, room, call;

  // Places for so many tasks, or null if there is no memory.
  TaskTime* add(int64_t more) {
    if (count + more > room) {
      const int64_t wanted = 2 * (count + more);
      void* moved = realloc(tasks, static_cast<size_t>(wanted) * sizeof *tasks);
      if (!moved) return nullptr;
      tasks = static_cast<TaskTime*>(moved), room = wanted;
    }
    TaskTime* first = tasks + count;
    for (int64_t i = 0; i < more; ++i) first[i] = {call, 0, 0, 0};
    return count += more, first;
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
