// Linked calls: neighbours of a program between which a team has no barrier.
//
// A task of a linked call waits for the rows that it reads, not for the end of the call before.  So a
// thread that is done with its part of a call begins with its rows of the next one while others are
// late, and the rows it reads are mostly those it wrote.
//
// The tasks of a call are in order of the rows they compute, and some neighbours are a *row group*.
// Whoever finishes a task adds to its group's line; a task may begin once those groups of the call
// before are complete that its own waits for, and once some older calls are over.  Which these are is
// found out when the call is added (runtime/group_waits.h, runtime/linker.h): so many that every row
// that is read, or written again, is there, whichever older call wrote it.  Once the last call's
// groups are complete, everything is.  Attention reads all rows: its tasks wait for the whole call
// before, and are taken in order, so that its first rows are soon complete.
//
//   lead                                     everybody, the lead as well once it has no call to add
//   describe call 0, publish 1 call          read the descriptions that are new
//   describe call 1, publish 2 calls         take a task whose rows are there, of the earliest call
//   ...                                      that has one in the own share, or else in others'
//   publish the end                          run it, add to its group
//
// A share is a stretch of a call's tasks, as in runtime/team.h: each member has one line with the
// number of tasks taken of its share of every call.  All these words have the number of the team's
// call in their high half: they succeed no words of a later number, and a thread that was delayed
// takes nothing, because all shares of its number are taken when that ends.
//
// What can be taken becomes so when a call is added, or a group complete: a count of such events is
// all that a thread looks at which found nothing, and on which it sleeps after a while.  It reads the
// count before it looks for a task; whoever adds to the count asks for sleepers after that.
#pragma once
#include <string.h>

#include "runtime/team_positions.h"
#include "runtime/system.h"
#include "runtime/wait.h"

namespace tracea {

constexpr int64_t kLinkedThreads = 5;  // with fewer, barriers take less than waiting for rows does
constexpr int32_t kMaxLinked = 16;     // calls: a member's counters of them fill two cache lines
constexpr int32_t kMaxRowGroups = 16;  // of a call

// Lines [first, end) of a matrix or an image.
struct Lines {
  int64_t first, end;
};

// Which rows a call's tasks compute: `per_step` neighbouring tasks those of one step, in order.  Rows
// are lines of the result, or parts of lines: `across` rows are `lines` lines.
struct RowTasks {
  int64_t rows, steps, per_step;
  int64_t each = 0;  // rows of a step, or 0 where steps are of nearly equal size
  bool all = false;  // every task reads all rows, and takes long: none is some member's own
  int64_t across = 1, lines = 1;
  int64_t height = 0;  // lines in all, or 0: as many as rows
  int64_t joined = 0;  // outputs of a line where lines are one; a row has
  int64_t narrow = 0, wider = 0;  // so many, the first few one more
  bool image = false;  // lines of an image
  bool more = false;   // the same call has other tasks, which read what all of these write

  int64_t begin(int64_t step) const { return each ? min(rows, step * each) : rows * step / steps; }
  int64_t tasks() const { return steps * per_step; }

  // Tasks of a row group, and groups.
  int64_t per_group() const { return ceil_div(tasks(), kMaxRowGroups); }
  int64_t groups() const { return ceil_div(tasks(), per_group()); }

  int64_t last_line() const { return height ? height : rows; }

  // The lines that tasks [first, end), or those of a group, compute or compute a part of.
  Lines of_tasks(int64_t first, int64_t end) const {
    const int64_t low = begin(first / per_step), high = begin(ceil_div(end, per_step));
    if (joined) return {at(low) / joined, ceil_div(at(high), joined)};
    return {low / across * lines, min(last_line(), ceil_div(high, across) * lines)};
  }
  Lines of_group(int64_t group) const {
    const int64_t first = group * per_group();
    return of_tasks(first, min(tasks(), first + per_group()));
  }

 private:
  int64_t at(int64_t row) const { return row * narrow + min(row, wider); }
};

// What the tasks of a call wait for: the first `over` calls, and of the call before the groups
// first[g] to last[g].
struct GroupWaits {
  uint8_t over, first[kMaxRowGroups], last[kMaxRowGroups];
};

// A call's `tasks` tasks, of which each of the first `shares` members owns a stretch.
struct LinkedCall {
  void (*task)(void*, size_t);
  void* job;
  uint32_t tasks, per_group;
  uint16_t shares;
  uint8_t groups;
  GroupWaits waits;

