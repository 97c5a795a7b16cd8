// The threads that stay with a program between its calls: a *team*, as OpenMP says.
//
// A parallel loop of the runtime's wakes threads up and waits for them, which takes microseconds,
// and a net has a hundred calls of some ten.  So one such loop holds a run of calls.  Whoever
// takes its first task leads: it runs the calls and hands out their tasks.  The others follow.
// Nobody is waited for that has not taken a task: a thread that comes late, or never, is only help
// that is missing, and one that has long had nothing to do goes back to the runtime.
//
// Who waits spins for a while, yields for a while, then sleeps: the processor may be what is waited
// for, because the thread with the last task has none, and time that is spun away counts against a
// container's quota.  Being woken up takes as long as a short call, so nobody sleeps at once unless
// others want the processor, which a yield that takes long shows.  Where the session's threads must
// not spin, who waits looks for 50 microseconds and then sleeps (runtime/wait.h).  Sleepers say so
// before they look once more, and who changes what they look at then asks whether anybody sleeps; these
// four accesses are in one total order, so no wake-up is lost.
//
// A cache line that another core has written takes about a tenth of a microsecond to fetch, so the
// hand-over is a matter of counting such lines.  One line announces a call; one line of each member
// says which tasks of its stretch are taken, and how many it has finished:
//
//   lead                                     follower
//   announce call T: task, job, counts       read call T and its announcement, and T once more
//   take tasks of its stretch, run them      the same
//   take what nobody has taken               the same, if stretches have several tasks
//   wait until all finished tasks are all    add to its finished tasks
//
// A task is taken by a compare-and-swap of its owner's line, whose high half is the call: it can
// succeed only while the call lasts, because a call ends when all its tasks are finished.  So a
// follower that was delayed with an old announcement takes nothing.  An announcement stays intact
// until the next but one is written, hence the second look at the call.
#pragma once
#include <string.h>

#include "runtime/linked_calls.h"

namespace tracea {

// High half: a call; low half: the tasks of its own stretch that are taken, or those it finished.
struct Member {
  alignas(64) uint64_t taken;
  uint64_t finished;
};

// A call's `tasks` tasks, of which each of the first `shares` members owns a stretch.  Without a
// task: linked calls.
struct TeamCall {
  void (*task)(void*, size_t);
  void* job;
  uint32_t tasks, shares;

  uint32_t begin(uint32_t share) const {
    return static_cast<uint32_t>(uint64_t{tasks} * share / shares);
  }
  uint32_t size(uint32_t share) const { return begin(share + 1) - begin(share); }
};

class Team {
 public:
  // `members` are expected; more may come, or fewer.  `spins` is whether those who wait may, `topology`
  // how near processors are to each other, if it is known.
  Team(int64_t members, bool spins, const ProcessorTopology* topology = nullptr) {
    memset(static_cast<void*>(this), 0, sizeof *this - sizeof links_);
    spins_ = spins, expected_ = static_cast<int32_t>(min(members, kMaxTeam)), came_ = 1;
    positions_.init(expected_, topology);
  }

  // Takes the lead's position; to be called by its thread before anything else.
  void lead() { lead_ = positions_.take(0, positions_.grouped() ? processor_here() : -1); }

  // task(job, i) for i in [0, tasks); the lead's.  Like the runtime's own loops each thread begins
  // with a stretch of neighbours, the same one in every call, and then takes what others left; who
  // is still on the way has a stretch too.
  void share(int64_t tasks, void (*task)(void*, size_t), void* job) {
    for (; tasks > INT32_MAX; --tasks) task(job, static_cast<size_t>(tasks - 1));
    const TeamCall call = {task, job, static_cast<uint32_t>(tasks),
                           static_cast<uint32_t>(min(members(), tasks))};
    const uint32_t number = call_ + 1;
    announce(announced_[number % 2], call);
    publish(number);
    uint32_t finished = 0;
    for (uint32_t i = 0; i < call.shares; ++i)
      finished += run_share(number, call, positions_.share_after(lead_, i, call.shares));
    for (Wait wait(spins_); finished + finished_by_others(number) < call.tasks;) {
      if (!wait.look()) continue;
      __atomic_store_n(&lead_sleeps_, 1, __ATOMIC_SEQ_CST);
      if (finished + finished_by_others(number) < call.tasks) sleep_while(&lead_sleeps_, 1, kAsleep);
      __atomic_store_n(&lead_sleeps_, 0, __ATOMIC_RELAXED);
    }
  }

