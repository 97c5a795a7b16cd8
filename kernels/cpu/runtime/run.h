// One execution of a program: ONNX Runtime's threads and memory as host loops see them, and
// views turned into pointers, with every bound checked.
#pragma once
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "runtime/ort_abi.h"
#include "runtime/core.h"
#include "runtime/debug.h"
#include "runtime/inputs.h"
#include "runtime/nvtx.h"
#include "runtime/thread_registry.h"
#include "runtime/plan.h"
#include "runtime/team.h"
#include "runtime/timeline.h"

namespace tracea {

constexpr int64_t kAlign = 64;
constexpr int64_t kHugePage = 2 * 1024 * 1024;
constexpr int64_t kWorthHugePages = 2 * kHugePage;  // less is found in the processor's own table

struct ViewCache;  // runtime/view_cache.h

struct Memory {
  char* data;
  int64_t count;  // elements
};

// What a run needs besides its program; fixed when the node is created.
struct Host {
  const OrtApi* api;
  const OrtMemoryInfo* memory;
  const tracea_isa_table* isa;
  int32_t processors;  // that it may use
  bool dims_by_reference;  // the runtime can lend a tensor's dimensions without allocating
  bool spins;              // threads may spin while they wait for each other
  int trace;               // where calls' times go, or kNoTrace
  int timeline;            // where tasks' times go, or kNoTrace
  const Nvtx* nvtx;        // ranges around its calls, or null
  DebugOptions debug;
  const char* label;       // the node's name there
  ThreadRegistry* registry;              // the threads that have run its tasks
  ViewCache** view_cache;  // two: resolved by the first run without and with linked calls
  const Memory* constants;  // its inputs that never change, where `data` is not null
  const ProcessorTopology* topology;  // how near processors are to each other, or null
};

// Links calls whose tasks wait for the rows that they read (runtime/linker.h).
struct Linker {
  // Runs the tasks of a call, and of calls behind it that may be linked to it; false where this call
  // cannot be linked: those before it are over then.  `ok` is whether all went well.
  bool (*link)(Linker& self, const RowTasks* rows, void (*task)(void*, size_t), void* job, bool* ok);
};

constexpr int kNoTrace = -1;
constexpr int64_t kTeamGrain = 8;  // handing work to a team takes that much less than waking it up
constexpr int64_t kTriedLines = 32;
constexpr int64_t kSmallArena = 16 * 1024;  // bytes of temps that need no allocator

// Packed weights that a later call reads: panels of `lines` cache lines, one after another.
struct WeightPrefetch {
  const float* from;
  int64_t panels, lines;
};

// What the slowest of several threads adds to a call: some share a core with others, and the fewer
// tasks a thread has, the fewer of them others can take.
constexpr double kUneven = 0.5;
inline double with_tail(int64_t rounds) { return 1 + kUneven / static_cast<double>(rounds); }

// Tasks of which some neighbours are one.
struct Neighbours {
  void (*task)(void*, size_t);
  void* job;
  int64_t tasks, together;
};

inline void neighbours_task(void* usr, size_t index) {
  const Neighbours& all = *static_cast<const Neighbours*>(usr);
  const int64_t begin = static_cast<int64_t>(index) * all.together;
  const int64_t end = min(all.tasks, begin + all.together);
  for (int64_t i = begin; i < end; ++i) all.task(all.job, static_cast<size_t>(i));
}

// Tasks that are watched, timed, or both.
struct WrappedTasks {
  WatchedTasks watched;
  TimedTasks timed;
};

struct Run : Outcome {
  const Host& host;
  OrtKernelContext* context;
  WeightPrefetch next_weights = {};  // of the next product
  OrtAllocator* allocator = nullptr;
  const ViewCache* view_cache = nullptr;  // of these symbols, or null
  bool alone = false;  // one of several threads: its tasks are its own
  bool shared = false;  // a call had more tasks than one
  int64_t most = INT32_MAX;  // threads, beside other runs
  Team* team = nullptr;  // who take them, if threads stay between calls
  Linker* linker = nullptr;  // where calls may be linked
  Timeline* timeline = nullptr;  // of a run whose tasks are timed
  bool timed = false;  // its calls are timed, one after another
  bool links = false;  // calls may be linked
  int64_t arena_bytes = 0;
  int64_t deadline = 0;  // in nanoseconds(), 0: none
  WrappedTasks kept[kMaxLinked];  // of linked tasks that run after parallel() has returned
  uint32_t keeps = 0;  // so many were needed

  Run(const Host& h, OrtKernelContext* c)
      : Outcome(h.api, h.dims_by_reference), host(h), context(c) {}
  ~Run() {
    if (allocator) ort::ReleaseAllocator(host.api, allocator);
  }

  // Those known to take tasks, as far as there are processors for them.
  int64_t threads() const { return min(threads_of(*host.registry), min(host.processors, most)); }

  // Parts into which work is divided evenly: as many as threads.  Where some processors are slower, a slow
  // one's task must take no longer than half of what the others do in the meantime: they come to its
  // other tasks too late otherwise.
  int64_t divisions() const {
    const int64_t count = threads();
    const int64_t slowness = count > 1 && host.topology ? host.topology->slowness : 1;
    return slowness > 1 ? 2 * count * slowness : count;
  }

