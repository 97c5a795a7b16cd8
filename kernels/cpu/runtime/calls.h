// The calls of a program in order.  Once one of them had work for several threads these stay for
// those that follow (runtime/team.h).
#pragma once
#include "runtime/turns.h"

namespace tracea {

// The next call, or the next loop.
struct Cursor {
  int32_t call, loop;
};

// What one parallel loop of the runtime's does: its first task the calls, the others follow.
template <class Calls>
struct Stretch {
  Team team;
  Run& run;
  Calls& calls;
  int32_t led;
  bool ok;
};

template <class Calls>
void stretch_task(void* usr, size_t) {
  Stretch<Calls>& stretch = *static_cast<Stretch<Calls>*>(usr);
  if (__atomic_exchange_n(&stretch.led, 1, __ATOMIC_ACQ_REL)) return stretch.team.follow();
  stretch.run.team = &stretch.team;
  stretch.ok = stretch.calls();
  stretch.run.team = nullptr;
  stretch.team.end();
}

template <class Calls>
bool run_in_team(Run& run, Calls calls) {
  Stretch<Calls> stretch = {{}, run, calls, 0, true};
  const int64_t threads = least(most(run.host.processors, threads_of(*run.host.crew)), kMaxTeam);
  const bool ran = run.parallel(threads, stretch_task<Calls>, &stretch);
  run.shared = false;
  return ran && stretch.ok;
}

// Runs every call; `each(index)` runs one.
template <class Each>
bool run_calls(Run& run, const Program& program, int64_t* symbols, Memory* buffers, Each each) {
  Cursor at = {};
  const auto step = [&] {
    const bool turns = at.loop < program.loop_count && program.loops[at.loop].first == at.call;
    if (!turns) return each(at.call++);
    at.call = program.loops[at.loop].last + 1;
    return run_loop(run, program, at.loop++, symbols, buffers, each);
  };
  const auto stretch = [&] {
    bool ok = true;
    while (ok && at.call < program.call_count && !run.team->thinned()) ok = step();
    return ok;
  };
  bool ok = true;
  while (ok && at.call < program.call_count) {
    const bool together = run.shared && threads_of(*run.host.crew) > 1;
    ok = together && at.call + 1 < program.call_count ? run_in_team(run, stretch) : step();
  }
  return ok;
}

}  // namespace tracea
