// The host loop that rounds blocked images to 16-bit integers with a scale for each image; or only
// finds the scale.
#pragma once
#include "runtime/blocked.h"
#include "runtime/partition.h"

namespace tracea {

constexpr int64_t kImageLimit = 8191;   // as LIMIT in ops/int16.py
constexpr float kNoImage = 1e-30f;      // images that do not reach it are zero
constexpr int64_t kImageTask = 32 * 1024;  // floats

struct ImagesJob {
  tracea_image_fn range, round;
  const TensorView* x;
  Canvas y;
  int64_t last;  // channels of the last block
  LinePartition partition;
  float *found, *times, *scale;  // largest and spoilt of each task; what each image is multiplied by
};

inline tracea_image_tile image_tile(const ImagesJob& job, const LineRange& at) {
  const int64_t* s = job.x->strides;
  tracea_image_tile tile = {};
  tile.rows = at.last - at.first, tile.cols = job.x->dims[3] * kLanes;
  tile.last = at.block + 1 == job.x->dims[1] ? job.last : kLanes;
  tile.x = job.x->f32() + at.n * s[0] + at.block * s[1] + at.first * s[2], tile.x_row = s[2];
  return tile;
}

inline void image_range_task(void* usr, size_t index) {
  const ImagesJob& job = *static_cast<const ImagesJob*>(usr);
  const int64_t task = static_cast<int64_t>(index);
  tracea_image_tile tile = image_tile(job, job.partition.at(task));
  job.range(&tile);
  job.found[2 * task] = tile.high, job.found[2 * task + 1] = tile.spoilt;
}

inline void image_round_task(void* usr, size_t index) {
  const ImagesJob& job = *static_cast<const ImagesJob*>(usr);
  const LineRange at = job.partition.at(static_cast<int64_t>(index));
  tracea_image_tile tile = image_tile(job, at);
  tile.times = job.times[at.n];
  tile.y = reinterpret_cast<int16_t*>(job.y.row(at.n, at.block, at.first));
  tile.y_row = 2 * job.y.strides[2];
  job.round(&tile);
  job.y.clear(at.n, at.block, at.first, at.last - at.first, 0, job.y.width);
}

// One number for each image: the largest absolute over LIMIT, 0 if there is nothing, NaN where
// anything is not finite.
inline void find_scales(const ImagesJob& job, int64_t tasks) {
  for (int64_t n = 0; n < job.x->dims[0]; ++n) {
    float high = 0.0f, spoilt = 0.0f;
    for (int64_t i = n * tasks; i < (n + 1) * tasks; ++i)
      high = __builtin_fmaxf(high, job.found[2 * i]), spoilt += job.found[2 * i + 1];
    const bool fits = high > kNoImage && spoilt == 0.0f;
    job.times[n] = fits ? kImageLimit / high : 0.0f;
    job.scale[n] = spoilt != 0.0f ? spoilt : fits ? high / kImageLimit : 0.0f;
  }
}

inline bool run_round_images_int16(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1], &scale = views[2];
  const bool rounds = call.views[1].kind != kNone;
  ImagesJob job = {};
  bool ok = blocked(x) && scale.is(x.dims[0]) && (x.dims[0] <= 1 || scale.strides[0] == 1);
  if (ok && rounds)
    ok = open_canvas(y, call.ints + round_images_call::kHalo, &job.y, ORT_I16) &&
         y.is(x.dims[0], x.dims[1]) && job.y.height == x.dims[2] && job.y.width == x.dims[3];
  if (!ok) return misfit(run, "round_images");
  job.range = run.host.isa->image_range, job.round = run.host.isa->image_round;
  job.x = &x, job.scale = scale.f32(), job.last = call.ints[round_images_call::kTail];
  if (empty(x, 5)) {
    if (rounds) job.y.bare();
    for (int64_t n = 0; n < x.dims[0]; ++n) job.scale[n] = 0.0f;
    return true;
  }
  const int64_t line = x.dims[3] * kLanes;
  job.partition = LinePartition(run, x.dims[0], x.dims[1], x.dims[2], x.dims[3], kImageTask / line);
  const int64_t of_image = x.dims[1] * job.partition.each, tasks = x.dims[0] * of_image;
  Scratch scratch(run);
  job.found = reinterpret_cast<float*>(scratch.take((2 * tasks + x.dims[0]) * 4));
  job.times = job.found + 2 * tasks;
  const int64_t together = kImageTask / (job.partition.rows * line);
  if (!job.found || !run.parallel_by(together, tasks, image_range_task, &job)) return false;
  find_scales(job, of_image);
  return !rounds || run.parallel_by(together, tasks, image_round_task, &job);
}

}  // namespace tracea