  // task(job, i) for i in [0, tasks), on the session's threads.  A host loop that does nothing else,
  // and whose tasks compute `rows`, may return before they have run.
  bool parallel(int64_t tasks, void (*task)(void*, size_t), void* job,
                const RowTasks* rows = nullptr) {
    WrappedTasks own;
    WrappedTasks& wrapped = rows && rows->more ? kept[keeps++ % kMaxLinked] : own;
    wrapped.watched = {task, job, deadline};
    if (deadline) task = watched_task, job = &wrapped.watched;
    wrapped.timed = {task, job, timeline && tasks > 0 ? timeline->add(tasks) : nullptr};
    if (wrapped.timed.times) task = timed_task, job = &wrapped.timed;
    bool ok;
    if (linker && linker->link(*linker, rows, task, job, &ok)) return ok;
    for (int64_t i = 0; (alone || tasks == 1) && i < tasks; ++i) task(job, static_cast<size_t>(i));
    if (alone || tasks <= 1) return true;
    if (team) return team->share(tasks, task, job), true;
    shared = true;
    if (!__atomic_load_n(&host.registry->shared, __ATOMIC_RELAXED))
      __atomic_store_n(&host.registry->shared, 1, __ATOMIC_RELAXED);
    RegisteringTask outer = {task, job, pthread_self(), host.registry};
    return good(ort::KernelContext_ParallelFor(host.api, context, run_registering,
                                               static_cast<size_t>(tasks), size_t{0}, &outer));
  }

  // False once the deadline has passed; a call whose tasks were left out computed nothing.
  bool in_time(int32_t call, const char* name) {
    return !deadline || nanoseconds() <= deadline ||
           error.fail("The run took longer than TRACEA_TIMEOUT, %g s: it was stopped at call %d, %s.",
                      static_cast<double>(host.debug.timeout) * 1e-9, call, name);
  }

  // How much work is worth a task of its own, of what is worth waking a thread up.
  int64_t worth(int64_t grain) const { return team ? max(1, grain / kTeamGrain) : grain; }

  // Parts of about that much, but as many for each thread of a team.
  int64_t even(int64_t parts, int64_t tasks) const {
    return team ? min(tasks, ceil_div(parts, divisions()) * divisions()) : parts;
  }

  // Lines of a task, at least `worth`, of so many units of `lines` lines, that keep the threads
  // evenly busy: the one with most to do has as little as may be.
  int64_t even_lines(int64_t units, int64_t lines, int64_t worth) const {
    const int64_t most = min(max(ceil_div(units * lines, divisions()), worth), lines);
    int64_t best = most;
    double least = 0;
    for (int64_t each = max(max(1, min(worth, most)), most - kTriedLines); each <= most; ++each) {
      const int64_t rounds = ceil_div(units * ceil_div(lines, each), divisions());
      const double time = static_cast<double>(rounds * each) * with_tail(rounds);
      if (least == 0 || time < least) least = time, best = each;
    }
    return best;
  }

  // Neighbouring tasks that are one, where so many are worth waking a thread up.
  int64_t together(int64_t worthy, int64_t tasks) const {
    return ceil_div(tasks, even(ceil_div(tasks, worth(max(1, worthy))), tasks));
  }

  // As parallel(), where a thread takes so many neighbouring tasks at once as are worth waking it up.
  // `rows`: of tasks one by one.
  bool parallel_by(int64_t worthy, int64_t tasks, void (*task)(void*, size_t), void* job,
                   const RowTasks* rows = nullptr) {
    if (tasks <= 1) return parallel(tasks, task, job, rows);
    const int64_t each = together(worthy, tasks);
    if (each <= 1) return parallel(tasks, task, job, rows);
    Neighbours all = {task, job, tasks, each};
    RowTasks parts = {};
    if (rows) parts = *rows, parts.steps = ceil_div(tasks, each), parts.each = each;
    return parallel(ceil_div(tasks, each), neighbours_task, &all, rows ? &parts : nullptr);
  }
};

// Asks for huge pages, where the system gives them to those who ask: a program walks through all of
// its scratch once, and looking up one small page after another takes longer than a cache miss.
inline void ask_for_huge_pages(char* memory, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  madvise(memory, static_cast<size_t>(bytes / kHugePage * kHugePage), MADV_HUGEPAGE);
#else
  (void)memory, (void)bytes;
#endif
}

// Memory from the session's allocator, 64-byte aligned, for as long as the object lives.
class Scratch {
 public:
  explicit Scratch(Run& run) : run_(run) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (memory_) run_.good(ort::AllocatorFree(run_.host.api, run_.allocator, memory_));
  }