  // Adds a call to those that are linked, or begins with it.  Its tasks run from now on, beside the
  // lead's.
  void link(const RowTasks& rows, const GroupWaits& waits, bool first, void (*task)(void*, size_t),
            void* job) {
    if (!first) return links_.add(linked_call(rows, waits, linked_members_, task, job));
    const uint32_t number = call_ + 1;
    if (!linked_members_) links_.clear();
    linked_members_ = static_cast<uint32_t>(members());
    links_.open(number);
    links_.add(linked_call(rows, waits, linked_members_, task, job));
    announce(announced_[number % 2], {nullptr, nullptr, 0, 0});
    publish(number);
  }

  // Returns once the tasks of all linked calls have run.
  void finish_linked() {
    links_.close();
    links_.work(call_, lead_, positions_, true, spins_);
  }

  // Works for the lead until it has ended, or has long had nothing to do.
  void follow() {
    const int32_t self = __atomic_fetch_add(&came_, 1, __ATOMIC_SEQ_CST);
    if (self >= kMaxTeam) return;
    const uint32_t position =
        positions_.take(static_cast<uint32_t>(self), positions_.grouped() ? processor_here() : -1);
    for (uint32_t seen = 0;;) {
      const uint32_t number = await_call(seen);
      if (number == kEnded) return;
      if (number == seen) break;
      const TeamCall call = announcement(announced_[number % 2]);
      if (__atomic_load_n(&call_, __ATOMIC_ACQUIRE) != number) continue;
      seen = number;
      if (call.task) help(number, call, position);
      else links_.work(number, position, positions_, false, spins_);
    }
    __atomic_store_n(&thinned_, 1, __ATOMIC_RELAXED);
  }

  void end() { publish(kEnded); }

  // True when somebody has gone.
  bool thinned() const { return __atomic_load_n(&thinned_, __ATOMIC_RELAXED); }

 private:
  static constexpr uint32_t kEnded = ~uint32_t{0};

  // Those who are here or expected.
  int64_t members() const {
    return min(max(expected_, __atomic_load_n(&came_, __ATOMIC_RELAXED)), kMaxTeam);
  }

  // Word by word: a follower may read an announcement while a later one is written.
  static void announce(TeamCall& to, const TeamCall& call) {
    __atomic_store_n(&to.task, call.task, __ATOMIC_RELEASE);
    __atomic_store_n(&to.job, call.job, __ATOMIC_RELEASE);
    __atomic_store_n(&to.tasks, call.tasks, __ATOMIC_RELEASE);
    __atomic_store_n(&to.shares, call.shares, __ATOMIC_RELEASE);
  }

  static TeamCall announcement(const TeamCall& from) {
    return {__atomic_load_n(&from.task, __ATOMIC_ACQUIRE),
            __atomic_load_n(&from.job, __ATOMIC_ACQUIRE),
            __atomic_load_n(&from.tasks, __ATOMIC_ACQUIRE),
            __atomic_load_n(&from.shares, __ATOMIC_ACQUIRE)};
  }

  // Announces that a call has begun, or the end of all.
  void publish(uint32_t number) {
    __atomic_store_n(&call_, number, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleepers_, __ATOMIC_SEQ_CST)) wake(&call_, INT32_MAX);
  }

