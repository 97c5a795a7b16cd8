// Dense convolutions over blocked values.
//
// Outputs are cut into tiles of one line (or two short ones); a pointwise convolution over values
// without halo sees one long line.  A task takes a range of tiles of one image for some blocks of
// output channels: channel groups outside, then parts of the sum, then tiles, so that a panel of
// weights is read once per task while the task's input stays in L2.  Few output channels are left
// to runtime/conv_narrow.h.
#pragma once
#include "runtime/conv_tiling.h"
#include "runtime/conv_narrow.h"
#include "runtime/isa.h"

namespace tracea {

// Lines of the next call's weights to prefetch during tiles [begin, end) of a column; all tiles of the
// first image together prefetch everything.
inline void prefetch_weights(const ConvJob& job, int64_t n, int64_t index, int64_t begin, int64_t end,
                      tracea_conv_tile& tile) {
  const int64_t tiles = job.units * job.across, all = job.columns * tiles;
  const int64_t wanted = job.next_weights.panels * job.next_weights.lines, first = index * tiles;
  const int64_t lines = n || wanted > kMaxPrefetchLines ? 0 : wanted;
  const char* from = reinterpret_cast<const char*>(job.next_weights.from);
  const int64_t a = lines * (first + begin) / all, b = lines * (first + end) / all;
  const int64_t steps = job.tap.blocks * job.tap.rows * job.tap.cols * (end - begin);
  tile.far = from + a * kAlign, tile.far_end = from + b * kAlign;
  tile.far_lines = static_cast<int32_t>(ceil_div(b - a, max(steps, 1)));
}

// Blocks of output channels [first, first + count) of column `i`; columns never cross a group.
struct ConvColumn {
  int64_t first, count, group;
};
inline ConvColumn column_of(const ConvJob& job, int64_t i) {
  const int64_t per = job.columns / job.groups, group = i / per, at = i % per;
  const int64_t begin = job.per_group * at / per, end = job.per_group * (at + 1) / per;
  return {group * job.per_group + begin, end - begin, group};
}

// Positions of a task's tiles; the tile widths of a line differ by one at most.
struct ConvPlace {
  int64_t row, col, i;  // i: tile of its line

  ConvPlace(const ConvJob& job, int64_t index)
      : row(index / job.across * job.lines), i(index % job.across) {
    col = i * job.narrow + min(i, job.wider);
  }
  // Tiles from here on, at most `count`, that are alike: side by side, or one below the other.
  int64_t alike(const ConvJob& job, int64_t count) const {
    const int64_t below = max(1, (job.height - row) / job.lines);
    const int64_t beside = (i < job.wider ? job.wider : job.across) - i;
    return min(count, job.across == 1 ? below : beside);
  }
  void next(const ConvJob& job, int64_t pixels, int64_t count) {
    col += pixels * count, i += count;
    if (job.across == 1) row += job.lines * count, i = col = 0;
    else if (i == job.across) i = col = 0, row += job.lines;
  }
};

// Taps of a tile; at the edge of a map, those that only meet padding are left out.
struct ConvTaps {
  Taps rows, cols;

