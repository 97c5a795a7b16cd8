// Which calls of a program are linked: run without a barrier in between (runtime/linked_calls.h).
//
// A call's host loop hands its tasks to the team and then, instead of waiting for them, runs the next
// call: each call's job stays on the stack below.  A task waits for the tasks of older calls with
// which it shares memory that one of both writes: those of the lines it touches where both touch
// memory line by line, else all of that call.  Values that are dead share memory with later ones, so
// lay_out() keeps those of linked calls apart for a while.
#pragma once
#include "runtime/line_access.h"
#include "runtime/group_waits.h"
#include "runtime/view_cache.h"

namespace tracea {

// A call, or a loop of calls.
struct Cursor {
  int32_t call, loop;
};

constexpr int32_t kMaxTouched = 80;  // by linked calls

struct ProgramLinker : Linker {
  Run& run;
  const Program& program;
  const int64_t* symbols;
  const Memory* buffers;
  const Cursor& at;        // the next call
  const int32_t& current;  // the call at hand, or -1 in a loop
  bool (*step)(void* usr);  // runs the next call
  void* usr;
  int32_t linked = 0;    // tasks of calls, handed out together
  bool offered = false;  // the call at hand may be linked to those
  bool nested = false;   // it runs on top of another
  RowTasks rows = {};    // of the last one
  GroupWaitsOfCalls waits;
  int32_t touches = 0;
  Touched touch[kMaxTouched];

  template <class Step>
  ProgramLinker(Run& r, const Program& p, const int64_t* s, const Memory* b, const Cursor& next,
                const int32_t& now, Step& runs)
      : Linker{link_tasks}, run(r), program(p), symbols(s), buffers(b), at(next), current(now),
        step([](void* job) { return (*static_cast<Step*>(job))(); }),
        usr(const_cast<void*>(static_cast<const void*>(&runs))) {}

  static bool link_tasks(Linker& self, const RowTasks* rows, void (*task)(void*, size_t), void* job,
                         bool* ok) {
    return static_cast<ProgramLinker&>(self).link(rows, task, job, ok);
  }

  bool link(const RowTasks* now, void (*task)(void*, size_t), void* job, bool* ok) {
    if (!linked) {
      if (nested || !now || current < 0 || !run.team || run.threads() < kLinkedThreads) return false;
      if (!now->more && !offer(*now)) return false;
      waits.begin(*now), touches = 0;
      if (!add(*now)) return false;
    } else if (!offered || !now || !follows(*now)) {
      return end(), false;
    } else {
      waits.next(*now);
      if (!add(*now)) return end(), false;
      waits.add();
    }
    run.team->link(*now, waits.waits(), !linked, task, job);
    rows = *now, ++linked;
    *ok = true;
    offered = now->more || offer(*now);
    if (now->more) return true;
    if (offered) {
      nested = true;
      *ok = step(usr);
      offered = nested = false;
    }
    return end(), true;
  }

 private:
  // Whether the next call may be linked to one with these tasks; it has as many rows.
  bool offer(const RowTasks& now) const {
    return linked + 1 < kMaxLinked && at.call < program.call_count &&
           may_be_linked(program, at.call) &&
           !has_barrier(program.calls[at.call], run.threads(), now.rows);
  }

  // Whether tasks may follow the last ones.
  bool follows(const RowTasks& now) const {
    if (rows.more) return linked < kMaxLinked;
    return now.image == rows.image && linked < kMaxLinked &&
           (now.image || (now.rows == rows.rows && (now.steps > 1 || now.all)));
  }

  // Adds what the call at hand touches, and what that waits for; false where there is no room, or a
  // view has no elements.
  bool add(const RowTasks& tasks) {
    const Call& call = program.calls[current];
    if (linked && (tasks.all || rows.more)) waits.wait_for_all(linked - 1);
    const int32_t before = touches;
    for (int32_t i = 0; i < call.view_count; ++i) {
      const View& view = call.views[i];
      TensorView box;
      if (view.kind == kNone || view.buffer < program.input_count) continue;  // nobody writes inputs
      if (touches == kMaxTouched || !find_view(run, call, current, i, symbols, buffers, &box))
        return false;
      for (int32_t axis = 0; axis < view.rank; ++axis)
        if (box.dims[axis] == 0) return false;
      Touched& now = touch[touches++];
      now = touched(view, box, line_access(call, i), tasks);
      now.call = linked;
      for (int32_t k = 0; k < before; ++k) wait_for(touch[k], now);
    }
    forget();
    return true;
  }

  // The newest call waits for what an older one does in the same memory.
  void wait_for(const Touched& old, const Touched& now) {
    int64_t down;
    if (waits.waits_for_all(old.call) || !meet(old, now)) return;
    if (!lines_agree(old, now, &down)) return waits.wait_for_all(old.call);
    waits.wait_for(old.call, old.of, now.of, down);
  }

  // Drops what was touched by calls that are over before any task of later ones.
  void forget() {
    int32_t left = 0;
    for (int32_t i = 0; i < touches; ++i)
      if (!waits.waits_for_all(touch[i].call)) {
        if (left < i) touch[left] = touch[i];
        ++left;
      }
    touches = left;
  }

  void end() {
    if (linked) linked = 0, run.team->finish_linked();
  }
};

}  // namespace tracea
