// Pooling of blocked values.  Windows are clipped to the image: a halo is never read.
#pragma once
#include "runtime/blocked.h"
#include "runtime/conv_first_layer.h"
#include "runtime/partition.h"

namespace tracea {

constexpr int64_t kPoolTask = 64 * 1024;   // 16-wide vectors that one task reduces
constexpr int64_t kPoolUnits = 16 * 1024;  // the same limit for a task that takes whole channel blocks

struct PoolJob {
  tracea_pool_fn pool;
  Canvas y;
  const TensorView* x;
  int64_t strides[4];    // of x, in floats
  bool average, padding;  // padding counts
  int64_t kernel[2], stride[2], dilation[2], before[2];  // by axis: H, W
  LinePartition pieces;
};

// Taps of output `at` along an axis, and how many of them count in an average.
struct Window {
  Taps taps;
  int64_t first, counted;  // input of the first tap
};
inline Window window_of(const PoolJob& job, int axis, int64_t at) {
  const int64_t begin = at * job.stride[axis] - job.before[axis], dilation = job.dilation[axis];
  const int64_t size = job.x->dims[2 + axis], taps = job.kernel[axis];
  const Taps in = inside(begin, taps, dilation, size);
  return {in, begin + in.first * dilation, job.padding ? taps : in.end - in.first};
}

inline void pool_line(const PoolJob& job, int64_t n, int64_t block, int64_t row) {
  const int64_t *s = job.strides, lanes = job.y.lanes;
  const Window high = window_of(job, 0, row);
  const float* x =
      job.x->f32() + n * s[0] + block_at(block, s[1], job.y.nchw32c) + high.first * s[2];
  tracea_pool_tile tile = {};
  tile.rows = high.taps.end - high.taps.first;
  tile.x_row = job.dilation[0] * s[2], tile.x_col = job.dilation[1] * lanes;
  tile.x_step = job.stride[1] * lanes;
  tile.average = job.average, tile.y_step = lanes;
  for (int64_t col = 0; col < job.y.width; col += tile.pixels) {
    const Window wide = window_of(job, 1, col);
    const int64_t taps = wide.taps.end - wide.taps.first;
    tile.pixels = 1;
    if (taps == job.kernel[1]) {  // as are those of every output up to the right edge
      const int64_t room = job.x->dims[3] - 1 - wide.first - (taps - 1) * job.dilation[1];
      tile.pixels = min(job.y.width - col, room / job.stride[1] + 1);
    }
    tile.cols = taps;
    if (taps == 0) tile.rows = 0;
    const int64_t counted = max(1, high.counted * wide.counted);
    tile.scale = 1.0f / static_cast<float>(counted);
    tile.x = tile.rows ? x + wide.first * lanes : job.x->f32();
    tile.y = job.y.at(n, block, row, col);
    job.pool(&tile);
    tile.rows = high.taps.end - high.taps.first;
  }
  job.y.clear(n, block, row, 1, 0, job.y.width);
}

inline void pool_task(void* usr, size_t index) {
  const PoolJob& job = *static_cast<const PoolJob*>(usr);
  const LineRange piece = job.pieces.at(static_cast<int64_t>(index));
  for (int64_t row = piece.first; row < piece.last; ++row)
    pool_line(job, piece.n, piece.block, row);
}

inline bool run_pool(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1];
  PoolJob job = {};
  if (!open_canvas(y, call.ints + pool_call::kHalo, &job.y, call.views[1].type, true) ||
      !(job.y.nchw32c ? is_nchw32c(x) : blocked(x)) || !x.is(y.dims[0], y.dims[1]) ||
      !steps_of(x, lanes_of(call.views[1].type), job.strides))
    return misfit(run, "pool");
  if (job.y.bare()) return true;
  if (empty(x, 5)) return misfit(run, "pool");
  job.pool = job.y.rounds() ? run.host.isa->pool_bf16 : run.host.isa->pool;
  job.x = &x;
  const int64_t kind = call.ints[pool_call::kKind];
  job.average = kind != pool_call::kKindMax, job.padding = kind == pool_call::kKindAverage;
  for (int axis = 0; axis < 2; ++axis) {
    job.kernel[axis] = call.ints[pool_call::kKernel + axis];
    job.stride[axis] = call.ints[pool_call::kStrides + axis];
    job.dilation[axis] = call.ints[pool_call::kDilations + axis];
    job.before[axis] = call.ints[pool_call::kPads + axis];
  }
  const int64_t taps = min(job.kernel[0], x.dims[2]) * min(job.kernel[1], x.dims[3]);
  const int64_t line = job.y.width * taps;
  job.pieces = LinePartition(run, y.dims[0], job.y.blocks, job.y.height, job.y.width, kPoolTask / line);
  const int64_t together = kPoolUnits / (job.pieces.rows * line);
  const RowTasks lines = job.pieces.tasks();
  return run.parallel_by(together, y.dims[0] * job.y.blocks * job.pieces.each, pool_task, &job,
                         y.dims[0] == 1 ? &lines : nullptr);
}

// ---- over the whole image ----------------------------------------------------------------------

struct GlobalPoolJob {
  tracea_pool_fn pool;
  const TensorView *x, *y;
  bool average;
  int64_t blocks;  // of an item
};

inline void global_pool_task(void* usr, size_t index) {
  const GlobalPoolJob& job = *static_cast<const GlobalPoolJob*>(usr);
  const int64_t at = static_cast<int64_t>(index), n = at / job.blocks, block = at % job.blocks;
  const int64_t *s = job.x->strides, height = job.x->dims[2], width = job.x->dims[3];
  float joined[kLanes], *y = job.y->f32() + n * job.y->strides[0] + block * kLanes;
  tracea_pool_tile tile = {};
  tile.rows = height, tile.cols = width, tile.pixels = 1;
  tile.x = job.x->f32() + n * s[0] + block * s[1];
  tile.x_row = s[2], tile.x_col = kLanes;
  tile.y = joined;
  tile.scale = 1.0f / static_cast<float>(height * width);
  tile.average = job.average;
  job.pool(&tile);
  const int64_t channels = min(kLanes, job.y->dims[1] - block * kLanes);
  memcpy(y, joined, static_cast<size_t>(channels) * sizeof(float));
}

inline bool run_global_pool(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1];
  const bool average = call.ints[global_pool_call::kKind] == global_pool_call::kKindAverage;
  GlobalPoolJob job = {run.host.isa->pool, &x, &y, average, x.dims[1]};
  if (empty(y, 2)) return true;
  if (!blocked(x) || empty(x, 5) || x.dims[0] != y.dims[0] ||
      y.dims[1] != (x.dims[1] - 1) * kLanes + call.ints[global_pool_call::kTail] ||
      (y.dims[1] > 1 && y.strides[1] != 1))
    return misfit(run, "global_pool");
  const int64_t together = kPoolUnits / (x.dims[2] * x.dims[3]);
  return run.parallel_by(together, y.dims[0] * job.blocks, global_pool_task, &job);
}

}  // namespace tracea
