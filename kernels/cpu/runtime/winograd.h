// Winograd convolution of 3 x 3 filters (Lavin and Gray, 2015): each task transforms some rows of
// tiles, multiplies them plane by plane and transforms the products back.
//
// If the transformed weights are larger than the transformed image, one task covers the whole image
// and its three steps are parallel; otherwise tasks run in parallel and their buffers stay in L2.
#pragma once
#include "runtime/conv.h"
#include "runtime/round_images_int16.h"
#include "runtime/slots.h"

namespace tracea {

constexpr int64_t kTaskBuffers = 512 * 1024;  // bytes of both buffers: about half of an L2 cache
constexpr int64_t kPlaneGap = 64;             // floats; keeps planes off each other's cache sets

struct WinogradJob {
  tracea_winograd_in_fn in;
  tracea_winograd_out_fn out;
  tracea_conv_fn conv;
  tracea_conv_end_fn end;             // null where kernels set nothing up
  int64_t conv_pixels, conv_nv;
  PostOps post_ops;
  const TensorView *x, *w;
  int64_t lanes, x_strides[4];        // of x and its transform
  const float *x_scales, *w_scales;   // of integers; else null
  const float* bias;
  int64_t m, side, planes;            // outputs and inputs along a tile; planes = side^2
  int64_t inputs, outputs, last;      // blocks; channels of the last input block
  int64_t across, rows, task_rows, h_tasks, columns;  // tiles per row; tile rows; of a task
  int64_t in_plane, out_plane;        // floats between planes of the two buffers
  Slots slots;                        // each with room for both buffers
  int64_t image, h_task;              // while the threads share the steps of one task
};

struct WinogradTask {
  int64_t n, row, rows, tiles;
  float *v, *product;
};

inline WinogradTask task_of(const WinogradJob& job, int64_t n, int64_t h_task, int slot) {
  const int64_t row = h_task * job.task_rows, rows = min(job.task_rows, job.rows - row);
  float* v = reinterpret_cast<float*>(memory_of(job.slots, slot));
  return {n, row, rows, rows * job.across, v, v + job.planes * job.in_plane};
}

// A transformed input is up to four times as large as the largest one, which `scale` times LIMIT
// is; filters' scales make up for it (ops/int16.py).
inline float transform_times(float scale) { return scale > 0.0f ? 0.25f / scale : 0.0f; }

inline void winograd_before(const WinogradJob& job, const WinogradTask& at, int64_t block) {
  const int64_t* s = job.x_strides;
  tracea_winograd_in_tile tile = {};
  tile.tiles = job.across;
  tile.m = static_cast<int32_t>(job.m);
  tile.cols = job.x->dims[3];
  tile.x_row = s[2];
  tile.plane = job.in_plane;
  if (job.x_scales) tile.times = transform_times(job.x_scales[at.n]);
  for (int64_t r = 0; r < at.rows; ++r) {
    const int64_t row = (at.row + r) * job.m;
    tile.rows = job.x->dims[2] - row;
    tile.x = job.x->f32() + at.n * s[0] + block * s[1] + row * s[2];
    tile.v = at.v + (block * at.tiles + r * job.across) * job.lanes;
    job.in(&tile);
  }
}

// Sums of some tiles over all input channels; integers are summed in parts that fit 32 bits.
inline void winograd_parts(const WinogradJob& job, tracea_conv_tile tile) {
  const int64_t part = job.x_scales ? whole_blocks(1) : job.inputs, depth = tile.last;
  for (int64_t block = 0; block < job.inputs; block += part) {
    const bool last = block + part >= job.inputs;
    tile.blocks = min(part, job.inputs - block);
    tile.last = last ? depth : tile.depth;
    tile.part = (block ? TRACEA_CONV_CONTINUES : 0) | (last ? 0 : TRACEA_CONV_STOPS);
    job.conv(&tile);
    tile.x += part * tile.x_block, tile.w += part * tile.w_block;
  }
}

// One plane times one group of output blocks.
inline void winograd_multiply(const WinogradJob& job, const WinogradTask& at, int64_t plane,
                              int64_t column, int32_t* state) {
  const int64_t first = job.outputs * column / job.columns;
  const int64_t end = job.outputs * (column + 1) / job.columns;
  const int64_t lanes = job.lanes, panel = job.inputs * lanes * kLanes;
  const int64_t pieces = ceil_div(at.tiles, job.conv_pixels);
  tracea_conv_tile tile = {};
  tile.state = state;
  tile.blocks = job.inputs, tile.rows = tile.cols = 1;
  tile.depth = lanes, tile.last = ceil_div(job.last * lanes, kLanes);
  tile.x_block = at.tiles * lanes, tile.x_depth = 1, tile.x_step = lanes;
  tile.w = job.w->f32() + (plane * job.outputs + first) * panel;
  tile.w_block = tile.w_row = lanes * kLanes, tile.w_panel = panel;
  tile.y_panel = at.tiles * kLanes, tile.y_size = sizeof(float), tile.y_step = kLanes;
  tile.lo = -INFINITY, tile.hi = INFINITY;
  tile.lines = 1, tile.nv = static_cast<int32_t>(end - first);
  const int64_t narrow = at.tiles / pieces, wider = at.tiles % pieces;
  const char* soon = reinterpret_cast<const char*>(tile.w + tile.nv * panel);
  if (job.x_scales) {
    tile.x_scale = job.x_scales + at.n;
    tile.w_scale = job.w_scales + (plane * job.outputs + first) * kLanes;
  }
  const int64_t wanted = at.row ? 0 : panel / kLanes;
  tile.prefetch_lines = static_cast<int32_t>(ceil_div(lanes, pieces));
  tile.prefetch_end = soon + wanted * kAlign;
  // Two runs of pieces that are alike.
  for (int64_t i = 0; i < pieces; i += tile.tiles) {
    const int64_t begin = i * narrow + min(i, wider);
    tile.tiles = (i < wider ? wider : pieces) - i;
    tile.pixels = static_cast<int32_t>(narrow + (i < wider));
    tile.x_next = tile.pixels * lanes, tile.y_next = tile.pixels * kLanes;
    tile.x = at.v + plane * job.in_plane + begin * lanes;
    tile.y = at.product + plane * job.out_plane + (first * at.tiles + begin) * kLanes;
    tile.prefetch = soon + min(i * tile.prefetch_lines * job.inputs, wanted) * kAlign;
    winograd_parts(job, tile);
  }
}

// A row of tiles whose results are buffered until the elementwise chain rounds them, a few tiles at a
// time.
inline void winograd_pieces(const WinogradJob& job, tracea_winograd_out_tile tile, int64_t n,
                            int64_t block, int64_t row) {
  alignas(64) float sums[4][kLinePiece * kLanes];
  const int64_t width = job.post_ops.canvas.width, most_tiles = kLinePiece / job.m;
  const float* v = tile.v;
  for (int64_t i = 0; i < job.across; i += most_tiles) {
    const int64_t first = i * job.m;
    tile.tiles = min(most_tiles, job.across - i);
    tile.cols = width - first;
    tile.v = v + i * kLanes;
    tile.add = job.post_ops.add_at(n, block, row, first);
    tile.y = sums[0], tile.y_row = kLinePiece * kLanes, tile.y_size = sizeof(float);
    job.out(&tile);
    for (int64_t line = 0; line < tile.rows; ++line)
      job.post_ops.line(n, block, row + line, first, min(tile.cols, tile.tiles * job.m),
                      sums[line]);
  }
}

inline void winograd_after(const WinogradJob& job, const WinogradTask& at, int64_t block) {
  const PostOps& post_ops = job.post_ops;
  const Canvas& y = post_ops.canvas;
  tracea_winograd_out_tile tile = {};
  tile.tiles = job.across;
  tile.m = static_cast<int32_t>(job.m);
  tile.cols = y.width;
  tile.plane = job.out_plane;
  tile.bias = job.bias ? job.bias + block * kLanes : nullptr;
  const Layout at_end = layout_of(post_ops);
  tile.add_row = post_ops.add ? post_ops.add_strides[2] : 0;
  tile.y_row = y.strides[2];
  tile.y_size = at_end.y_size, tile.add_size = at_end.add_size;
  tile.lo = post_ops.lo, tile.hi = post_ops.hi;
  for (int64_t r = 0; r < at.rows; ++r) {
    const int64_t row = (at.row + r) * job.m;
    tile.rows = min(job.m, y.height - row);
    tile.v = at.product + (block * at.tiles + r * job.across) * kLanes;
    if (post_ops.apart()) {
      winograd_pieces(job, tile, at.n, block, row);
      continue;
    }
    tile.add = post_ops.add_at(at.n, block, row, 0);
    tile.y = y.row(at.n, block, row);
    job.out(&tile);
    for (int64_t line = row; line < row + tile.rows; ++line)
      post_ops.line(at.n, block, line, 0, y.width);
  }
}

// One task, in the first free slot.
inline void winograd_task(void* usr, size_t index) {
  WinogradJob& job = *static_cast<WinogradJob*>(usr);
  const int slot = claim_slot(job.slots);
  const int64_t task = static_cast<int64_t>(index);
  const WinogradTask at = task_of(job, task / job.h_tasks, task % job.h_tasks, slot);
  for (int64_t block = 0; block < job.inputs; ++block) winograd_before(job, at, block);
  int32_t state = 0;
  for (int64_t plane = 0; plane < job.planes; ++plane)
    for (int64_t c = 0; c < job.columns; ++c) winograd_multiply(job, at, plane, c, &state);
  if (job.end) job.end();
  for (int64_t block = 0; block < job.outputs; ++block) winograd_after(job, at, block);
  release_slot(job.slots, slot);
}

inline bool run_shared_task(Run& run, WinogradJob& job, int64_t n, int64_t h_task) {
  job.image = n, job.h_task = h_task;
  const auto before = [](void* usr, size_t i) {
    const WinogradJob& j = *static_cast<const WinogradJob*>(usr);
    winograd_before(j, task_of(j, j.image, j.h_task, 0), static_cast<int64_t>(i));
  };
  const auto multiply = [](void* usr, size_t i) {
    const WinogradJob& j = *static_cast<const WinogradJob*>(usr);
    const WinogradTask at = task_of(j, j.image, j.h_task, 0);
    int32_t state = 0;
    for (int64_t c = 0; c < j.columns; ++c)
      winograd_multiply(j, at, static_cast<int64_t>(i), c, &state);
    if (j.end) j.end();
  };
  const auto after = [](void* usr, size_t i) {
    const WinogradJob& j = *static_cast<const WinogradJob*>(usr);
    winograd_after(j, task_of(j, j.image, j.h_task, 0), static_cast<int64_t>(i));
  };
  const auto step = [&](int64_t tasks, bool last) {
    RowTasks all = {1, 1, tasks};
    all.lines = all.height = job.post_ops.canvas.height;
    all.image = true, all.more = !last;
    return all;
  };
  const bool one = job.post_ops.canvas.box->dims[0] == 1;
  const RowTasks first = step(job.inputs, false), second = step(job.planes, false);
  const RowTasks third = step(job.outputs, true);
  return run.parallel(job.inputs, before, &job, one ? &first : nullptr) &&
         run.parallel(job.planes, multiply, &job, one ? &second : nullptr) &&
         run.parallel(job.outputs, after, &job, one ? &third : nullptr);
}

// Calls to either way are alike.
inline bool check_winograd(Signature& call) {
  const bool pairs = call.opcode() == kWinogradBf16 || call.opcode() == kConvDispatchBf16;
  return !pairs || call.integer(winograd_call::kIcTail) % 2 == 0 ||
         call.fail("a pair of which one channel is missing");
}

inline bool winograd_shapes(Run& run, const Call& call, const TensorView* views, WinogradJob& job) {
  const TensorView &x = views[0], &w = views[1];
  const Canvas& y = job.post_ops.canvas;
  job.m = call.ints[winograd_call::kTile], job.side = job.m + 2, job.planes = job.side * job.side;
  job.last = call.ints[winograd_call::kIcTail];
  job.inputs = x.dims[1], job.outputs = y.box->dims[1];
  const bool pairs = job.lanes != kLanes;
  const int32_t rank = pairs ? 6 : 5;
  const int64_t lanes = lanes_of(call.views[0].type);  // of x itself: float32 where w is integers
  return (blocked(x) && steps_of(x, lanes, job.x_strides) && w.is(job.planes, job.outputs) &&
          !empty(w, rank) && dense_from(w, 0, rank) && w.dims[2] == job.inputs &&
          w.dims[3] == job.lanes && w.dims[4] == kLanes && (!pairs || w.dims[5] == 2) &&
          (!in_integers(call) || scales_fit(views[4], views[5], *y.box, job.planes)) &&
          x.dims[0] == y.box->dims[0] && x.dims[2] >= y.height + 2 && x.dims[3] >= y.width + 2) ||
         misfit(run, "winograd");
}

// Tasks per image: equally many for every thread, if each is large enough.
inline int64_t even_h_tasks(const Run& run, const WinogradJob& job, int64_t images) {
  const int64_t threads = run.divisions();
  const int64_t tasks = images * job.h_tasks;
  const double work = static_cast<double>(images * job.rows * job.across * job.planes) *
                      static_cast<double>(job.inputs * job.outputs * kLanes * kLanes);
  if (tasks % threads == 0 || work < kConvTask * static_cast<double>(threads)) return job.h_tasks;
  return min(job.rows, ceil_div(ceil_div(tasks, threads) * threads, images));
}

inline bool run_winograd(Run& run, const Call& call, const TensorView* views) {
  WinogradJob job = {};
  if (!open_post_ops(run, call, views, winograd_call::kHalo, &job.post_ops))
    return misfit(run, "winograd");
  const Canvas& y = job.post_ops.canvas;
  if (y.bare()) return true;
  const bool whole = in_integers(call);
  job.lanes = lanes_of(call.views[1].type);
  if (!winograd_shapes(run, call, views, job)) return false;
  const tracea_isa_table& isa = *run.host.isa;
  const bool pairs = job.lanes != kLanes;
  job.in = pairs ? isa.winograd_bf16_in : isa.winograd_in;
  job.out = pairs ? isa.winograd_bf16_out : isa.winograd_out;
  job.conv = pairs ? isa.conv_bf16 : isa.conv;
  if (whole) {
    job.in = isa.winograd_int16_in, job.out = isa.winograd_int16_out, job.conv = isa.conv_int16;
    job.x_scales = views[4].f32(), job.w_scales = views[5].f32();
  }
  job.conv_pixels = rows_of_tile(isa.conv_pixels), job.conv_nv = isa.conv_nv;
  if (pairs && !whole) job.conv_pixels = isa.bf16_pixels, job.end = isa.conv_bf16_end;
  job.x = &views[0], job.w = &views[1];
  job.bias = views[2].data ? views[2].f32() : nullptr;
  job.across = ceil_div(y.width, job.m), job.rows = ceil_div(y.height, job.m);
  job.columns = ceil_div(job.outputs, job.conv_nv);
  const int64_t pixel = 4 * (job.inputs * job.lanes + job.outputs * kLanes);  // bytes
  const int64_t row_bytes = job.across * job.planes * pixel;
  const int64_t weights = job.planes * job.inputs * job.outputs * job.lanes * kAlign;
  const ConvSchedule schedule = choose_conv_schedule(call, y.box->dims[0]);
  const bool shared = schedule.h_tasks ? schedule.h_tasks == 1 : weights > row_bytes * job.rows;
  job.task_rows = shared ? job.rows : min(job.rows, max(1, kTaskBuffers / row_bytes));
  if (schedule.h_tasks) job.task_rows = ceil_div(job.rows, min(schedule.h_tasks, job.rows));
  job.h_tasks = ceil_div(job.rows, job.task_rows);
  const int64_t images = y.box->dims[0];
  if (!shared && !schedule.h_tasks) job.h_tasks = even_h_tasks(run, job, images);
  job.task_rows = ceil_div(job.rows, job.h_tasks), job.h_tasks = ceil_div(job.rows, job.task_rows);
  const int64_t tiles = job.task_rows * job.across;
  job.in_plane = tiles * job.inputs * job.lanes + kPlaneGap;
  job.out_plane = tiles * job.outputs * kLanes + kPlaneGap;
  const int64_t tasks = images * job.h_tasks;
  const int64_t bytes = job.planes * (job.in_plane + job.out_plane) * 4;
  Scratch scratch(run);
  if (!make_slots(run, scratch, shared ? 1 : tasks, bytes, &job.slots)) return false;
  RowTasks lines_of = {job.rows, job.h_tasks, 1, job.task_rows};
  lines_of.lines = job.m, lines_of.height = y.height, lines_of.image = true;
  if (!shared) return run.parallel(tasks, winograd_task, &job, images == 1 ? &lines_of : nullptr);
  for (int64_t n = 0; n < images; ++n)
    if (!run_shared_task(run, job, n, 0)) return false;
  return true;
}

// ---- either way ----------------------------------------------------------------------------------

// What both ways take, in units of one pixel times 16 x 16 filters; measured on a Zen 4 at maps from
// 1 x 1 to 64 x 64.  Filters come from memory: that many pixels are what reading 16 x 16 of them
// adds to their products.
constexpr double kReadDirect = 6.0, kReadPlane = 10.0;
constexpr double kPlane = 48.0;  // of setting up the products of one plane
constexpr double kRounded = 8.0;  // of rounding a pixel's 16 channels to integers

// Whether direct convolution is faster: it reads several times fewer filter bytes.
inline bool direct_pays(const Canvas& y, int64_t inputs, int64_t outputs, int64_t m, bool rounds) {
  const double pairs = static_cast<double>(inputs * outputs);
  const double tiles = static_cast<double>(ceil_div(y.width, m) * ceil_div(y.height, m));
  const double pixels = static_cast<double>(y.width * y.height);
  const double direct = 9.0 * pairs * (pixels + kReadDirect) +
                        rounds * kRounded * pixels * static_cast<double>(inputs);
  const double plane = pairs * (tiles + kReadPlane) +
                       tiles * static_cast<double>(inputs + outputs) + kPlane;
  return direct < static_cast<double>((m + 2) * (m + 2)) * plane;
}

// The Winograd call inside a call that chooses at run time; its operands follow the direct filters.
inline Call without_direct(const Call& call) {
  Call inner = call;
  const bool whole = call.opcode == kConvDispatchInt16;
  inner.opcode = whole ? kWinogradInt16 : call.opcode == kConvDispatch ? kWinograd : kWinogradBf16;
  inner.views += 1 + whole, inner.view_count -= 1 + whole, inner.schedule_count = 0;
  return inner;
}

// A convolution of integers whose x is still float32.
inline bool run_rounded(Run& run, Call call, TensorView* views) {
  const TensorView x = views[0];
  TensorView &whole = views[0], &scales = views[4];
  int64_t count = 1;
  for (int32_t i = 4; i >= 0; count *= x.dims[i--]) whole.strides[i] = count;
  Scratch scratch(run);
  if (!(scales.data = scratch.take(4 * x.dims[0] + 2 * count + kAlign))) return false;
  scales.strides[0] = 1;
  whole.data = scales.data + ceil_div(4 * x.dims[0], kAlign) * kAlign;
  int64_t ints[round_images_call::kInts] = {};
  ints[round_images_call::kTail] = call.ints[conv_call::kIcTail];
  Call rounding = call;
  rounding.ints = ints;
  const TensorView between[] = {x, whole, scales};
  View types[kMaxViews];
  for (int32_t i = 0; i < call.view_count; ++i) types[i] = call.views[i];
  types[0].type = ORT_I16, call.views = types;
  return run_round_images_int16(run, rounding, between) && run_conv(run, call, views);
}

inline bool run_conv_dispatch(Run& run, const Call& call, const TensorView* views) {
  Call inner = without_direct(call);
  const int32_t before = call.view_count - inner.view_count;
  const TensorView& w = views[0];
  PostOps post_ops = {};
  if (!open_post_ops(run, inner, views + before, winograd_call::kHalo, &post_ops))
    return misfit(run, "conv_dispatch");
  const bool whole = in_integers(inner);
  if (!direct_pays(post_ops.canvas, w.dims[1], w.dims[0], call.ints[winograd_call::kTile], whole))
    return run_winograd(run, inner, views + before);
  int64_t ints[conv_call::kInts];
  for (int64_t& one : ints) one = 1;  // strides, dilations, groups, zeros around the image
  ints[conv_call::kOcTail] = call.ints[winograd_call::kOcTail];
  ints[conv_call::kIcTail] = call.ints[winograd_call::kIcTail];
  memcpy(ints + conv_call::kHalo, call.ints + winograd_call::kHalo, 4 * sizeof *ints);
  TensorView boxes[kMaxViews];
  for (int32_t i = 0; i < inner.view_count; ++i) boxes[i] = views[before + i];
  boxes[1] = w;
  inner.opcode = whole ? kConvInt16 : inner.opcode == kWinograd ? kConv : kConvBf16;
  inner.ints = ints, inner.int_count = conv_call::kInts;
  if (!whole) return run_conv(run, inner, boxes);
  const Canvas& y = post_ops.canvas;
  if (!blocked(boxes[0]) || !dense_from(w, 0, 7) ||
      !boxes[0].is(y.box->dims[0], w.dims[1], y.height + 2, y.width + 2))
    return misfit(run, "conv_dispatch");
  boxes[5] = views[1];
  return run_rounded(run, inner, boxes);
}

}  // namespace tracea