  uint32_t begin(uint32_t share) const {
    return static_cast<uint32_t>(uint64_t{tasks} * share / shares);
  }
  uint32_t size(uint32_t share) const { return begin(share + 1) - begin(share); }
  uint32_t tasks_of(uint32_t group) const {
    return static_cast<uint32_t>(min(per_group, tasks - int64_t{group} * per_group));
  }
};

inline LinkedCall linked_call(const RowTasks& rows, const GroupWaits& waits, uint32_t members,
                              void (*task)(void*, size_t), void* job) {
  LinkedCall call = {};
  call.task = task, call.job = job;
  call.tasks = static_cast<uint32_t>(rows.tasks());
  call.shares = static_cast<uint16_t>(rows.all ? 1 : call.tasks < members ? call.tasks : members);
  call.groups = static_cast<uint8_t>(rows.groups());
  call.per_group = static_cast<uint32_t>(rows.per_group());
  call.waits = waits;
  return call;
}

class LinkedCalls {
 public:
  // Before anything else.
  void clear() { memset(static_cast<void*>(this), 0, sizeof *this); }

  // Begins with no call; the lead's, as are add() and close().
  void open(uint32_t number) { publish(uint64_t{number} << 32); }

  void add(const LinkedCall& call) {
    const uint64_t word = published_ + 1;
    uint64_t words[kWords];
    memcpy(words, &call, sizeof words);
    uint64_t* to = described_[(word >> 32) % 2][(word & kCalls) - 1];
    for (size_t i = 0; i < kWords; ++i) __atomic_store_n(&to[i], words[i], __ATOMIC_RELEASE);
    publish(word);
  }

  void close() { publish(published_ | kClosed); }

  // Runs tasks until none is left to take; the lead returns once all are finished.  `spins` is whether
  // whoever finds none may spin.
  void work(uint32_t number, uint32_t position, const TeamPositions& positions, bool leads, bool spins) {
    Known known;
    known.calls = known.taken = known.over = 0;
    for (uint32_t event = count(); read(number, &known); event = count()) {
      if (run_next(number, &known, position, positions)) continue;
      if (known.closed && (leads ? finished(number, known) : known.all_taken())) break;
      await(event, spins);
    }
  }

 private:
  static constexpr uint64_t kClosed = 0x100, kCalls = 0xff;
  static constexpr size_t kWords = sizeof(LinkedCall) / sizeof(uint64_t);
  static_assert(sizeof(LinkedCall) == 64, "a description fills a cache line");

  // What a thread has read of the calls.
  struct Known {
    uint32_t calls, taken;  // how many; those without a task to take, one bit each
    uint32_t over;          // calls of which all tasks have run
    bool closed;
    LinkedCall call[kMaxLinked];
    uint32_t ready[kMaxLinked];  // groups that may begin, one bit each

    bool all_taken() const { return taken == (1u << calls) - 1; }
  };

  enum class Take { kTask, kLater, kNone };

  struct Share {
    alignas(64) uint64_t taken[kMaxLinked];
  };
  struct Group {
    alignas(64) uint64_t finished;
  };

  void publish(uint64_t word) {
    __atomic_store_n(&published_, word, __ATOMIC_SEQ_CST);
    tell();
  }

  uint32_t count() const { return __atomic_load_n(&events_, __ATOMIC_SEQ_CST); }

  // Counts an event, and wakes those who sleep until there is one.
  void tell() {
    __atomic_fetch_add(&events_, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&sleepers_, __ATOMIC_SEQ_CST)) wake(&events_, INT32_MAX);
  }

  // Returns after the next event, at the latest.
  void await(uint32_t event, bool spins) {
    Wait wait(spins);
    while (count() == event && !wait.look()) {}
    if (count() != event) return;
    __atomic_fetch_add(&sleepers_, 1, __ATOMIC_SEQ_CST);
    sleep_while(&events_, event, kAsleep);
    __atomic_fetch_sub(&sleepers_, 1, __ATOMIC_RELAXED);
  }

  // Reads descriptions that are new; false once the number has ended.
  bool read(uint32_t number, Known* known) const {
    const uint64_t word = __atomic_load_n(&published_, __ATOMIC_SEQ_CST);
    if (word >> 32 != number) return false;
    const uint32_t calls = word & kCalls, old = known->calls;
    for (uint32_t c = old; c < calls; ++c) {
      uint64_t words[kWords];
      const uint64_t* from = described_[number % 2][c];
      for (size_t i = 0; i < kWords; ++i) words[i] = __atomic_load_n(&from[i], __ATOMIC_ACQUIRE);
      memcpy(static_cast<void*>(&known->call[c]), words, sizeof words);
      known->ready[c] = 0;
    }
    known->calls = calls, known->closed = word & kClosed;
    return calls == old || __atomic_load_n(&published_, __ATOMIC_SEQ_CST) >> 32 == number;
  }

