// Convolutions over blocked values with few output channels, a line at a time: most lanes of a
// block of outputs would be missing, so lanes are input channels instead.
#pragma once
#include "runtime/blocked.h"

namespace tracea {

constexpr int64_t kNarrowTask = 64 * 1024;  // multiply-adds of vectors of 16
constexpr int64_t kNarrowEnd = 8;           // the same, of summing one vector and storing it

struct NarrowJob {
  tracea_conv_fn conv;
  tracea_conv_tile tap;
  const PostOps* post_ops;
  const TensorView* x;
  int64_t x_image, x_step_row;
  int64_t rows, tasks;  // lines per task; tasks per image
};

// Whether filters are few enough for it to take less than a block of 16 output channels does.
inline bool narrow_pays(int64_t filters, int64_t channels, int64_t blocks, int64_t taps) {
  return filters <= TRACEA_NARROW && filters * (blocks * taps + kNarrowEnd) < channels * taps;
}

// Filters [block][row][col][16 (in)][16 (out)] as [block][row][col][filter][16 (in)].
inline void transpose_filters(const float* from, float* to, int64_t steps, int64_t filters) {
  for (int64_t step = 0; step < steps; ++step, from += kLanes * kLanes)
    for (int64_t f = 0; f < filters; ++f)
      for (int64_t i = 0; i < kLanes; ++i) *to++ = from[i * kLanes + f];
}

inline void narrow_task(void* usr, size_t index) {
  const NarrowJob& job = *static_cast<const NarrowJob*>(usr);
  const int64_t task = static_cast<int64_t>(index), n = task / job.tasks;
  const PostOps& post_ops = *job.post_ops;
  const Canvas& y = post_ops.canvas;
  const int64_t begin = task % job.tasks * job.rows, end = min(y.height, begin + job.rows);
  tracea_conv_tile tile = job.tap;
  const float* x = job.x->f32() + n * job.x_image;
  for (int64_t row = begin; row < end; ++row) {
    tile.x = x + row * job.x_step_row;
    tile.y = y.row(n, 0, row);
    tile.add = post_ops.add_at(n, 0, row, 0);
    job.conv(&tile);
    if (post_ops.needed) post_ops.line(n, 0, row, 0, y.width);
  }
}

// `tap` is laid out as for whole blocks; its filters are transposed first.
inline bool run_narrow(Run& run, NarrowJob& job, int64_t filters, int64_t images) {
  tracea_conv_tile& tap = job.tap;
  const Canvas& y = job.post_ops->canvas;
  const int64_t steps = tap.blocks * tap.rows * tap.cols;
  Scratch scratch(run);
  char* memory = scratch.take(steps * filters * kLanes * static_cast<int64_t>(sizeof(float)));
  if (!memory) return false;
  float* transposed = reinterpret_cast<float*>(memory);
  transpose_filters(tap.w, transposed, steps, filters);
  tap.w = transposed, tap.nv = static_cast<int32_t>(filters);
  tap.pixels = static_cast<int32_t>(y.width);
  tap.lo = job.post_ops->lo, tap.hi = job.post_ops->hi;
  job.rows = min(y.height, max(1, kNarrowTask / (y.width * steps * filters)));
  job.tasks = ceil_div(y.height, job.rows);
  return run.parallel(images * job.tasks, narrow_task, &job);
}

}  // namespace tracea