  // The call after `seen`, or `seen` if there has long been none.
  uint32_t await_call(uint32_t seen) {
    uint32_t number = __atomic_load_n(&call_, __ATOMIC_ACQUIRE);
    for (Wait wait(spins_); number == seen && !wait.look();)
      number = __atomic_load_n(&call_, __ATOMIC_ACQUIRE);
    if (number != seen) return number;
    const int64_t end = nanoseconds() + kPatience;
    __atomic_fetch_add(&sleepers_, 1, __ATOMIC_SEQ_CST);
    for (int64_t left = kPatience; number == seen && left > 0; left = end - nanoseconds()) {
      sleep_while(&call_, seen, left);
      number = __atomic_load_n(&call_, __ATOMIC_ACQUIRE);
    }
    __atomic_fetch_sub(&sleepers_, 1, __ATOMIC_RELAXED);
    return number;
  }

  // Adds to the finished tasks of a member, for which the lead may wait.
  void finish(uint32_t position, uint64_t word) {
    __atomic_store_n(&member_[position].finished, word, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&lead_sleeps_, __ATOMIC_SEQ_CST) &&
        __atomic_exchange_n(&lead_sleeps_, 0, __ATOMIC_SEQ_CST))
      wake(&lead_sleeps_, 1);
  }

  // Takes the next task of a share, whoever owns it; false if none is left in this call.
  bool take(uint32_t number, const TeamCall& call, uint32_t share, uint32_t* task) {
    uint64_t* word = &member_[share].taken;
    uint64_t was = __atomic_load_n(word, __ATOMIC_RELAXED);
    for (;;) {
      const uint32_t last = static_cast<uint32_t>(was >> 32);
      const uint32_t taken = last == number ? static_cast<uint32_t>(was) : 0;
      if (last > number || taken >= call.size(share)) return false;
      if (__atomic_compare_exchange_n(word, &was, uint64_t{number} << 32 | (taken + 1), false,
                                      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return *task = call.begin(share) + taken, true;
    }
  }

  // Runs what is left of a share; returns how many tasks that were.
  uint32_t run_share(uint32_t number, const TeamCall& call, uint32_t share) {
    uint32_t done = 0;
    for (uint32_t task; take(number, call, share, &task); ++done) call.task(call.job, task);
    return done;
  }

  // A follower's part of a call: its own stretch, and what others have left of theirs.  It says at
  // once what it has finished, because looking through the others' lines may take as long as a
  // task.  Where each has one task, and everybody is here, only the lead looks for one that is late.
  void help(uint32_t number, const TeamCall& call, uint32_t position) {
    const bool complete = __atomic_load_n(&came_, __ATOMIC_RELAXED) >= expected_;
    const bool single = call.tasks == call.shares && complete;
    const uint32_t shares = single ? positions_.begins(position, call.shares) : call.shares;
    uint32_t done = 0;
    for (uint32_t i = 0; i < shares; ++i) {
      const uint32_t more = run_share(number, call, positions_.share_after(position, i, call.shares));
      if (!more) continue;
      done += more;
      finish(position, uint64_t{number} << 32 | done);
    }
  }

  uint32_t finished_by_others(uint32_t number) const {
    uint32_t sum = 0;
    const int64_t came = __atomic_load_n(&came_, __ATOMIC_SEQ_CST);
    const bool grouped = positions_.grouped();  // any position may be taken then, and the lead's is some
    const int64_t end = min(grouped ? max(came, expected_) : came, kMaxTeam);
    for (int64_t i = grouped ? 0 : 1; i < end; ++i) {
      const uint64_t word = __atomic_load_n(&member_[i].finished, __ATOMIC_SEQ_CST);
      sum += word >> 32 == number ? static_cast<uint32_t>(word) : 0;
    }
    return sum;
  }

  alignas(64) uint32_t call_;  // the last that was announced; announcements in the same line
  int32_t sleepers_;           // followers that sleep until it changes, or are about to
  TeamCall announced_[2];
  alignas(64) int32_t came_;  // the lead and all who ever followed
  int32_t expected_;
  int32_t thinned_;
  bool spins_;
  uint32_t lead_sleeps_;  // 1 while the lead does, or is about to
  uint32_t lead_;         // its position
  uint32_t linked_members_;
  TeamPositions positions_;
  Member member_[kMaxTeam];
  LinkedCalls links_;  // the last one: cleared when calls are linked
};

}  // namespace tracea
