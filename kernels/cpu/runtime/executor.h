// Executor: runs a program's calls in order.  Once a call had work for several threads, these stay
// for the calls that follow (runtime/team.h); in later runs they come before the first call.
// Where there are several, they have no barrier between calls that are linked (runtime/linker.h).
#pragma once
#include "runtime/linker.h"
#include "runtime/loops.h"
#include "runtime/processor_shares.h"
#include "runtime/team_limit.h"

namespace tracea {

// A parallel loop of ONNX Runtime: its first task runs the calls, the other tasks follow.
template <class Calls>
struct ParallelRegion {
  Team team;
  Run& run;
  Calls& calls;
  Timeline* timeline;  // of the calls' tasks; the region's own are not timed
  bool watched;   // by team_limit
  int64_t ended;  // when its calls had run
  int32_t led;
  bool ok;
};

template <class Calls>
void region_task(void* usr, size_t) {
  ParallelRegion<Calls>& region = *static_cast<ParallelRegion<Calls>*>(usr);
  if (__atomic_exchange_n(&region.led, 1, __ATOMIC_ACQ_REL)) return region.team.follow();
  region.team.lead();
  region.run.team = &region.team, region.run.timeline = region.timeline;
  region.ok = region.calls();
  region.run.team = nullptr, region.run.timeline = nullptr;
  if (region.watched) region.ended = nanoseconds();
  region.team.end();
}

template <class Calls>
bool run_with_team(Run& run, Calls calls) {
  const int32_t processors = run.host.debug.processors ? 0 : run.host.processors;  // 0: as was asked for
  const bool watched = team_limit.watches(processors, processor_shares.taken());
  ParallelRegion<Calls> region = {
      Team(run.threads(), run.host.spins, run.host.topology), run, calls, run.timeline, watched, 0, 0, true};
  // More than there are processors for would wait for each other.
  const int64_t threads = min(min(run.host.processors, run.most), kMaxTeam);
  const int64_t began = watched ? nanoseconds() : 0;
  run.timeline = nullptr;
  const bool ran = run.parallel(threads, region_task<Calls>, &region);
  if (const int64_t now = watched && ran ? nanoseconds() : 0)
    team_limit.note(processors, processor_shares.taken(), now - began, now - region.ended, now);
  run.timeline = region.timeline;
  run.shared = false;
  return ran && region.ok;
}

// Whether threads may stay between calls.  Where they must not spin they sleep, if the system lets a
// word wake them; without, each call wakes up its own.
inline bool stays_together(const Run& run) { return run.host.spins || kSleepsOnWords; }

// Whether calls of a run may be linked: where several threads stay with it, and nobody looks at calls
// one by one.
inline bool links_calls(const Run& run) {
  return stays_together(run) && !run.host.debug.guard && !run.host.debug.barriers &&
         run.threads() >= kLinkedThreads;
}

// Runs every call; `each(index)` runs one.  Beside other runs it has a share of the processors,
// as far as their threads come in time (runtime/team_limit.h).
template <class Each>
bool execute(Run& run, const Program& program, int64_t* symbols, Memory* buffers, Each each) {
  Cursor at = {};
  int32_t current = -1;  // the call at hand, or -1 in a loop
  const auto step = [&] {
    const bool at_loop = at.loop < program.loop_count && program.loops[at.loop].first == at.call;
    current = at_loop ? -1 : at.call;
    if (!at_loop) return each(at.call++);
    at.call = program.loops[at.loop].last + 1;
    return run_loop(run, program, at.loop++, symbols, buffers, each);
  };
  ProgramLinker linker(run, program, symbols, buffers, at, current, step);
  if (run.links) run.linker = &linker;
  const auto region = [&] {
    bool ok = true;
    while (ok && at.call < program.call_count && !run.team->thinned()) ok = step();
    return ok;
  };
  bool ok = true;
  const int64_t known = run.alone ? 1 : threads_of(*run.host.registry);
  const int32_t usable = run.host.debug.processors ? run.host.processors : team_limit.of(run.host.processors);
  const int32_t share = processor_shares.take(known, usable);
  const bool limits = known > 1 || run.host.processors == 1;
  if (limits && share) run.most = share, run.alone = share == 1;
  run.shared = !run.alone && __atomic_load_n(&run.host.registry->shared, __ATOMIC_RELAXED);
  while (ok && at.call < program.call_count) {
    const bool together = run.shared && run.threads() > 1 && stays_together(run);
    const bool limited = run.threads() < threads_of(*run.host.registry);
    const bool last = at.call + 1 == program.call_count;
    ok = together && (limited || !last) ? run_with_team(run, region) : step();
  }
  run.linker = nullptr;
  processor_shares.give_back(share);
  return ok;
}

}  // namespace tracea
