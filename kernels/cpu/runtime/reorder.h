// Between plain and blocked values, and the halo of a value that another call wrote.
#pragma once
#include "runtime/blocked.h"
#include "runtime/partition.h"
#include "runtime/rows.h"

namespace tracea {

struct ReorderJob {
  tracea_reorder_fn turn;
  const TensorView *plain, *blocks;  // the blocked side without its halo
  const Canvas* canvas;       // of `block` only
  LinePartition partition;
};

inline void reorder_task(void* usr, size_t index) {
  const ReorderJob& job = *static_cast<const ReorderJob*>(usr);
  const int64_t *s = job.blocks->strides, *p = job.plain->strides;
  const int64_t* dims = job.plain->dims;
  const auto [n, block, first, last] = job.partition.at(static_cast<int64_t>(index));
  tracea_reorder_tile tile = {};
  tile.pixels = dims[3];
  tile.channels = min(kLanes, dims[1] - block * kLanes);
  tile.channel = p[1], tile.pixel = p[3];
  for (int64_t row = first; row < last; ++row) {
    tile.blocked = job.canvas ? job.canvas->row(n, block, row)
                              : job.blocks->f32() + n * s[0] + block * s[1] + row * s[2];
    tile.plain = job.plain->f32() + n * p[0] + block * kLanes * p[1] + row * p[2];
    job.turn(&tile);
    if (job.canvas) job.canvas->clear(n, block, row, 1, 0, tile.pixels);
  }
}

inline bool run_turn(Run& run, ReorderJob& job) {
  const int64_t* dims = job.plain->dims;
  const int64_t blocks = job.blocks->dims[1], rows = kGrain / kLanes / dims[3];
  job.partition = LinePartition(run, dims[0], blocks, dims[2], dims[3], rows);
  const int64_t together = kGrain / kLanes / (job.partition.rows * dims[3]);
  return run.parallel_by(together, dims[0] * blocks * job.partition.each, reorder_task, &job);
}

// Whether a plain value has the sizes of a blocked one with `last` channels in its last block.
inline bool agrees(const TensorView& plain, const TensorView& blocks, int64_t height, int64_t width,
                   int64_t last) {
  return plain.is(blocks.dims[0], (blocks.dims[1] - 1) * kLanes + last) &&
         plain.dims[2] == height && plain.dims[3] == width;
}

inline bool run_reorder_to_nchw16c(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1];
  Canvas canvas;
  if (!open_canvas(y, call.ints + reorder_to_nchw16c_call::kHalo, &canvas) ||
      !agrees(x, y, canvas.height, canvas.width, call.ints[reorder_to_nchw16c_call::kTail]))
    return misfit(run, "reorder_to_nchw16c");
  if (canvas.bare()) return true;
  ReorderJob job = {run.host.isa->reorder_to_nchw16c, &x, &y, &canvas, {}};
  return run_turn(run, job);
}

inline bool run_reorder_to_nchw(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1];
  if (!blocked(x) || !agrees(y, x, x.dims[2], x.dims[3], call.ints[reorder_to_nchw_call::kTail]))
    return misfit(run, "reorder_to_nchw");
  if (empty(y, 4)) return true;
  ReorderJob job = {run.host.isa->reorder_to_nchw, &y, &x, nullptr, {}};
  return run_turn(run, job);
}

// ---- halo --------------------------------------------------------------------------------------

inline bool run_zero_pad(Run& run, const Call& call, const TensorView* views) {
  Canvas y;
  if (empty(views[0], 5)) return true;
  if (!open_canvas(views[0], call.ints + zero_pad_call::kHalo, &y, call.views[0].type, true))
    return misfit(run, "zero_pad");
  if (y.bare()) return true;
  for (int64_t n = 0; n < views[0].dims[0]; ++n)
    for (int64_t block = 0; block < y.blocks; ++block)
      y.clear(n, block, 0, y.height, 0, y.width);
  return true;
}

}  // namespace tracea
