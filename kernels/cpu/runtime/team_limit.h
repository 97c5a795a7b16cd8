// How many processors teams may use, learned from threads that come back late.
//
// A team as large as the machine relies on every processor.  Another program may want one, or the
// host of a virtual machine lend fewer than it shows: then some thread has no processor for a
// scheduler's slice of milliseconds.  Within a run others take its tasks.  But the runtime ends a
// parallel loop only when all threads have returned that had joined, tasks or none, so at the end
// the run waits for whoever is away.
//
// So each team's lead notes how long that took.  Where it is a quarter of the time or more, teams
// become smaller by a quarter; after a pause a larger size is tried again, and left at once if it
// is as bad.  Congestion control of networks works so (additive increase, multiplicative decrease:
// Chiu and Jain, 1989).  The size of a team changes no bit of a result.
#pragma once
#include "runtime/core.h"

namespace tracea {

class TeamLimit {
 public:
  // Processors that teams may use at a time, of so many.
  int32_t of(int32_t processors) const {
    const int32_t limit = __atomic_load_n(&limit_, __ATOMIC_RELAXED);
    return limit ? static_cast<int32_t>(min(limit, processors)) : processors;
  }

  // Whether a team's end is worth timing: smaller machines and smaller teams keep their size.
  bool watches(int32_t processors, int64_t taken) const {
    return processors >= kFewest && 4 * taken >= 3 * of(processors);
  }

  // After a team's end at `now`, while runs had `taken` processors: it lasted `took` nanoseconds, of
  // which its lead waited `late` for the others to return.  Notes at the same time are left out.
  void note(int32_t processors, int64_t taken, int64_t took, int64_t late, int64_t now) {
    if (!watches(processors, taken) || __atomic_exchange_n(&noting_, 1, __ATOMIC_ACQUIRE)) return;
    if (now >= settled_) add(processors, static_cast<int32_t>(min(taken, processors)), took, late, now);
    __atomic_store_n(&noting_, 0, __ATOMIC_RELEASE);
  }

 private:
  static constexpr int32_t kFewest = 33;  // on 16, threads are late only at first: smaller teams lost there
  static constexpr int64_t kLate = 500'000;         // ns; waking up takes less, a scheduler's slice more
  static constexpr int64_t kEnough = 50'000'000;    // ns of teams that are judged together
  static constexpr int32_t kFewestTeams = 4, kFewestLate = 2;  // of them
  static constexpr int64_t kMostLate = 4;           // one part in so many
  static constexpr int64_t kSettles = 100'000'000;  // ns until threads of the runtime sleep that have no work
  static constexpr int64_t kPause = 2'000'000'000, kLongPause = 32 * kPause;  // ns

  void add(int32_t processors, int32_t taken, int64_t took, int64_t late, int64_t now) {
    took_ += took, ++teams_;
    if (late >= kLate) late_ += late, ++late_teams_;
    if (took_ < kEnough || teams_ < kFewestTeams) return;
    const bool crowded = late_teams_ >= kFewestLate && kMostLate * late_ >= took_;
    took_ = late_ = 0, teams_ = late_teams_ = 0;
    const int32_t was = of(processors), before = before_;
    before_ = 0;
    if (crowded && before) {
      pause_ = min(2 * pause_, kLongPause);
      set(before, processors, now);
    } else if (crowded) {
      set(max(3 * min(taken, was) / 4, max(processors / 4, 1)), processors, now);
    } else if (before) {
      pause_ = kPause;
    }
    if (crowded || was == processors || now < next_) return;
    before_ = was;
    set(was + max(processors / 8, 1), processors, now);
  }

  void set(int64_t limit, int32_t processors, int64_t now) {
    __atomic_store_n(&limit_, limit < processors ? static_cast<int32_t>(limit) : 0, __ATOMIC_RELAXED);
    settled_ = now + kSettles, next_ = now + pause_;
  }

  int32_t limit_ = 0;  // 0: none
  int32_t before_ = 0;  // where a larger one is tried: the one before
  int32_t teams_ = 0, late_teams_ = 0;
  int32_t noting_ = 0;  // by a thread at a time; a fork in between leaves the child the limit as it is
  int64_t took_ = 0, late_ = 0, settled_ = 0, next_ = 0, pause_ = kPause;
};

inline TeamLimit team_limit;

}  // namespace tracea
