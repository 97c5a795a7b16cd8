// When blocks of a run's kernels ran, written to the file that TRACEA_TIMELINE names: a line for each
// run of a node.  Only libraries that are built with TRACEA_TASK_TIMES=1 have kernels that record it.
// After some runs of equal sizes as many follow that are not recorded, which tell what that costs.
#pragma once
#include <stdio.h>
#include <time.h>

#include "runtime/run.h"

namespace tracea {

constexpr int64_t kMostRecorded = 32;  // runs of a layout that are recorded

struct BlockRecord {
  uint64_t begin, end;  // ns
  uint64_t processor, unused;
};

inline int64_t blocks_of(const Ready& r) {
  return r.parameters ? int64_t{r.grid[0]} * r.grid[1] * r.grid[2] : 0;
}

// Has launches record their blocks from an address on; 0: no longer.
inline bool record_at(Error& error, const Shared& s, const Layout& l, cu::Address at) {
  const Program& p = *s.program;
  for (int32_t i = 0; i < p.launch_count; ++i) {
    const Ready& r = l.launches[i];
    if (!r.parameters) continue;
    const BlockTimes times = {at, static_cast<int32_t>(r.grid[0]), static_cast<int32_t>(r.grid[1])};
    memcpy(r.parameters[p.launches[i].count], &times, sizeof times);
    if (at) at += static_cast<cu::Address>(blocks_of(r)) * sizeof(BlockRecord);
    const cu::KernelNode node = node_of(r);
    if (l.exec && !good(error, gpu.driver.update_kernel(l.exec, l.nodes[i], &node), "change a graph"))
      return false;
  }
  return true;
}

// Starts recording before a layout's first run, and ends it after the last one to record.
inline bool record_blocks(Error& error, const Shared& s, Layout& l) {
  const char* file = getenv("TRACEA_TIMELINE");
  if (!kTimed || !file || !*file) return true;
  if (l.records) return l.runs != kMostRecorded || record_at(error, s, l, 0);
  for (int32_t i = 0; i < s.program->launch_count; ++i) l.record_count += blocks_of(l.launches[i]);
  const int64_t bytes = max(l.record_count, 1) * static_cast<int64_t>(sizeof(BlockRecord));
  return allocate(error, bytes, &l.records) && record_at(error, s, l, l.records);
}

inline int64_t nanoseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000 + t.tv_nsec;
}

// Writes name, kernels, symbols, ns of the run by the host's clock, and of each block, if they are
// recorded: launch, multiprocessor, begin, end.
inline void write_blocks(FILE* out, const Shared& s, const Layout& l, const BlockRecord* records,
                         const char* name, int64_t took) {
  const Program& p = *s.program;
  uint64_t first = UINT64_MAX;
  for (int64_t i = 0; records && i < l.record_count; ++i)
    first = records[i].begin < first ? records[i].begin : first;
  fprintf(out, "%s\t", name);
  for (int32_t i = 0; i < p.launch_count; ++i)
    if (blocks_of(l.launches[i]))
      fprintf(out, "%s,", tracea_gpu_table.kernels[p.launches[i].kernel].images[s.device->level].symbol);
  fprintf(out, "\t");
  for (int32_t i = 0; i < p.symbol_count; ++i)
    fprintf(out, "%lld,", static_cast<long long>(l.symbols[i]));
  fprintf(out, "\t0,%lld\t", static_cast<long long>(took));
  for (int32_t i = 0, call = 0; records && i < p.launch_count; ++i) {
    const int64_t count = blocks_of(l.launches[i]);
    for (int64_t k = 0; k < count; ++k, ++records)
      fprintf(out, "%d,%llu,%llu,%llu,", call, static_cast<unsigned long long>(records->processor),
              static_cast<unsigned long long>(records->begin - first),
              static_cast<unsigned long long>(records->end - first));
    call += count > 0;
  }
  fprintf(out, "\n");
}

// Writes the line of a run that has ended and took so many ns.
inline bool write_timeline(Error& error, const Shared& s, const Context& c, const Layout& l,
                           const char* name, int64_t took) {
  if (!kTimed || !l.records || l.runs > 2 * kMostRecorded) return true;
  const size_t bytes = static_cast<size_t>(l.record_count) * sizeof(BlockRecord);
  const bool recorded = l.runs <= kMostRecorded;
  BlockRecord* records = recorded ? static_cast<BlockRecord*>(malloc(bytes + 1)) : nullptr;
  bool ok = !recorded || records || error.fail("There is no memory for a timeline.");
  if (ok && recorded && bytes)
    ok = good(error, gpu.driver.download_async(records, l.records, bytes, c.stream),
              "give a timeline") &&
         good(error, gpu.driver.wait_for_stream(c.stream), "give a timeline");
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  Lock lock(mutex);
  FILE* out = ok ? fopen(getenv("TRACEA_TIMELINE"), "a") : nullptr;
  if (ok && !out) ok = error.fail("The file of TRACEA_TIMELINE cannot be written.");
  if (out) write_blocks(out, s, l, records, name, took), fclose(out);
  return free(records), ok;
}

}  // namespace tracea
