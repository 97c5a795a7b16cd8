// The host loop of ArgMax and ArgMin: along any axis, with an elementwise chain in front that fills
// tiles.
//
// Each task finds a block of results.  What lies along the axis is never cut between tasks.
#pragma once
#include "runtime/axes.h"

namespace tracea {

constexpr int64_t kFound = 1024;  // results of a block
constexpr int64_t kSearched = 7;  // rows of columns at once: more, a power of two apart, would
                                  // push each other's next lines out of the caches

struct ArgReduceJob : Planes {
  tracea_arg_reduce_fn find;
  int64_t* y;
  int64_t block, step;           // results of a block; elements along the axis of a tile
  int64_t blocks, outer, chunk;  // blocks of one outer index; outer indices; blocks of a task
  int32_t least, latest;
};

// Results [at, at + count) of outer index `outer`.
inline void arg_reduce_block(const ArgReduceJob& job, int64_t outer, int64_t at, int64_t count) {
  alignas(64) float filled[kTile];
  float best[kFound];
  int32_t place[kFound];
  const int64_t along = job.down ? job.rows : job.cols;
  const int32_t result = job.views - 1;
  int64_t base[kMaxChainViews], from[kMaxChainViews];
  for (int32_t v = 0; v < job.views; ++v)
    base[v] = job.axes.offset(false, v, outer) + at * (job.down ? job.col_stride : job.row_stride)[v];
  tracea_arg_reduce_tile tile;
  tile.best = best, tile.place = place;
  tile.least = job.least, tile.latest = job.latest;
  tile.y = job.y + base[result], tile.y_stride = job.row_stride[result];
  for (int64_t begin = 0; begin < along; begin += job.step) {
    const int64_t size = min(job.step, along - begin);
    for (int32_t v = 0; v < result; ++v)
      from[v] = base[v] + begin * (job.down ? job.row_stride : job.col_stride)[v];
    tile.rows = job.down ? size : count;
    tile.cols = job.down ? count : size;
    tile.begin = static_cast<int32_t>(begin);
    tile.first = begin == 0, tile.last = begin + size == along;
    tile.x = job.x + from[0], tile.x_stride = job.row_stride[0];
    if (job.prologue.type) {
      job.prologue.fill(from, job.row_stride, tile.rows, tile.cols, filled, tile.cols);
      tile.x = filled, tile.x_stride = tile.cols;
    }
    job.find(&tile);
  }
}

inline void arg_reduce_task(void* usr, size_t index) {
  const ArgReduceJob& job = *static_cast<const ArgReduceJob*>(usr);
  const int64_t kept = job.down ? job.cols : job.rows;
  const int64_t first = static_cast<int64_t>(index) * job.chunk;
  const int64_t end = min(job.outer * job.blocks, first + job.chunk);
  for (int64_t block = first; block < end; ++block) {
    const int64_t at = block % job.blocks * job.block;
    arg_reduce_block(job, block / job.blocks, at, min(job.block, kept - at));
  }
}

inline void divide_search(ArgReduceJob& job) {
  const int64_t kept = job.down ? job.cols : job.rows, along = job.down ? job.rows : job.cols;
  const bool fills = job.prologue.type != nullptr;
  job.step = along;
  if (job.down) {
    job.block = min(kept, fills ? 128 : kFound);
    job.step = min(along, fills ? kTile / job.block : kSearched);
  } else {
    if (fills) job.step = min(along, kTile);
    const int64_t wanted = max(fills ? kTile / job.step : kGrain / along, 1);
    job.block = min(kept, min(kFound, wanted));
  }
  job.blocks = ceil_div(kept, job.block);
  job.outer = job.axes.size(false);
  job.chunk = max(kGrain / (along * job.block), 1);
}

inline bool check_arg_reduce(Signature& call) {
  return call.integer(arg_reduce_call::kAxis) < call.rank(call.view_count() - 1) ||
         call.fail("an axis it does not have");
}

inline bool run_arg_reduce(Run& run, const Call& call, const TensorView* views) {
  const int32_t last = call.view_count - 1, rank = call.views[last].rank;
  const int64_t special = int64_t{1} << call.ints[arg_reduce_call::kAxis];
  bool no_result = false, no_element = false;
  if (!sizes_agree(call, views, special, &no_result, &no_element))
    return run.error.fail("The views of an ArgMax do not fit together.");
  if (no_result) return true;
  const int64_t along = views[0].dims[call.ints[arg_reduce_call::kAxis]];
  if (along < 1 || along > INT32_MAX)
    return run.error.fail("An ArgMax chooses from 1 .. 2^31 - 1 elements, here there are %lld.",
                          static_cast<long long>(along));
  ArgReduceJob job = {};
  Scratch dense(run);
  job.begin(run, call, views);
  if (!job.fold(views, rank, special, true)) {
    if (!job.prologue.type) return run.error.fail("An ArgMax's operand does not lie densely.");
    if (!fold_apart(job, run, dense, call, views, rank, special, true)) return false;
  }
  job.find = job.down ? run.host.isa->arg_reduce_columns : run.host.isa->arg_reduce_rows;
  job.y = reinterpret_cast<int64_t*>(views[last].data);
  job.least = static_cast<int32_t>(call.ints[arg_reduce_call::kSmallest]);
  job.latest = static_cast<int32_t>(call.ints[arg_reduce_call::kLast]);
  if (job.down && !job.writes_densely())
    return run.error.fail("An ArgMax's result does not lie densely.");
  divide_search(job);
  return run.parallel(ceil_div(job.outer * job.blocks, job.chunk), arg_reduce_task, &job);
}

}  // namespace tracea