  bool complete(uint32_t number, const LinkedCall& call, uint32_t c, uint32_t group) const {
    const uint64_t word = __atomic_load_n(&group_[c][group].finished, __ATOMIC_SEQ_CST);
    return word == (uint64_t{number} << 32 | call.tasks_of(group));
  }

  bool finished(uint32_t number, const Known& known) const {
    const uint32_t last = known.calls - 1;
    for (uint32_t g = 0; g < known.call[last].groups; ++g)
      if (!complete(number, known.call[last], last, g)) return false;
    return true;
  }

  // Whether the calls that all tasks of a call wait for are over.
  bool may_begin(uint32_t number, Known* known, uint32_t c) const {
    for (; known->over < known->call[c].waits.over; ++known->over)
      for (uint32_t g = 0; g < known->call[known->over].groups; ++g)
        if (!complete(number, known->call[known->over], known->over, g)) return false;
    return true;
  }

  bool ready(uint32_t number, Known* known, uint32_t c, uint32_t group) const {
    if (known->ready[c] >> group & 1) return true;
    if (!may_begin(number, known, c)) return false;
    const GroupWaits& waits = known->call[c].waits;
    for (uint32_t g = waits.first[group]; c != waits.over && g <= waits.last[group]; ++g)
      if (!complete(number, known->call[c - 1], c - 1, g)) return false;
    return known->ready[c] |= 1u << group, true;
  }

  // Takes the next task of a share if its rows are there.
  Take take(uint32_t number, Known* known, uint32_t c, uint32_t share, uint32_t* task) {
    const LinkedCall& call = known->call[c];
    uint64_t* word = &share_[share].taken[c];
    uint64_t was = __atomic_load_n(word, __ATOMIC_RELAXED);
    for (;;) {
      const uint32_t last = static_cast<uint32_t>(was >> 32);
      const uint32_t taken = last == number ? static_cast<uint32_t>(was) : 0;
      if (last > number || taken >= call.size(share)) return Take::kNone;
      *task = call.begin(share) + taken;
      if (!ready(number, known, c, *task / call.per_group)) return Take::kLater;
      if (__atomic_compare_exchange_n(word, &was, uint64_t{number} << 32 | (taken + 1), false,
                                      __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return Take::kTask;
    }
  }

  void finish(uint32_t number, const LinkedCall& call, uint32_t c, uint32_t group) {
    uint64_t* word = &group_[c][group].finished;
    uint64_t was = __atomic_load_n(word, __ATOMIC_RELAXED), now;
    do now = (was >> 32 == number ? was : uint64_t{number} << 32) + 1;
    while (!__atomic_compare_exchange_n(word, &was, now, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    if (static_cast<uint32_t>(now) == call.tasks_of(group)) tell();
  }

  // Runs the next task of a share if its rows are there.
  Take run_of(uint32_t number, Known* known, uint32_t c, uint32_t share) {
    const LinkedCall& call = known->call[c];
    uint32_t task;
    const Take found = take(number, known, c, share, &task);
    if (found != Take::kTask) return found;
    call.task(call.job, task);
    finish(number, call, c, task / call.per_group);
    return found;
  }

  // Runs a task whose rows are there, of the own shares or else of others'; false if there is none.
  bool run_next(uint32_t number, Known* known, uint32_t position, const TeamPositions& positions) {
    for (uint32_t c = 0; c < known->calls; ++c)
      if (!(known->taken >> c & 1) &&
          run_of(number, known, c, positions.share_of(position, known->call[c].shares)) == Take::kTask)
        return true;
    for (uint32_t c = 0; c < known->calls && may_begin(number, known, c); ++c) {
      bool left = false;
      for (uint32_t i = 0; !(known->taken >> c & 1) && i < known->call[c].shares; ++i) {
        const uint32_t share = positions.share_after(position, i, known->call[c].shares);
        const Take found = run_of(number, known, c, share);
        if (found == Take::kTask) return true;
        left = left || found == Take::kLater;
      }
      if (!left) known->taken |= 1u << c;
    }
    return false;
  }

  alignas(64) uint64_t published_;  // from the lowest bit: calls, whether that is all, number
  alignas(64) uint64_t described_[2][kMaxLinked][kWords];
  alignas(64) uint32_t events_;
  int32_t sleepers_;  // those who sleep until there is another one, or are about to
  Share share_[kMaxTeam];
  Group group_[kMaxLinked][kMaxRowGroups];
};

}  // namespace tracea