  ConvTaps(const ConvJob& job, const tracea_conv_tile& tile, int64_t row, int64_t col)
      : rows(taps_of(job.down, job.tap.rows, row, tile.lines)),
        cols(whole_groups(taps_of(job.along, job.tap.cols, col, tile.pixels), job.tap_group,
                      job.tap.cols)) {}
  bool equals(const ConvTaps& o) const {
    return rows.first == o.rows.first && rows.end == o.rows.end && cols.first == o.cols.first &&
           cols.end == o.cols.end;
  }
};

// Number of the `count` equal tiles from `at` on that have the same taps as the first.
inline int64_t same_taps(const ConvJob& job, const tracea_conv_tile& tile, const ConvPlace& at,
                         const ConvTaps& taps, int64_t count) {
  if (job.tap.rows == 1 && job.tap.cols == 1) return count;
  const bool below = job.across == 1;
  int64_t n = 1;
  while (n < count && taps.equals({job, tile, at.row + (below ? n * tile.lines : 0),
                                   at.col + (below ? 0 : n * tile.pixels)}))
    ++n;
  return n;
}

// A run of equal tiles.  The elementwise chain runs after every few of them, while they are in L1.
inline void conv_run(const ConvJob& job, tracea_conv_tile& tile, const float* x, int64_t n,
                     const ConvColumn& c, const ConvPlace& at) {
  const PostOps& post_ops = job.post_ops;
  const bool below = job.across == 1;
  const int64_t rows = below ? tile.tiles * tile.lines : tile.lines;
  const int64_t width = below ? tile.pixels : tile.tiles * tile.pixels;
  tile.x = x + at.row * job.x_step_row + at.col * tile.x_step;
  tile.x_next = below ? tile.lines * job.x_step_row : tile.pixels * tile.x_step;
  tile.y = post_ops.canvas.at(n, c.first, at.row, at.col);
  tile.add = post_ops.add_at(n, c.first, at.row, at.col);
  lay_post_ops(post_ops, tile);
  alignas(64) float sums[kChainTiles * kTileFloats];
  const bool apart = post_ops.apart();
  if (apart) set_apart(tile, sums, rows, width);
  const int64_t lanes = apart ? kLanes : post_ops.canvas.lanes;
  tile.y_next = below ? tile.lines * tile.y_line : tile.pixels * lanes;
  tile.add_next = below ? tile.lines * tile.add_line : tile.pixels * post_ops.add_lanes;
  job.conv(&tile);
  if (!post_ops.needed || tile.part & TRACEA_CONV_STOPS) return;
  for (int64_t b = 0; b < c.count; ++b)
    for (int64_t row = 0; row < rows; ++row)
      post_ops.line(n, c.first + b, at.row + row, at.col, width,
                  apart ? sums + b * tile.y_panel + row * tile.y_line : nullptr);
}

// Tiles [begin, end) of one channel group.
inline void conv_column(const ConvJob& job, int64_t n, int64_t index, int64_t begin, int64_t end,
                        int32_t* state) {
  const ConvColumn c = column_of(job, index);
  const int64_t blocks = job.tap.blocks;
  tracea_conv_tile tile = job.tap;
  tile.state = state;
  const float* weights = job.tap.w + n * job.w_image;
  prefetch_weights(job, n, index, begin, end, tile);
  tile.nv = static_cast<int32_t>(c.count);
  tile.half_tile = job.half_tile && c.first + c.count == job.blocks;
  tile.bias = job.bias ? job.bias + c.first * kLanes : nullptr;
  tile.lo = job.post_ops.lo, tile.hi = job.post_ops.hi;
  if (job.x_scales) tile.x_scale = job.x_scales + n, tile.w_scale = job.w_scales + c.first * kLanes;
  for (int64_t block = 0; block < blocks; block += job.part) {
    const int64_t count = min(job.part, blocks - block);
    const bool last = block + count == blocks;
    tile.blocks = count;
    tile.last = last ? job.tap.last : job.tap.depth;
    tile.part = (block ? TRACEA_CONV_CONTINUES : 0) | (last ? 0 : TRACEA_CONV_STOPS);
    tile.w = weights + c.first * tile.w_panel + block * tile.w_block;
    const int64_t steps = count * job.tap.rows * job.tap.cols, lines = count * tile.w_block / kLanes;
    const char* next = reinterpret_cast<const char*>(
        last ? weights + (c.first + c.count) * tile.w_panel : tile.w + count * tile.w_block);
    const bool more = !last || index + 1 < job.columns;
    tile.prefetch_lines = static_cast<int32_t>(ceil_div(lines, steps * (end - begin)));
    const int64_t* s = job.x_strides;
    const float* x = job.first + n * s[0] + c.group * job.x_group + block * s[1];
    const int64_t wanted = more && begin == 0 && !job.scattered ? lines : 0;
    tile.prefetch_end = next + wanted * kAlign;
    int64_t asked = 0;
    ConvPlace at(job, begin);
    const float* const w = tile.w;
    for (int64_t t = begin; t < end; t += tile.tiles) {
      tile.pixels = static_cast<int32_t>(job.narrow + (at.i < job.wider));
      tile.lines = static_cast<int32_t>(min(job.lines, job.height - at.row));
      const ConvTaps on(job, tile, at.row, at.col);
      const int64_t alike = at.alike(job, job.post_ops.chain ? min(end - t, kChainTiles) : end - t);
      tile.tiles = same_taps(job, tile, at, on, alike);
      tile.rows = on.rows.end - on.rows.first, tile.cols = on.cols.end - on.cols.first;
      tile.w = w + on.rows.first * tile.w_row + on.cols.first * tile.depth * kLanes;
      const int64_t steps = count * tile.rows * tile.cols;
      tile.prefetch = next + min(asked, wanted) * kAlign;
      asked += tile.tiles * tile.prefetch_lines * steps;
      conv_run(job, tile, x + on.rows.first * tile.x_row + on.cols.first * tile.x_col, n, c, at);
      tile.far += min(tile.tiles * tile.far_lines * steps * kAlign, tile.far_end - tile.far);
      at.next(job, tile.pixels, tile.tiles);
    }
  }
}

inline void conv_task(void* usr, size_t index) {
  const ConvJob& job = *static_cast<const ConvJob*>(usr);
  const int64_t task = static_cast<int64_t>(index), chunk = task % job.chunks;
  const int64_t h_task = task / job.chunks % job.h_tasks, n = task / job.chunks / job.h_tasks;
  const int64_t tiles = job.units * job.across;
  const int64_t begin = tiles * h_task / job.h_tasks, end = tiles * (h_task + 1) / job.h_tasks;
  const int64_t last = min(job.columns, (chunk + 1) * job.per_task);
  int32_t state = 0;
  for (int64_t i = chunk * job.per_task; i < last; ++i)
    conv_column(job, n, i, begin, end, &state);
  if (job.end) job.end();
}

// The last input block has an even number of channels: pairs are whole.
inline bool check_conv_bf16(Signature& call) {
  return call.integer(conv_call::kIcTail) % 2 == 0 ||
         call.fail("a pair of which one channel is missing");
}

// Whole blocks: there are zeros where a channel is missing.
inline bool check_conv_bf16x2(Signature& call) {
  return call.integer(conv_call::kIcTail) == kLanes ||
         call.fail("a block of which channels are missing");
}

inline bool check_conv(Signature& call) {
  if (call.opcode() == kConvBf16) return check_conv_bf16(call);
  return call.opcode() != kConvBf16x2 || check_conv_bf16x2(call);
}

// Leaves out taps that only meet padding: most of a kernel that is wider than
// a map.
inline void leave_out(ConvJob& job, const Call& call, const float** x) {
  tracea_conv_tile& tap = job.tap;
  const int64_t *strides = call.ints + conv_call::kStrides;
  const int64_t *dilations = call.ints + conv_call::kDilations;
  const int64_t *pads = call.ints + conv_call::kZeros;
  job.down = {job.x->dims[2], pads[0], pads[2], strides[0], dilations[0]};
  job.along = {job.x->dims[3], pads[1], pads[3], strides[1], dilations[1]};
  const Taps rows = taps_of(job.down, tap.rows, 0, job.height);
  const Taps cols = whole_groups(taps_of(job.along, tap.cols, 0, job.width), job.tap_group, tap.cols);
  const int64_t tall = rows.end - rows.first, wide = cols.end - cols.first;
  job.scattered = tall < tap.rows || wide < tap.cols;
  *x += rows.first * tap.x_row + cols.first * tap.x_col;
  tap.w += rows.first * tap.w_row + cols.first * tap.depth * kLanes;
  tap.rows = tall, tap.cols = wide;
  job.down.before -= rows.first * dilations[0], job.down.size -= rows.first * dilations[0];
  job.along.before -= cols.first * dilations[1], job.along.size -= cols.first * dilations[1];
}

// Of one image.
inline RowTasks lines_of_tasks(const ConvJob& job) {
  RowTasks all = {job.units * job.across, job.h_tasks, job.chunks};
  all.image = true;
  all.across = job.across, all.lines = job.lines, all.height = job.height;
  if (!job.joined) return all;
  all.joined = job.joined, all.narrow = job.narrow, all.wider = job.wider;
  all.height = job.width / job.joined;
  return all;
}

inline bool run_conv(Run& run, const Call& call, const TensorView* views) {
  const bool split = call.opcode == kConvBf16x2;
  const bool nchw32c = call.opcode == kConvBf16 && is_nchw32c(views[0]);
  TensorView both;
  if ((split || nchw32c) && !as_half_blocks(views[0], &both)) return misfit(run, "conv");
  const TensorView &x = split || nchw32c ? both : views[0], &w = views[1];
  const int64_t* strides = call.ints + conv_call::kStrides;
  const int64_t* dilations = call.ints + conv_call::kDilations;
  const int64_t stride_h = strides[0], stride_w = strides[1];
  const int64_t dilation_h = dilations[0], dilation_w = dilations[1];
  const int64_t oc_tail = call.ints[conv_call::kOcTail], ic_tail = call.ints[conv_call::kIcTail];
  ConvJob job = {};
  job.groups = call.ints[conv_call::kGroups];
  job.half_tile = job.groups == 1 && oc_tail <= kLanes / 2;
  if (!open_post_ops(run, call, views, conv_call::kHalo, &job.post_ops, true))
    return misfit(run, "conv");
  const Canvas& y = job.post_ops.canvas;
  job.images = y.box->dims[0], job.blocks = y.blocks;
  job.height = y.height, job.width = y.width;
  if (y.bare()) return true;
  const int64_t inputs = w.dims[1], rows = w.dims[2], cols = w.dims[3];
  const bool whole = in_integers(call), halves = in_fp16(call);
  const bool pairs = whole || halves || call.views[0].type == ORT_BF16;
  const int64_t lanes = split || nchw32c ? kLanes : lanes_of(call.views[0].type);
  const int32_t rank = pairs ? 7 : 6;
  // For one image the filters of each are those of all.
  const bool each = job.images > 1 && w.dims[0] % job.blocks == 0 &&
                    w.dims[0] / job.blocks == job.images;
  if (!blocked(x) || !steps_of(x, lanes, job.x_strides) || empty(w, rank) ||
      !dense_from(w, 0, rank) || (!w.is(job.blocks) && !each) || w.dims[4] != lanes ||
      w.dims[5] != kLanes || (pairs && w.dims[6] != 2) || job.blocks % job.groups ||
      ((y.nchw32c || job.post_ops.add_nchw32c) && job.blocks / job.groups % 2) ||
      (whole && (!w.is(job.blocks) || !scales_fit(views[4], views[5], *y.box, 1))) ||
      x.dims[0] != job.images || x.dims[1] % job.groups || x.dims[1] / job.groups != inputs ||
      x.dims[2] < reach(y.height, stride_h, rows, dilation_h) ||
      x.dims[3] < reach(y.width, stride_w, cols, dilation_w))
    return misfit(run, "conv");
  const tracea_isa_table& isa = *run.host.isa;
  job.conv = whole ? isa.conv_int16 : split ? isa.conv_bf16x2 : pairs ? isa.conv_bf16 : isa.conv;
  job.end = whole ? nullptr : split ? isa.conv_bf16x2_end : pairs ? isa.conv_bf16_end : nullptr;
#if defined(__aarch64__)
  if (halves) job.conv = isa.conv_f16, job.end = nullptr;
#endif
  job.pixels = pairs && !whole && !halves ? isa.bf16_pixels : rows_of_tile(isa.conv_pixels);
  job.tap_group = job.pixels > isa.conv_pixels && !split && !nchw32c ? 2 : 1;  // on matrix tiles
  if (whole) job.x_scales = views[4].f32(), job.w_scales = views[5].f32();
  job.x = &x;
  job.bias = views[2].data ? views[2].f32() : nullptr;
  job.per_group = job.blocks / job.groups;
  const int64_t* steps = job.x_strides;
  job.x_group = inputs * steps[1];
  job.x_step_row = stride_h * steps[2];
  tracea_conv_tile& tap = job.tap;
  tap.blocks = inputs, tap.rows = rows, tap.cols = cols;
  tap.depth = lanes, tap.last = job.groups > 1 ? lanes : ceil_div(ic_tail * lanes, kLanes);
  tap.x_block = steps[1], tap.x_row = dilation_h * steps[2];
  tap.x_col = dilation_w * lanes, tap.x_depth = 1;
  tap.x_step = stride_w * lanes, tap.x_line = job.x_step_row;
  tap.w = w.f32();
  tap.w_row = cols * lanes * kLanes, tap.w_block = rows * tap.w_row;
  tap.w_panel = inputs * tap.w_block;
  const int64_t channels = (inputs - 1) * kLanes + ic_tail;
  if (!pairs && !each && job.blocks == 1 && job.groups == 1 &&
      narrow_pays(oc_tail, channels, inputs, rows * cols)) {
    lay_post_ops(job.post_ops, tap);
    tap.bias = job.bias;
    NarrowJob few = {isa.conv_narrow, tap, &job.post_ops, &x, steps[0], job.x_step_row,
                     0, 0};
    return run_narrow(run, few, oc_tail, job.images);
  }
  job.w_image = each ? job.blocks * tap.w_panel : 0;
  if (rows == 1 && cols == 1 && stride_h == 1 && stride_w == 1 && joins_lines(x, job.post_ops)) {
    job.joined = job.width;
    job.width *= job.height, job.height = 1;
    job.post_ops.canvas.width = job.width, job.post_ops.canvas.height = 1;
  }
  job.first = x.f32();
  leave_out(job, call, &job.first);
  job.next_weights = run.next_weights;
  divide_conv(run, job, stride_h, choose_conv_schedule(call, job.images));
  const RowTasks lines_of = lines_of_tasks(job);
  return run.parallel(job.images * job.h_tasks * job.chunks, conv_task, &job,
                      job.images == 1 ? &lines_of : nullptr);
}

}  // namespace tracea