  char* take(int64_t bytes) {
    if (bytes < 0 || bytes > INT64_MAX / 4)
      return run_.error.fail("A node needs %lld bytes of scratch memory.",
                             static_cast<long long>(bytes)), nullptr;
    const OrtApi* api = run_.host.api;
    if (!run_.allocator && !run_.good(ort::KernelContext_GetAllocator(
                               api, run_.context, run_.host.memory, &run_.allocator)))
      return nullptr;
    const bool large = bytes >= kWorthHugePages;
    const int64_t align = large ? kHugePage : kAlign;
    if (!run_.good(ort::AllocatorAlloc(api, run_.allocator, static_cast<size_t>(bytes + align),
                                       &memory_)))
      return nullptr;
    if (!memory_)
      return run_.error.fail("There is no memory for %lld bytes of scratch.",
                             static_cast<long long>(bytes)), nullptr;
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory_), before = static_cast<uintptr_t>(align);
    char* aligned = reinterpret_cast<char*>((at + before - 1) & ~(before - 1));
    if (large) ask_for_huge_pages(aligned, bytes);
    return aligned;
  }

 private:
  Run& run_;
  void* memory_ = nullptr;
};

// An evaluated view.  `data` is null when the view is absent.
struct TensorView {
  char* data;
  int64_t dims[kMaxRank], strides[kMaxRank];

  float* f32() const { return reinterpret_cast<float*>(data); }
  bool is(int64_t d0) const { return dims[0] == d0; }
  bool is(int64_t d0, int64_t d1) const { return dims[0] == d0 && dims[1] == d1; }
  bool is(int64_t d0, int64_t d1, int64_t d2) const { return is(d0, d1) && dims[2] == d2; }
  bool is(int64_t d0, int64_t d1, int64_t d2, int64_t d3) const {
    return is(d0, d1, d2) && dims[3] == d3;
  }
};

inline bool misfit(Run& run, const char* kernel) {
  return run.error.fail("The views of a %s do not fit together.", kernel);
}

inline bool outside(Run& run, int32_t call, int32_t view) {
  return run.error.fail("View %d of call %d reaches outside its buffer.", view, call);
}

// Elements from one index of an axis to the next at most, also of axes of one element, so that kernels
// may multiply strides by small numbers.
constexpr int64_t kFarthest = int64_t{1} << 48;

// Fills `box`, and proves that every element of it lies inside the buffer; a result has no more
// elements than its buffer, which bounds the work of every host loop.
inline bool place(Run& run, const View& view, const int64_t* symbols, const Memory* buffers,
                  int32_t call, int32_t number, TensorView* box) {
  box->data = nullptr;
  if (view.kind == kNone) return true;
  const Memory& memory = buffers[view.buffer];
  int64_t low, span, elements = 1;
  bool fits = evaluate(view.offset, symbols, &low), empty = false;
  const int64_t offset = low;
  int64_t high = low;
  for (int32_t i = 0; fits && i < view.rank; ++i) {
    int64_t *dim = &box->dims[i], *stride = &box->strides[i];
    fits = evaluate(view.dims[i], symbols, dim) && evaluate(view.strides[i], symbols, stride) &&
           *dim >= 0 && *stride >= -kFarthest && *stride <= kFarthest;
    if (!fits || (empty = empty || *dim == 0)) continue;
    int64_t* edge = *stride < 0 ? &low : &high;
    fits = !__builtin_mul_overflow(*dim - 1, *stride, &span) &&
           !__builtin_add_overflow(*edge, span, edge) &&
           !(view.written && __builtin_mul_overflow(elements, *dim, &elements));
  }
  if (!fits) return outside(run, call, number);
  const int64_t size = element_size(view.type);
  if (empty) return box->data = memory.data, true;
  if (low < 0 || high >= memory.count || elements > memory.count)
    return outside(run, call, number);
  box->data = memory.data + offset * size;
  return true;
}

// Offsets of the temps in one arena, or -1 for its bytes when they are too many.  Each takes the
// lowest place that is free during its life, in the plan's order (ttg/arena_allocation.py).  Where calls are
// linked, tasks of later calls write while others still read.
inline int64_t lay_out(const Program& program, const int64_t* sizes, int64_t* offsets,
                       bool linked = false) {
  int64_t total = 0;
  int32_t by_offset[kMaxTemps], last[kMaxTemps];
  for (int32_t i = 0; i < program.temp_count; ++i)
    last[i] = linked ? last_linked(program, program.temps[i].last) : program.temps[i].last;
  for (int32_t i = 0; i < program.temp_count; ++i) {
    const Temp& temp = program.temps[i];
    int64_t at = 0;
    int32_t place = 0;
    for (int32_t k = 0; k < i; ++k) {
      const int32_t j = by_offset[k];
      const Temp& other = program.temps[j];
      if (offsets[j] >= at + sizes[i]) break;
      if (temp.first <= last[j] && other.first <= last[i] && at < offsets[j] + sizes[j])
        at = offsets[j] + sizes[j];
    }
    offsets[i] = at;
    if (at > INT64_MAX / 4 - sizes[i]) return -1;
    total = max(total, at + sizes[i]);
    while (place < i && offsets[by_offset[place]] <= at) ++place;
    for (int32_t k = i; k > place; --k) by_offset[k] = by_offset[k - 1];
    by_offset[place] = i;
  }
  return total;
}

}  // namespace tracea
