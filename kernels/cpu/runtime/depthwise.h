// Depthwise convolutions over blocked values: some lines of one block of channels per task, or all
// lines of several.
#pragma once
#include "runtime/blocked.h"
#include "runtime/conv_tiling.h"
#include "runtime/partition.h"

namespace tracea {

constexpr int64_t kDepthwiseTask = 64 * 1024;   // multiply-adds of 16-wide vectors per task
constexpr int64_t kDepthwiseUnits = 16 * 1024;  // the same, below which no thread is woken
constexpr int64_t kDepthwiseOutputs = 448;      // outputs of the lines that one kernel call takes

struct DepthwiseJob {
  tracea_depthwise_fn depthwise;
  tracea_depthwise_tile tap;
  PostOps post_ops;
  const TensorView* x;
  int64_t x_strides[4];
  const float *w, *bias;
  int64_t images, w_block, x_step_row, stride_w;
  LinePartition pieces;
  bool pairs;  // the kernel may multiply pairs of columns
};

// Lines whose sums are buffered until an elementwise chain rounds them: several short lines, or
// equal pieces of a long one.
inline void depthwise_apart(const DepthwiseJob& job, tracea_depthwise_tile tile, int64_t n,
                            int64_t block, int64_t row) {
  alignas(64) float sums[kLinePiece * kLanes];
  const int64_t width = job.post_ops.canvas.width, pieces = ceil_div(width, kLinePiece);
  const int64_t left = tile.left;
  tile.y = sums, tile.y_size = sizeof(float);
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t first = width * i / pieces, end = width * (i + 1) / pieces;
    tile.pixels = end - first, tile.y_line = tile.pixels * kLanes;
    tile.left = left - first * job.stride_w;
    tile.add = job.post_ops.add_at(n, block, row, first);
    job.depthwise(&tile);
    for (int64_t line = 0; line < tile.lines; ++line)
      job.post_ops.line(n, block, row + line, first, tile.pixels, sums + line * tile.y_line);
  }
}

inline void depthwise_lines(const DepthwiseJob& job, const LineRange& lines) {
  const auto [n, block, first, last] = lines;
  const Canvas& y = job.post_ops.canvas;
  const bool apart = job.post_ops.apart();
  const int64_t most_lines = max(1, (apart ? kLinePiece : kDepthwiseOutputs) / y.width);
  alignas(64) float pairs[TRACEA_DEPTHWISE_PAIRS * kLanes];
  int32_t made = 0;
  tracea_depthwise_tile tile = job.tap;
  if (job.pairs) tile.pairs = pairs, tile.made = &made;
  tile.w = job.w + block * job.w_block;
  tile.bias = job.bias ? job.bias + block * kLanes : nullptr;
  const float* x = job.x->f32() + n * job.x_strides[0] + block * job.x_strides[1];
  for (int64_t row = first; row < last; row += tile.lines) {
    tile.lines = min(most_lines, last - row);
    tile.x = x + row * job.x_step_row;
    if (apart) {
      depthwise_apart(job, tile, n, block, row);
      continue;
    }
    tile.y = y.row(n, block, row);
    tile.add = job.post_ops.add_at(n, block, row, 0);
    job.depthwise(&tile);
    for (int64_t i = row; job.post_ops.needed && i < row + tile.lines; ++i)
      job.post_ops.line(n, block, i, 0, y.width);
  }
}

inline void depthwise_task(void* usr, size_t index) {
  const DepthwiseJob& job = *static_cast<const DepthwiseJob*>(usr);
  job.pieces.each_range(static_cast<int64_t>(index), job.images,
                        [&](const LineRange& lines) { depthwise_lines(job, lines); });
}

inline bool run_depthwise(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &w = views[1];
  const int64_t* strides = call.ints + depthwise_call::kStrides;
  const int64_t* dilations = call.ints + depthwise_call::kDilations;
  const int64_t* sides = call.ints + depthwise_call::kColumns;
  const int64_t stride_h = strides[0], stride_w = strides[1];
  const int64_t dilation_h = dilations[0], dilation_w = dilations[1];
  const int64_t left = sides[0], right = sides[1];
  DepthwiseJob job = {};
  if (!open_post_ops(run, call, views, depthwise_call::kHalo, &job.post_ops))
    return misfit(run, "depthwise");
  const Canvas& y = job.post_ops.canvas;
  const int64_t images = y.box->dims[0];
  const int64_t blocks = y.box->dims[1];
  if (y.bare()) return true;
  const int64_t rows = w.dims[1], cols = w.dims[2];
  const int64_t lanes = lanes_of(call.views[0].type), *steps = job.x_strides;
  if (!blocked(x) || !steps_of(x, lanes, job.x_strides) || !x.is(images, blocks) || empty(w, 4) || !dense_from(w, 0, 4) ||
      !w.is(blocks) || w.dims[3] != kLanes ||
      x.dims[2] < reach(y.height, stride_h, rows, dilation_h) ||
      left + x.dims[3] + right < reach(y.width, stride_w, cols, dilation_w))
    return misfit(run, "depthwise");
  job.depthwise = lanes == kLanes ? run.host.isa->depthwise : run.host.isa->depthwise_bf16;
  job.x = &x;
  job.w = w.f32();
  job.bias = views[2].data ? views[2].f32() : nullptr;
  job.images = images, job.w_block = rows * cols * kLanes;
  job.x_step_row = stride_h * steps[2], job.stride_w = stride_w;
  tracea_depthwise_tile& tap = job.tap;
  tap.rows = rows, tap.cols = cols, tap.pixels = y.width;
  tap.left = left, tap.width = x.dims[3];
  tap.x_row = dilation_h * steps[2], tap.x_col = dilation_w * lanes;
  tap.x_step = stride_w * lanes;
  tap.x_line = job.x_step_row, tap.y_line = y.strides[2];
  if (job.post_ops.add) tap.add_line = job.post_ops.add_strides[2];
  // Columns must be adjacent, and every window must overlap the line.
  job.pairs = lanes != kLanes && call.ints[depthwise_call::kRoundedFilters] && dilation_w == 1 &&
              left < cols && x.dims[3] > 0 &&
              (y.width - 1) * stride_w - left < x.dims[3];
  const Layout layout = layout_of(job.post_ops);
  tap.y_size = layout.y_size, tap.add_size = layout.add_size;
  tap.lo = job.post_ops.lo, tap.hi = job.post_ops.hi;
  const int64_t line = y.width * rows * cols;
  const ConvSchedule schedule = choose_conv_schedule(call, images);
  const int64_t lines = schedule.h_tasks ? ceil_div(y.height, min(schedule.h_tasks, y.height)) : kDepthwiseTask / line;
  job.pieces = LinePartition(run, images, blocks, y.height, y.width, lines);
  const int64_t together = schedule.oc_chunk ? schedule.oc_chunk : kDepthwiseUnits / (job.pieces.rows * line);
  const int64_t tasks = images * blocks * job.pieces.each;
  if (!schedule.h_tasks && !schedule.oc_chunk)
    job.pieces.balance(run, images, y.width, run.together(together, tasks));
  const RowTasks lines_of = job.pieces.tasks(), *shared = images == 1 ? &lines_of : nullptr;
  if (job.pieces.stretches) return run.parallel(job.pieces.stretches, depthwise_task, &job, shared);
  return run.parallel_by(together, tasks, depthwise_task, &job, shared);
}

}  // namespace tracea
