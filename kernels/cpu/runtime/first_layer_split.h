// Convolutions of plain images on matrix tiles, for results in bf16: numbers are sums of two in bf16,
// and of the four products between them the three that matter are summed (ops/bf16.py), nearly as
// exact as float32's and several times as fast.
//
// A task splits the lines it reads, whole ones and padded.  The channels of a column lie side by
// side, so all of a kernel's row is one sum along a line; where a row ends within eight lanes, those
// of the next column meet zeros.
#pragma once
#include "runtime/first_layer.h"

namespace tracea {

constexpr int64_t kSplitRows = 8;   // output rows per task, at most
constexpr int64_t kSplitTaps = 48;  // of a sum at least: splitting takes what shorter ones gain
constexpr int64_t kSplitApart = 1 << 20;  // floats between columns: a gather's places are 32 bits
constexpr int64_t kSplitStep = 64;        // strides and dilations at most: no size overflows
constexpr int64_t kTapLanes = TRACEA_PANEL / 2;

inline bool first_layer_splits(const FirstLayerJob& job, const tracea_isa_table& isa) {
  const TensorView& x = *job.x;
  const bool able = job.dilation_w == 1 && job.dilation_h <= kSplitStep &&
                    job.stride_w <= kSplitStep && job.stride_h <= kSplitStep &&
                    x.dims[1] <= TRACEA_STEM_CHANNELS && x.strides[3] <= kSplitApart;
  return isa.bf16_pixels > isa.conv_pixels && able && job.post_ops.canvas.width > kLanes &&
         x.dims[1] * job.kernel_h * job.kernel_w >= kSplitTaps;
}

// Weights split as images are, a panel per block of outputs: [block][kernel row][lane][16], lanes of
// a row filled up with zeros; false where one of them is not finite.
inline bool split_filters(const FirstLayerJob& job, const TensorView& w, float* to) {
  const int64_t channels = w.dims[1], plane = job.kernel_h * job.kernel_w * kLanes;
  const FirstLayerSplit& split = job.split;
  memset(to, 0, static_cast<size_t>(job.blocks * job.kernel_h * split.taps * kTapLanes * kLanes) * 4);
  bool finite = true;
  for (int64_t block = 0; block < job.blocks; ++block)
    for (int64_t row = 0; row < job.kernel_h; ++row, to += split.taps * kTapLanes * kLanes)
      for (int64_t col = 0; col < job.kernel_w; ++col) {
        const float* from = w.f32() + block * channels * plane + (row * job.kernel_w + col) * kLanes;
        const tracea_first_layer_line line = {
            channels, kLanes, from, plane, 1, to + col * split.column * kLanes, 1};
        finite = split.split(&line) && finite;
      }
  return finite;
}

// Output rows of a task: as many tasks for each thread, so far as may be.  For 16 threads 112 rows are
// 16 tasks of 7 rather than 14 of 8.
inline int64_t split_rows(const Run& run, int64_t images, int64_t height) {
  const int64_t threads = run.divisions(), tasks = images * ceil_div(height, kSplitRows);
  if (threads <= 2 || images % threads == 0) return kSplitRows;
  return ceil_div(height, ceil_div(ceil_div(tasks, threads) * threads, images));
}

// Sets up what tasks need; where a weight is not finite, nothing: float32 it is, then.
inline bool open_split(Run& run, FirstLayerJob& job, const TensorView& w, Scratch& filters, Scratch& lines) {
  const tracea_isa_table& isa = *run.host.isa;
  const Canvas& y = job.post_ops.canvas;
  FirstLayerSplit& split = job.split;
  const int64_t channels = w.dims[1];
  split.split = isa.first_layer_split, split.end = isa.conv_bf16_end, split.widest = isa.bf16_pixels;
  split.column = TRACEA_STEM_LANES(channels);
  split.taps = ceil_div(job.kernel_w * split.column, kTapLanes);
  const int64_t columns = reach(y.width, job.stride_w, job.kernel_w, 1);
  split.line = columns * split.column + TRACEA_PANEL;  // what the last window's lanes read
  const int64_t height = reach(kSplitRows, job.stride_h, job.kernel_h, job.dilation_h);
  char* memory = filters.take(job.blocks * job.kernel_h * split.taps * kTapLanes * kLanes * 4);
  if (!memory) return false;
  float* const weights = reinterpret_cast<float*>(memory);
  if (!split_filters(job, w, weights)) return true;
  split.w = weights;
  split.conv = isa.conv_bf16;
  split.rows = split_rows(run, y.box->dims[0], y.height);
  const int64_t tasks = y.box->dims[0] * ceil_div(y.height, split.rows);
  return make_slots(run, lines, tasks, height * split.line * 4, &split.slots);
}

// The outputs of [first, last) whose windows see line `i` of those they read, one bit each.
inline uint32_t rows_that_read(const FirstLayerJob& job, int64_t i, int64_t first, int64_t last) {
  uint32_t rows = 0;
  for (int64_t row = 0; row < last - first; ++row) {
    const int64_t from = i - row * job.stride_h;
    const bool reads = from >= 0 && from % job.dilation_h == 0 && from / job.dilation_h < job.kernel_h;
    rows |= static_cast<uint32_t>(reads) << row;
  }
  return rows;
}

// The lines that outputs [first, last) read, padded; returns those that read a number that is not
// finite, one bit each: the same ones however outputs are divided among tasks.
inline uint32_t split_lines(const FirstLayerJob& job, int64_t n, int64_t first, int64_t last, float* to) {
  const TensorView& x = *job.x;
  const FirstLayerSplit& split = job.split;
  const int64_t columns = reach(job.post_ops.canvas.width, job.stride_w, job.kernel_w, 1);
  const int64_t until = min(columns, x.dims[3] + job.left);
  const int64_t height = reach(last - first, job.stride_h, job.kernel_h, job.dilation_h);
  uint32_t odd = 0;
  for (int64_t i = 0; i < height; ++i, to += split.line) {
    const int64_t row = first * job.stride_h - job.top + i;
    const bool there = row >= 0 && row < x.dims[2] && until > job.left;
    const int64_t begin = there ? job.left * split.column : 0;
    const int64_t end = there ? until * split.column : 0;
    memset(to, 0, static_cast<size_t>(begin) * 4);
    memset(to + end, 0, static_cast<size_t>(split.line - end) * 4);
    if (!there) continue;
    const tracea_first_layer_line line = {
        x.dims[1], until - job.left, x.f32() + n * x.strides[0] + row * x.strides[2],
        x.strides[1], x.strides[3], to + begin, 0};
    if (!split.split(&line)) odd |= rows_that_read(job, i, first, last);
  }
  return odd;
}

// Output lines [first, last) of an image; returns those left out because they need float32, one bit
// each.
inline uint32_t first_layer_split_task(FirstLayerJob& job, int64_t n, int64_t first, int64_t last) {
  const FirstLayerSplit& split = job.split;
  const int slot = claim_slot(job.split.slots);
  float* const lines = reinterpret_cast<float*>(memory_of(split.slots, slot));
  const uint32_t odd = split_lines(job, n, first, last, lines);
  int32_t state = 0;
  for (int64_t block = 0; block < job.blocks; block += job.nv) {
    tracea_conv_tile tile = first_layer_tile(job, block);
    tile.state = &state, tile.half_tile = 0;
    tile.blocks = 1, tile.rows = job.kernel_h, tile.cols = split.taps;
    tile.depth = tile.last = tile.x_col = kTapLanes;
    tile.x_row = job.dilation_h * split.line, tile.x_step = job.stride_w * split.column;
    tile.w_row = split.taps * kTapLanes * kLanes, tile.w_panel = job.kernel_h * tile.w_row;
    tile.w = split.w + block * tile.w_panel;
    for (int64_t row = first; row < last; ++row) {
      if (odd >> (row - first) & 1) continue;
      const float* x = lines + (row - first) * job.stride_h * split.line;
      first_layer_across(job, split.widest, 0, job.post_ops.canvas.width,
                  [&](int64_t col, int64_t pixels, int64_t tiles) {
                    tile.x = x + col * tile.x_step;
                    first_layer_tiles(job, split.conv, tile, n, block, row, col, pixels, tiles);
                  });
      first_layer_finish(job, tile, n, block, row);
    }
  }
  if (state) split.end();
  release_slot(job.split.slots, slot);
  return odd;
}

}  // namespace tracea
