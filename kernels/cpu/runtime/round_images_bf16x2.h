// The host loop that splits blocked images into sums of two numbers in bf16 (ops/bf16.py): a pixel's
// block becomes 16 upper halves and 16 lower ones, as many bytes as before.  It also rounds images to
// fp16, in half the bytes.
#pragma once
#include "runtime/blocked.h"
#include "runtime/partition.h"

namespace tracea {

constexpr int64_t kSplitTask = 32 * 1024;  // floats

struct SplitJob {
  tracea_split_fn split;
  const TensorView* x;
  Canvas y;
  int64_t last;  // channels of the last block
  LinePartition partition;
};

inline void split_task(void* usr, size_t index) {
  const SplitJob& job = *static_cast<const SplitJob*>(usr);
  const auto [n, block, first, end] = job.partition.at(static_cast<int64_t>(index));
  const int64_t* s = job.x->strides;
  tracea_split_tile tile = {};
  tile.pixels = job.x->dims[3];
  tile.last = block + 1 == job.partition.blocks ? job.last : kLanes;
  for (int64_t row = first; row < end; ++row) {
    tile.x = job.x->f32() + n * s[0] + block * s[1] + row * s[2];
    tile.y = reinterpret_cast<uint16_t*>(job.y.row(n, block, row));
    job.split(&tile);
  }
  job.y.clear(n, block, first, end - first, 0, job.y.width);
}

inline bool run_round_images_bf16x2(Run& run, const Call& call, const TensorView* views) {
  const TensorView& x = views[0];
  SplitJob job = {};
  TensorView y;
  const bool halves = in_fp16(call);
  if (halves) y = views[1];
  if (!blocked(x) || !(halves || as_half_blocks(views[1], &y)) ||
      !open_canvas(y, call.ints + round_images_call::kHalo, &job.y, halves ? ORT_F16 : ORT_F32) ||
      !x.is(y.dims[0], y.dims[1]) || job.y.height != x.dims[2] || job.y.width != x.dims[3])
    return misfit(run, "split_images");
  if (job.y.bare()) return true;
#if defined(__aarch64__)
  job.split = halves ? run.host.isa->round_pixels_f16 : run.host.isa->split_pixels;
#else
  job.split = run.host.isa->split_pixels;
#endif
  job.x = &x, job.last = call.ints[round_images_call::kTail];
  const int64_t line = x.dims[3] * kLanes;
  job.partition = LinePartition(run, x.dims[0], x.dims[1], x.dims[2], x.dims[3], kSplitTask / line);
  const int64_t together = kSplitTask / (job.partition.rows * line);
  return run.parallel_by(together, x.dims[0] * x.dims[1] * job.partition.each, split_task, &job);
}

}  // namespace tracea
