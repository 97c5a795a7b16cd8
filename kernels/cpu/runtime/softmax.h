// The host loop of softmax: over any axis, with an elementwise chain in front that fills the result,
// tile by tile.
#pragma once
#include "runtime/axes.h"

namespace tracea {

struct SoftmaxJob : Planes {
  tracea_softmax_fn softmax;
  float* y;
  int64_t block, blocks, outer, chunk;  // rows or columns of a block; blocks of an outer index
  int32_t log;
};

inline void softmax_task(void* usr, size_t index) {
  const SoftmaxJob& job = *static_cast<const SoftmaxJob*>(usr);
  const int64_t kept = job.down ? job.cols : job.rows;
  const int64_t first = static_cast<int64_t>(index) * job.chunk;
  const int64_t end = min(job.outer * job.blocks, first + job.chunk);
  const int32_t result = job.views - 1;
  for (int64_t block = first; block < end; ++block) {
    const int64_t at = block % job.blocks * job.block, count = min(job.block, kept - at);
    int64_t from[kMaxChainViews];
    for (int32_t v = 0; v < job.views; ++v)
      from[v] = job.axes.offset(false, v, block / job.blocks) +
                at * (job.down ? job.col_stride : job.row_stride)[v];
    tracea_softmax_tile tile;
    tile.rows = job.down ? job.rows : count;
    tile.cols = job.down ? count : job.cols;
    tile.y = job.y + from[result], tile.y_stride = job.row_stride[result];
    tile.x = job.x + from[0], tile.x_stride = job.row_stride[0];
    tile.log = job.log;
    if (job.prologue.type) {
      job.prologue.fill(from, job.row_stride, tile.rows, tile.cols, tile.y, tile.y_stride);
      tile.x = tile.y, tile.x_stride = tile.y_stride;
    }
    job.softmax(&tile);
  }
}

inline bool check_softmax(Signature& call) {
  return call.integer(softmax_call::kAxis) < call.rank(call.view_count() - 1) ||
         call.fail("an axis it does not have");
}

inline bool run_softmax(Run& run, const Call& call, const TensorView* views) {
  const int32_t last = call.view_count - 1, rank = call.views[last].rank;
  bool empty = false;
  for (int32_t axis = 0; axis < rank; ++axis)
    for (int32_t v = 0; v <= last; ++v) {
      if (views[v].dims[axis] != views[last].dims[axis])
        return run.error.fail("The views of a softmax differ in size at axis %d.", axis);
      empty = empty || views[v].dims[axis] == 0;
    }
  if (empty) return true;
  SoftmaxJob job = {};
  const int64_t special = int64_t{1} << call.ints[softmax_call::kAxis];
  job.begin(run, call, views);
  job.y = views[last].f32();
  if (!job.fold(views, rank, special, true) || !job.writes_densely()) {
    // The chain was compiled for other strides: it runs on its own.
    if (!job.prologue.type || !apply_chain(run, call.chain, views, rank))
      return run.error.fail("A softmax's views do not lie densely.");
    const TensorView both[] = {views[last], views[last]};
    job.prologue = {};
    job.views = 2;
    job.x = job.y;
    if (!job.fold(both, rank, special, true) || !job.writes_densely())
      return run.error.fail("A softmax's result does not lie densely.");
  }
  job.softmax = job.down ? run.host.isa->softmax_columns : run.host.isa->softmax_rows;
  job.log = static_cast<int32_t>(call.ints[softmax_call::kLog]);
  const int64_t kept = job.down ? job.cols : job.rows, along = job.down ? job.rows : job.cols;
  const int64_t fits = max(4 * kTile / along, 1);  // in the second cache, with room to spare
  job.block = min(kept, job.down ? ceil_div(fits, 64) * 64 : ceil_div(fits, 4) * 4);
  job.blocks = ceil_div(kept, job.block);
  job.outer = job.axes.size(false);
  job.chunk = max(kGrain / (along * job.block), 1);
  return run.parallel(ceil_div(job.outer * job.blocks, job.chunk), softmax_task, &job);
}

}  // namespace tracea
