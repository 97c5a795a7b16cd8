// The threads that stay with a program between its calls: a *team*, as OpenMP says.
//
// A parallel loop of the runtime's wakes threads up and waits for them, which takes microseconds,
// and a net has a hundred calls of some ten.  So one such loop holds a run of calls.  Whoever
// takes its first task leads: it runs the calls and hands out their tasks through a few cache
// lines.  The others follow.  Nobody is waited for that has not taken a task: a thread that comes
// late, or never, is only help that is missing, and one that has long had nothing to do goes back
// to the runtime.
#pragma once
#include <string.h>

#include "runtime/core.h"

namespace tracea {

constexpr int32_t kMaxTeam = 64;
constexpr int32_t kPatience = 2000;  // pauses: 30 to 100 microseconds

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // YIELD does nothing on most cores
#endif
}

struct Member {
  alignas(64) int64_t next;  // of the tasks that are its own before they are anybody's
  int64_t end;
  alignas(64) int32_t busy;  // with tasks of the turn that it saw
};

class Team {
 public:
  Team() { memset(static_cast<void*>(this), 0, sizeof *this), came_ = 1; }

  // task(job, i) for i in [0, tasks); the lead's.  Like the runtime's own loops each thread begins
  // with a stretch of neighbours, the same one in every call, and then takes what others left.
  void share(int64_t tasks, void (*task)(void*, size_t), void* job) {
    shares_ = static_cast<int32_t>(min(present(), tasks));
    for (int32_t i = 0; i < shares_; ++i) {
      member_[i].next = tasks * i / shares_;
      member_[i].end = tasks * (i + 1) / shares_;
    }
    task_ = task, job_ = job;
    const uint64_t turn = turn_ + 1;
    __atomic_store_n(&turn_, turn, __ATOMIC_RELEASE);
    work(0);
    // Either a follower sees that the turn is over, or the lead that the follower is busy.
    __atomic_store_n(&turn_, turn + 1, __ATOMIC_SEQ_CST);
    const int32_t others = present();
    for (int32_t i = 1; i < others; ++i)
      for (int32_t waited = 0; __atomic_load_n(&member_[i].busy, __ATOMIC_SEQ_CST); ++waited)
        waited < kPatience ? pause() : static_cast<void>(sched_yield());
  }

  // Works for the lead until it has ended, or has long had nothing to do.
  void follow() {
    const int32_t self = __atomic_fetch_add(&came_, 1, __ATOMIC_SEQ_CST);
    if (self >= kMaxTeam) return;
    uint64_t done = 0;
    for (int32_t waited = 0; waited < kPatience; ++waited, pause()) {
      const uint64_t turn = __atomic_load_n(&turn_, __ATOMIC_ACQUIRE);
      if (turn == kEnded) return;
      if (turn % 2 == 0 || turn == done) continue;
      __atomic_store_n(&member_[self].busy, 1, __ATOMIC_SEQ_CST);
      if (__atomic_load_n(&turn_, __ATOMIC_SEQ_CST) == turn) work(self);
      __atomic_store_n(&member_[self].busy, 0, __ATOMIC_RELEASE);
      done = turn;
      waited = 0;
    }
    __atomic_store_n(&thinned_, 1, __ATOMIC_RELAXED);
  }

  void end() { __atomic_store_n(&turn_, kEnded, __ATOMIC_RELEASE); }

  // True when somebody has gone.
  bool thinned() const { return __atomic_load_n(&thinned_, __ATOMIC_RELAXED); }

 private:
  static constexpr uint64_t kEnded = ~uint64_t{1};

  int32_t present() const {
    return static_cast<int32_t>(min(__atomic_load_n(&came_, __ATOMIC_SEQ_CST), kMaxTeam));
  }

  void work(int32_t self) {
    for (int32_t i = 0; i < shares_; ++i) {
      Member& whose = member_[(self + i) % shares_];
      while (__atomic_load_n(&whose.next, __ATOMIC_RELAXED) < whose.end) {
        const int64_t at = __atomic_fetch_add(&whose.next, 1, __ATOMIC_RELAXED);
        if (at < whose.end) task_(job_, static_cast<size_t>(at));
      }
    }
  }

  alignas(64) uint64_t turn_;  // odd while there are tasks
  void (*task_)(void*, size_t);
  void* job_;
  int32_t shares_;
  alignas(64) int32_t came_;  // the lead and all who ever followed
  int32_t thinned_;
  Member member_[kMaxTeam];
};

}  // namespace tracea
