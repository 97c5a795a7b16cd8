// Which groups of the call before a linked call's tasks wait for (runtime/linked_calls.h).
//
// A task waits for groups of the call before alone.  What it reads of older calls must be over once
// those groups are complete: for every group it is known which groups of all older calls are, and a
// group waits for as many as it takes.  Every group of the call before is waited for by some group,
// and later groups wait for later ones, so what is over is a stretch, and all calls are over once the
// last one is.
#pragma once
#include "runtime/linked_calls.h"

namespace tracea {

// Lines of memory that a task touches which computes lines [first, end) of `height`:
// [first * step - before, (end - 1) * step - before + span), and, at an edge, all that lie beyond.
// Without an axis: any.
struct LineAccess {
  int32_t axis = -1;
  int64_t step = 1, before = 0, span = 1;

  Lines of(const Lines& computed, int64_t height, int64_t lines) const {
    const int64_t first = computed.first > 0 ? computed.first * step - before : 0;
    const int64_t end = (computed.end - 1) * step - before + span;
    return {max(first, 0), computed.end < height ? min(end, lines) : lines};
  }
};

// Lines of memory that each group of a call's tasks touches.
struct GroupLines {
  int32_t groups = 0;
  Lines line[kMaxRowGroups];

  GroupLines() = default;
  GroupLines(const RowTasks& tasks, const LineAccess& access, int64_t lines)
      : groups(static_cast<int32_t>(tasks.groups())) {
    for (int32_t g = 0; g < groups; ++g)
      line[g] = access.of(tasks.of_group(g), tasks.last_line(), lines);
  }
};

class GroupWaitsOfCalls {
 public:
  int32_t calls() const { return calls_; }

  // The first call.
  void begin(const RowTasks& rows) {
    calls_ = over_ = 0;
    waits_ = {};
    groups_[0] = static_cast<uint8_t>(rows.groups());
    imply();
  }

  // Another call; wait_for() and wait_for_all() add to what it waits for, until add() ends it.
  void next(const RowTasks& rows) {
    const int64_t groups = rows.groups(), before = groups_[calls_ - 1];
    groups_[calls_] = static_cast<uint8_t>(groups);
    for (int64_t g = 0; g < groups; ++g)
      waits_.first[g] = waits_.last[g] = static_cast<uint8_t>(g * before / groups);
  }

  // Groups that touch lines begin after the groups of an older call that touch these; line i of the
  // newest call's is line i + down of the other's.
  void wait_for(int32_t call, const GroupLines& old, const GroupLines& now, int64_t down) {
    for (int32_t g = 0, from = 0; g < now.groups; ++g) {
      const int64_t first = now.line[g].first + down, end = now.line[g].end + down;
      while (from < old.groups && old.line[from].end <= first) ++from;
      int32_t to = from;
      while (to < old.groups && old.line[to].first < end) ++to;
      if (to > from) wait_for(g, call, from, to - 1);
    }
  }

  // All tasks begin after the end of `call`.
  void wait_for_all(int32_t call) { over_ = max(over_, call + 1); }

  bool waits_for_all(int32_t call) const { return call < over_; }

  const GroupWaits& add() {
    const int64_t groups = groups_[calls_], before = groups_[calls_ - 1];
    uint8_t *first = waits_.first, *last = waits_.last;
    for (int64_t g = 1; g < groups; ++g) last[g] = last[g] > last[g - 1] ? last[g] : last[g - 1];
    for (int64_t g = groups - 1; g-- > 0;) first[g] = first[g] < first[g + 1] ? first[g] : first[g + 1];
    first[0] = 0, last[groups - 1] = static_cast<uint8_t>(before - 1);
    for (int64_t g = 1; g < groups; ++g)
      if (first[g] > last[g - 1] + 1) first[g] = static_cast<uint8_t>(last[g - 1] + 1);
    waits_.over = static_cast<uint8_t>(over_);
    imply();
    return waits_;
  }

  const GroupWaits& waits() const { return waits_; }

 private:
  struct Stretch {
    uint8_t first, last;
  };

  // Group `group` begins after groups first to last of `call`.
  void wait_for(int64_t group, int32_t call, int64_t first, int64_t last) {
    if (call < over_) return;
    const Stretch* before = over_of_[calls_ - 1][call];
    uint8_t &low = waits_.first[group], &high = waits_.last[group];
    while (low > 0 && before[low].first > first) --low;
    while (high + 1 < groups_[calls_ - 1] && before[high].last < last) ++high;
  }

  // Notes what is over once a group of the newest call is complete.
  void imply() {
    for (int64_t g = 0; g < groups_[calls_]; ++g) {
      over_of_[calls_][calls_][g] = {static_cast<uint8_t>(g), static_cast<uint8_t>(g)};
      for (int32_t c = over_; c < calls_; ++c)
        over_of_[calls_][c][g] = {over_of_[calls_ - 1][c][waits_.first[g]].first,
                                  over_of_[calls_ - 1][c][waits_.last[g]].last};
    }
    ++calls_;
  }

  int32_t calls_ = 0, over_ = 0;
  GroupWaits waits_ = {};
  uint8_t groups_[kMaxLinked];
  Stretch over_of_[kMaxLinked][kMaxLinked][kMaxRowGroups];  // by call, older call, group of the call
};

}  // namespace tracea
