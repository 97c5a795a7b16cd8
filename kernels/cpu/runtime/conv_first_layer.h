// Convolutions that read a plain value, [N, C, H, W] of any strides, and write a blocked one.
//
// The register tile takes kernel columns for its innermost taps.  Nothing of large images is copied:
// kernel rows outside the image are left out, and so are kernel columns, for the outputs at the left
// and right edge, one by one.  Small images are copied into a border of zeros, where all outputs are
// alike: short lines lie in one tile in pairs.
#pragma once
#include "runtime/first_layer.h"
#include "runtime/first_layer_split.h"

namespace tracea {

constexpr int64_t kFirstLayerRows = 4;         // output rows per task, or more where that is little
constexpr int64_t kFirstLayerTask = 1000000;   // multiply-adds per task
constexpr int64_t kFirstLayerCopy = 8 * 1024;  // floats of images that are copied

// Those of `taps` that lie inside [0, size) when the first one is at `at`.
inline Taps inside(int64_t at, int64_t taps, int64_t dilation, int64_t size) {
  const int64_t first = at < 0 ? ceil_div(-at, dilation) : 0;
  const int64_t end = at >= size ? 0 : ceil_div(size - at, dilation);
  return {min(first, taps), max(min(first, taps), min(end, taps))};
}

// `tiles` tiles of `pixels` outputs from `col` on for one group of blocks, kernel columns `cols`.
inline void first_layer_run(const FirstLayerJob& job, tracea_conv_tile& tile, int64_t n, int64_t block,
                     int64_t row, const Taps& rows, int64_t col, int64_t pixels, int64_t tiles,
                     const Taps& cols) {
  const int64_t* s = job.x->strides;
  const int64_t y = row * job.stride_h - job.top + rows.first * job.dilation_h;
  const int64_t x = col * job.stride_w - job.left + cols.first * job.dilation_w;
  tile.rows = rows.end - rows.first;
  tile.depth = tile.last = cols.end - cols.first;
  if (tile.depth == 0) tile.rows = 0;
  tile.x = job.x->f32() + n * s[0];
  if (tile.rows) tile.x += y * s[2] + x * s[3];
  tile.w = job.tap.w + block * tile.w_panel + (rows.first * job.kernel_w + cols.first) * kLanes;
  first_layer_tiles(job, job.conv, tile, n, block, row, col, pixels, tiles);
}

inline void first_layer_row(const FirstLayerJob& job, int64_t n, int64_t block, int64_t row) {
  const int64_t width = job.post_ops.canvas.width, size = job.x->dims[3];
  tracea_conv_tile tile = first_layer_tile(job, block);
  const Taps rows =
      inside(row * job.stride_h - job.top, job.kernel_h, job.dilation_h, job.x->dims[2]);
  const Taps all = {0, job.kernel_w};
  const auto cols_of = [&](int64_t col) {
    return inside(col * job.stride_w - job.left, job.kernel_w, job.dilation_w, size);
  };
  const int64_t past = size + job.left - (job.kernel_w - 1) * job.dilation_w;
  const int64_t begin = min(width, ceil_div(job.left, job.stride_w));
  const int64_t end = max(begin, min(width, past <= 0 ? 0 : ceil_div(past, job.stride_w)));
  for (int64_t col = 0; col < begin; ++col)
    first_layer_run(job, tile, n, block, row, rows, col, 1, 1, cols_of(col));
  first_layer_across(job, job.widest, begin, end, [&](int64_t col, int64_t pixels, int64_t tiles) {
    first_layer_run(job, tile, n, block, row, rows, col, pixels, tiles, all);
  });
  for (int64_t col = end; col < width; ++col)
    first_layer_run(job, tile, n, block, row, rows, col, 1, 1, cols_of(col));
  first_layer_finish(job, tile, n, block, row);
}

// Whole lines from `first` on, two in a tile, one tile below the other; the first line left over.
inline int64_t first_layer_pairs(const FirstLayerJob& job, int64_t n, int64_t block, int64_t first,
                          int64_t last) {
  const Canvas& y = job.post_ops.canvas;
  const int64_t* s = job.x->strides;
  tracea_conv_tile tile = first_layer_tile(job, block);
  tile.lines = 2, tile.tiles = (last - first) / 2;
  tile.pixels = static_cast<int32_t>(y.width);
  tile.rows = job.kernel_h;
  tile.depth = tile.last = job.kernel_w;
  tile.x = job.x->f32() + n * s[0] + first * job.stride_h * s[2];
  tile.x_line = job.stride_h * s[2], tile.x_next = 2 * tile.x_line;
  tile.w = job.tap.w + block * tile.w_panel;
  tile.y = y.row(n, block, first);
  tile.add = job.post_ops.add_at(n, block, first, 0);
  tile.y_next = 2 * tile.y_line, tile.add_next = 2 * tile.add_line;
  job.conv(&tile);
  const int64_t end = first + 2 * tile.tiles;
  for (int64_t b = block; b < block + tile.nv; ++b)
    for (int64_t row = first; row < end; ++row) job.post_ops.line(n, b, row, 0, y.width);
  return end;
}

inline void first_layer_rows(const FirstLayerJob& job, int64_t n, int64_t first, int64_t last) {
  for (int64_t block = 0; block < job.blocks; block += job.nv) {
    int64_t row = job.pairs && last - first > 1 ? first_layer_pairs(job, n, block, first, last) : first;
    for (; row < last; ++row) first_layer_row(job, n, block, row);
  }
}

inline void first_layer_task(void* usr, size_t index) {
  FirstLayerJob& job = *static_cast<FirstLayerJob*>(usr);
  const int64_t task = static_cast<int64_t>(index), n = task / job.tasks_per_image;
  const int64_t first = task % job.tasks_per_image * job.rows;
  const int64_t last = min(job.post_ops.canvas.height, first + job.rows);
  if (!job.split.conv) return first_layer_rows(job, n, first, last);
  const uint32_t left = first_layer_split_task(job, n, first, last);
  for (int64_t row = first; left && row < last; ++row)
    if (left >> (row - first) & 1) first_layer_rows(job, n, row, row + 1);
}

// Copies the images into a border of zeros as wide as windows reach; false if `room` is too small.
inline bool first_layer_copy(FirstLayerJob& job, TensorView* copy, float* room) {
  const Canvas& y = job.post_ops.canvas;
  const TensorView& x = *job.x;
  const int64_t *dims = x.dims, *s = x.strides;
  const int64_t height = max(job.top + dims[2],
                              reach(y.height, job.stride_h, job.kernel_h, job.dilation_h));
  const int64_t width = max(job.left + dims[3],
                             reach(y.width, job.stride_w, job.kernel_w, job.dilation_w));
  const int64_t planes = dims[0] * dims[1];
  if (planes > kFirstLayerCopy || height > kFirstLayerCopy || width > kFirstLayerCopy ||
      planes * height > kFirstLayerCopy || planes * height * width > kFirstLayerCopy)
    return false;
  memset(room, 0, static_cast<size_t>(planes * height * width) * sizeof(float));
  for (int64_t plane = 0; plane < planes; ++plane)
    for (int64_t row = 0; row < dims[2]; ++row) {
      const float* from = x.f32() + plane / dims[1] * s[0] + plane % dims[1] * s[1] + row * s[2];
      float* to = room + (plane * height + job.top + row) * width + job.left;
      for (int64_t col = 0; col < dims[3]; ++col) to[col] = from[col * s[3]];
    }
  *copy = {reinterpret_cast<char*>(room),
           {dims[0], dims[1], height, width},
           {dims[1] * height * width, height * width, width, 1}};
  job.x = copy, job.top = job.left = 0;
  return true;
}

// Whether some window reaches outside the image.
inline bool first_layer_leaves(const FirstLayerJob& job) {
  const Canvas& y = job.post_ops.canvas;
  return job.top || job.left ||
         reach(y.height, job.stride_h, job.kernel_h, job.dilation_h) > job.x->dims[2] ||
         reach(y.width, job.stride_w, job.kernel_w, job.dilation_w) > job.x->dims[3];
}

// What all tiles share.
inline void lay_first_layer(FirstLayerJob& job, const TensorView& w) {
  tracea_conv_tile& tap = job.tap;
  const TensorView& x = *job.x;
  tap.blocks = x.dims[1], tap.cols = 1, tap.lines = 1;
  tap.x_block = x.strides[1], tap.x_row = job.dilation_h * x.strides[2];
  tap.x_depth = job.dilation_w * x.strides[3], tap.x_step = job.stride_w * x.strides[3];
  tap.w = w.f32();
  tap.w_row = job.kernel_w * kLanes, tap.w_block = job.kernel_h * tap.w_row;
  tap.w_panel = x.dims[1] * tap.w_block;
  lay_post_ops(job.post_ops, tap);
  tap.lo = job.post_ops.lo, tap.hi = job.post_ops.hi;
}

inline bool run_conv_first_layer(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &w = views[1];
  FirstLayerJob job = {};
  if (!open_post_ops(run, call, views, conv_first_layer_call::kHalo, &job.post_ops))
    return misfit(run, "conv_first_layer");
  const Canvas& y = job.post_ops.canvas;
  job.blocks = y.box->dims[1];
  const int64_t images = y.box->dims[0];
  if (y.bare()) return true;
  if (empty(w, 5) || !dense_from(w, 0, 5) || !w.is(job.blocks, x.dims[1]) ||
      w.dims[4] != kLanes || x.dims[0] != images)
    return misfit(run, "conv_first_layer");
  const tracea_isa_table& isa = *run.host.isa;
  job.conv = call.opcode == kConvFirstLayerBf16 ? isa.conv_first_layer_bf16 : isa.conv;
  job.nv = run.host.isa->conv_nv, job.widest = run.host.isa->conv_pixels;
  job.x = &x;
  job.bias = views[2].data ? views[2].f32() : nullptr;
  job.kernel_h = w.dims[2], job.kernel_w = w.dims[3];
  const int64_t *strides = call.ints + conv_first_layer_call::kStrides;
  const int64_t *dilations = call.ints + conv_first_layer_call::kDilations;
  const int64_t *pads = call.ints + conv_first_layer_call::kPads;
  job.stride_h = strides[0], job.stride_w = strides[1];
  job.dilation_h = dilations[0], job.dilation_w = dilations[1];
  job.top = pads[0], job.left = pads[1];
  alignas(64) float room[kFirstLayerCopy];
  TensorView copy;
  const bool whole = !first_layer_leaves(job) || first_layer_copy(job, &copy, room);
  job.half_tile = job.conv == isa.conv && call.ints[conv_first_layer_call::kOcTail] <= kLanes / 2;
  job.pairs = whole && y.width <= job.widest / 2 && !job.post_ops.apart();
  lay_first_layer(job, w);
  Scratch filters(run), lines(run);
  if (call.opcode == kConvFirstLayerBf16 && first_layer_splits(job, isa) &&
      !open_split(run, job, w, filters, lines))
    return false;
  const int64_t line = y.width * job.blocks * job.tap.w_panel;
  job.rows = max(kFirstLayerRows, ceil_div(kFirstLayerTask, line));
  if (job.split.conv) job.rows = job.split.rows;
  else if (run.divisions() > 2 && images % run.divisions())
    job.rows = run.even_lines(images, y.height, ceil_div(kFirstLayerTask / 8, line));
  job.tasks_per_image = ceil_div(y.height, job.rows);
  RowTasks lines_of = {y.height, job.tasks_per_image, 1, job.rows};
  lines_of.image = true;
  return run.parallel(images * job.tasks_per_image, first_layer_task, &job,
                      images == 1 ? &lines_of : nullptr);
}

}  // namespace tracea
