// Resizing of blocked values, linear or to the nearest, in ONNX Runtime's arithmetic: positions
// are float32.
#pragma once
#include "runtime/blocked.h"

namespace tracea {

constexpr int64_t kResizeTask = 16 * 1024;  // vectors of 16 made by one task, about
constexpr int64_t kResizeRun = 128;         // positions of a line whose neighbours are kept

struct ResizeJob {
  tracea_resize_fn resize;
  Canvas y;
  const TensorView* x;
  int64_t how, blocks, rows, tasks;  // rows per task; tasks per image
  float scale[2];                    // by axis: H, W
};

// Two neighbours along an axis, and how near a place is to the second.
struct Between {
  int64_t low, high;
  float share;
};
inline Between between(const ResizeJob& job, int axis, int64_t index, int64_t count) {
  const int64_t last = job.x->dims[2 + axis] - 1;
  const float at = static_cast<float>(index);
  const bool corners = job.how == resize_call::kCoordinatesAlignCorners;
  const bool nearest = job.how == resize_call::kCoordinatesNearest;
  float place;
  if (count == 1 && (corners || job.how == resize_call::kCoordinatesPytorchHalfPixel))
    place = 0.0f;
  else if (corners)
    place = at * static_cast<float>(last) / static_cast<float>(count - 1);
  else if (nearest || job.how == resize_call::kCoordinatesAsymmetric)
    place = at / job.scale[axis];
  else place = (at + 0.5f) / job.scale[axis] - 0.5f;
  place = place > 0.0f ? place : 0.0f;
  const int64_t low = place < static_cast<float>(last) ? static_cast<int64_t>(place) : last;
  const float share = place - static_cast<float>(low);
  return {low, min(low + 1, last), low == last ? 0.0f : share};
}

inline void resize_task(void* usr, size_t index) {
  const ResizeJob& job = *static_cast<const ResizeJob*>(usr);
  const int64_t* s = job.x->strides;
  const int64_t n = static_cast<int64_t>(index) / job.tasks;
  const int64_t first = static_cast<int64_t>(index) % job.tasks * job.rows;
  const int64_t last = min(job.y.height, first + job.rows);
  int64_t low[kResizeRun], high[kResizeRun];
  float share[kResizeRun];
  tracea_resize_tile tile = {};
  tile.low = low, tile.high = high;
  tile.share = job.how == resize_call::kCoordinatesNearest ? nullptr : share;
  for (int64_t col = 0; col < job.y.width; col += tile.pixels) {
    tile.pixels = min(kResizeRun, job.y.width - col);
    for (int64_t p = 0; p < tile.pixels; ++p) {
      const Between wide = between(job, 1, col + p, job.y.width);
      low[p] = wide.low * kLanes, high[p] = wide.high * kLanes, share[p] = wide.share;
    }
    for (int64_t block = 0; block < job.blocks; ++block)
      for (int64_t row = first; row < last; ++row) {
        const Between tall = between(job, 0, row, job.y.height);
        const float* x = job.x->f32() + n * s[0] + block * s[1];
        tile.a = x + tall.low * s[2], tile.b = x + tall.high * s[2], tile.down = tall.share;
        tile.y = job.y.at(n, block, row, col);
        job.resize(&tile);
        job.y.clear(n, block, row, 1, col, col + tile.pixels);
      }
  }
}

inline bool run_resize(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1];
  ResizeJob job = {};
  if (!open_canvas(y, call.ints + resize_call::kHalo, &job.y) || !blocked(x) ||
      !x.is(y.dims[0], y.dims[1]))
    return misfit(run, "resize");
  if (job.y.bare()) return true;
  if (empty(x, 5)) return misfit(run, "resize");
  job.resize = run.host.isa->resize;
  job.x = &x, job.how = call.ints[resize_call::kCoordinates], job.blocks = y.dims[1];
  const int64_t made[2] = {job.y.height, job.y.width};
  for (int axis = 0; axis < 2; ++axis) {
    const float given = static_cast<float>(call.floats[resize_call::kScales + axis]);
    const float found = static_cast<float>(made[axis]) / static_cast<float>(x.dims[2 + axis]);
    job.scale[axis] = given > 0.0f ? given : found;
  }
  job.rows = min(job.y.height, max(1, kResizeTask / (job.y.width * job.blocks)));
  job.tasks = ceil_div(job.y.height, job.rows);
  return run.parallel(y.dims[0] * job.tasks, resize_task, &job);
}

}  // namespace tracea
