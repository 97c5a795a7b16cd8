// The host loop of convolutions of bytes, channels last: a task gathers the patches that some
// windows see into rows, and multiplies those by all panels, as a GEMM does.
#pragma once
#include "runtime/conv_windows.h"
#include "runtime/winograd_bytes.h"

namespace tracea {

constexpr int64_t kPatchBytes = 128 * 1024;  // of a task's patches, which stay in L2

constexpr int64_t kManyBytes = 512;  // from here on memcpy is faster

constexpr int64_t kShortRun = 32;    // bytes copied at once where the source has that many

// A few bytes, inline: a patch is made of many short runs.  What is written behind them is written
// again, or lies behind the last patch.
inline void copy_bytes(char* to, const char* from, int64_t count, const char* end) {
  if (count <= 0) return;
  if (count <= kShortRun && end - from >= kShortRun) {
    memcpy(to, from, static_cast<size_t>(kShortRun));
  } else if (count >= kManyBytes || count < 4) {
    memcpy(to, from, static_cast<size_t>(count));
  } else if (count < 8) {
    memcpy(to, from, 4), memcpy(to + count - 4, from + count - 4, 4);
  } else if (count < 16) {
    memcpy(to, from, 8), memcpy(to + count - 8, from + count - 8, 8);
  } else {
    for (int64_t i = 0; i + 16 <= count; i += 16) memcpy(to + i, from + i, 16);
    memcpy(to + count - 16, from + count - 16, 16);
  }
}

// One line of taps of a window whose first tap lies in column `col`.
inline char* gather_line(const ConvNhwcJob& job, const char* line, int64_t col, char* to) {
  const int64_t taps = job.kernel[1], depth = job.depth, step = job.dilations[1];
  if (!line) {
    memset(to, job.padding, static_cast<size_t>(taps * depth));
    return to + taps * depth;
  }
  if (job.whole) {
    const int64_t before = min(max(-col, 0), taps), end = max(min(job.width - col, taps), before);
    if (before) memset(to, job.padding, static_cast<size_t>(before * depth));
    copy_bytes(to + before * depth, line + (col + before) * job.pixel, (end - before) * depth,
               job.end);
    if (end < taps) memset(to + end * depth, job.padding, static_cast<size_t>((taps - end) * depth));
    return to + taps * depth;
  }
  for (int64_t t = 0; t < taps; ++t, col += step, to += depth) {
    if (col < 0 || col >= job.width) memset(to, job.padding, static_cast<size_t>(depth));
    else copy_bytes(to, line + col * job.pixel, depth, job.end);
  }
  return to;
}

// Whether all lines of taps are short enough to copy kShortRun bytes each, beyond their end.
inline bool short_lines(const ConvNhwcJob& job) {
  return job.whole && job.kernel[1] * job.depth <= kShortRun;
}

// The patch of the window whose first tap lies at (row, col) of image x.
inline void gather_window(const ConvNhwcJob& job, const char* x, int64_t row, int64_t col,
                          bool shorts, char* to) {
  const int64_t tall = (job.kernel[0] - 1) * job.dilations[0];
  const bool inside = row >= 0 && row + tall < job.height && col >= 0 &&
                      col + job.kernel[1] <= job.width;
  const char* end = to + job.row_bytes;
  const char* from = inside ? x + row * job.line + col * job.pixel : nullptr;
  if (shorts && inside && job.end - from >= tall * job.line + kShortRun) {
    const int64_t run = job.kernel[1] * job.depth, step = job.dilations[0] * job.line;
    for (int64_t t = 0; t < job.kernel[0]; ++t, from += step, to += run)
      memcpy(to, from, static_cast<size_t>(kShortRun));
  } else {
    for (int64_t t = 0; t < job.kernel[0]; ++t, row += job.dilations[0]) {
      const bool exists = row >= 0 && row < job.height;
      to = gather_line(job, exists ? x + row * job.line : nullptr, col, to);
    }
  }
  for (; to < end; ++to) *to = 0;
}

// The patches of windows [first, end), of the channels from `channel` on.
inline void gather_patches(const ConvNhwcJob& job, int64_t channel, int64_t first, int64_t end,
                           char* to) {
  int64_t col = first % job.columns, row = first / job.columns % job.rows;
  int64_t image = first / job.columns / job.rows;
  const bool shorts = short_lines(job);
  for (int64_t i = first; i < end; ++i, to += job.row_bytes) {
    gather_window(job, job.x + image * job.image + channel, row * job.strides[0] - job.top,
                  col * job.strides[1] - job.left, shorts, to);
    if (++col == job.columns) {
      col = 0;
      if (++row == job.rows) row = 0, ++image;
    }
  }
}

// The operands of one group: its panels, and its columns of the results.
inline Item group_of(const ConvNhwcJob& job, int64_t group) {
  const GemmJob& gemm = job.gemm;
  Item item = {};
  const int64_t panels = ceil_div(gemm.n, TRACEA_PANEL), column = group * gemm.n;
  item.w = gemm.w->f32() + group * panels * gemm.w_panel;
  const int32_t operands = gemm.type ? gemm.type->operands : 1;
  const int32_t results = gemm.type ? gemm.type->results : 1;
  for (int32_t i = 1; i < operands; ++i) {
    const uint8_t kind = gemm.type->kind[i];
    const bool spread = kind == TRACEA_FULL || kind == TRACEA_ROW;
    item.extra[i - 1] = gemm.extra[i - 1].data +
                        (spread ? column * element_size(gemm.type->type[i]) : 0);
  }
  for (int32_t i = 0; i < results; ++i)
    item.result[i] = gemm.results[i].data +
                     column * (gemm.type ? element_size(gemm.type->result[i]) : 4);
  return item;
}

inline void conv_nhwc_task(void* usr, size_t index) {
  ConvNhwcJob& job = *static_cast<ConvNhwcJob*>(usr);
  const int64_t part = static_cast<int64_t>(index) % job.gemm.groups;
  const int64_t task = static_cast<int64_t>(index) / job.gemm.groups;
  const int64_t group = task % job.groups, chunk = task / job.groups;
  const int64_t first = job.gemm.m * chunk / job.gemm.chunks;
  const int64_t end = job.gemm.m * (chunk + 1) / job.gemm.chunks;
  const int slot = claim_slot(job.gemm.slots);
  char* patches = memory_of(job.gemm.slots, slot);
  if (job.depthwise) {
    depthwise_windows(job, group_of(job, 0), {first, end, part}, patches);
    return release_slot(job.gemm.slots, slot);
  }
  gather_patches(job, group * job.depth, first, end, patches);
  char* sums = job.sums ? patches + (end - first) * job.row_bytes : nullptr;
  multiply_byte_rows(job.gemm, group_of(job, group), {first, end, part}, patches, job.taps_bytes, sums, nullptr);
  release_slot(job.gemm.slots, slot);
}

inline bool check_conv_nhwc(Signature& call) {
  return call.lacks(2) || call.type(2) == call.type(0) ||
         call.fail("a zero point of another type");
}

// Positions of a window along an axis, or -1.
inline int64_t window_positions(int64_t size, int64_t before, int64_t after, int64_t kernel,
                                int64_t dilation, int64_t stride) {
  int64_t span, room;
  if (__builtin_mul_overflow(kernel - 1, dilation, &span) ||
      __builtin_add_overflow(size, before + after - 1, &room))
    return -1;
  return room < span ? 0 : (room - span) / stride + 1;
}

inline bool conv_nhwc_shapes(Run& run, const Call& call, const TensorView* views,
                             ConvNhwcJob& job) {
  GemmJob& gemm = job.gemm;
  const TensorView &x = views[0], &w = views[1], &zero = views[2], &y = gemm.results[0];
  const int64_t *kernel = call.ints + conv_nhwc_call::kKernel,
                *pads = call.ints + conv_nhwc_call::kPads;
  for (int axis = 0; axis < 2; ++axis) {
    job.kernel[axis] = kernel[axis];
    job.strides[axis] = call.ints[conv_nhwc_call::kStrides + axis];
    job.dilations[axis] = call.ints[conv_nhwc_call::kDilations + axis];
  }
  job.images = x.dims[0], job.height = x.dims[1], job.width = x.dims[2], job.channels = x.dims[3];
  job.image = x.strides[0], job.line = x.strides[1], job.pixel = x.strides[2];
  job.top = pads[0], job.left = pads[1];
  job.rows = window_positions(job.height, pads[0], pads[2], kernel[0], job.dilations[0],
                              job.strides[0]);
  job.columns = window_positions(job.width, pads[1], pads[3], kernel[1], job.dilations[1],
                                 job.strides[1]);
  job.groups = call.ints[conv_nhwc_call::kGroups];
  const int64_t filters = y.dims[1];
  bool ok = job.rows >= 0 && job.columns >= 0 && job.channels % job.groups == 0 &&
            filters % job.groups == 0 && (job.channels <= 1 || x.strides[3] == 1) &&
            (!zero.data || zero.is(1));
  int64_t m;
  ok = ok && !__builtin_mul_overflow(job.images, job.rows, &m) &&
       !__builtin_mul_overflow(m, job.columns, &m) && y.dims[0] == m;
  job.depth = job.channels / job.groups;
  ok = ok && !__builtin_mul_overflow(kernel[0] * kernel[1], job.depth, &job.taps_bytes) &&
       job.taps_bytes < INT32_MAX;
  if (!ok) return misfit(run, "convolution of bytes");
  gemm.m = m, gemm.n = filters;
  gemm.k = ceil_div(job.taps_bytes, 4);
  job.row_bytes = 4 * gemm.k;
  job.whole = job.dilations[1] == 1 && job.depth == job.pixel;
  job.sums = w.dims[1] == gemm.k + 2;
  job.depthwise = job.groups > 1 && job.depth == 1 && filters == job.groups && !job.sums;
  ok = w.dims[1] == gemm.k + 1 + job.sums && w.dims[2] == TRACEA_PANEL && w.dims[3] == 4 &&
       w.dims[0] == ceil_div(filters, TRACEA_PANEL) && w.strides[3] == 1 && w.strides[2] == 4 &&
       w.strides[1] == 4 * TRACEA_PANEL && w.strides[0] % 4 == 0 &&
       (job.groups == 1 || job.depthwise || filters / job.groups % TRACEA_PANEL == 0);
  ok = ok && epilogue_lies(gemm);
  if (job.depthwise) job.groups = 1;
  gemm.n = filters / job.groups;
  return ok || misfit(run, "convolution of bytes");
}

// Windows of a task of depthwise convolutions: as many as a kernel prepares the weights for, and where
// there are few, some for each thread or, where there are fewer yet, all in some of the channels.
inline void divide_depthwise(ConvNhwcJob& job, int64_t processors) {
  GemmJob& gemm = job.gemm;
  const int64_t pixels = tap_pixels(job), whole = ceil_div(gemm.m, pixels);
  const int64_t rows = min(processors, max(gemm.m / kFewPatches / 2, 1));
  gemm.chunks = processors > 1 ? min(4 * processors, max(whole, rows)) : 1;
  if (gemm.chunks > processors) gemm.chunks = ceil_div(gemm.chunks, processors) * processors;
  const int64_t blocks = ceil_div(job.channels, kTapChannels);
  gemm.columns = blocks;
  gemm.per_group = ceil_div(blocks, max(min(ceil_div(processors, gemm.chunks), blocks), 1));
  gemm.groups = ceil_div(blocks, gemm.per_group);
}

// Windows per task: few enough for their patches to stay in L2, and for every thread to get a task.
inline void divide_windows(ConvNhwcJob& job, int64_t processors) {
  GemmJob& gemm = job.gemm;
  constexpr double kSmall = 1e5;  // multiply-adds below which no thread is woken
  const double work = static_cast<double>(gemm.m) * static_cast<double>(gemm.n) *
                      static_cast<double>(job.row_bytes);
  const bool alone = processors <= 1 || work < kSmall;
  gemm.per_task = 1, gemm.items = 1;
  if (job.depthwise) return divide_depthwise(job, alone ? 1 : processors);
  const int64_t each = max(kPatchBytes / max(job.row_bytes, 1), kFewPatches);
  gemm.chunks = max(ceil_div(gemm.m, each),
                    min(ceil_div(alone ? 1 : 4 * processors, job.groups), ceil_div(gemm.m, kFewPatches)));
  divide_byte_columns(gemm, gemm.chunks * job.groups, alone ? 1 : processors);
  gemm.k_block = gemm.k, gemm.k_blocks = 1;
  gemm.prefetch = 1;
}

inline bool run_conv_nhwc(Run& run, const Call& call, const TensorView* views) {
  ConvNhwcJob job = {};
  GemmJob& gemm = job.gemm;
  gemm.isa = run.host.isa;
  gemm.type = call.chain_type();
  gemm.chain = gemm.type ? gemm.isa->chain[call.chain] : nullptr;
  gemm.w = &views[1];
  gemm.extra = &views[3];
  gemm.results = gemm.extra + (gemm.type ? gemm.type->operands - 1 : 0);
  gemm.parts = 1;
  if (!conv_nhwc_shapes(run, call, views, job)) return false;
  if (gemm.m == 0 || gemm.n == 0) return true;
  const bool is_signed = call.views[0].type == ORT_I8;
  const char* zero = views[2].data;
  gemm.zero = static_cast<int32_t>(call.ints[conv_nhwc_call::kZero]);
  if (zero && is_signed) gemm.zero = *reinterpret_cast<const int8_t*>(zero);
  else if (zero) gemm.zero = *reinterpret_cast<const uint8_t*>(zero);
  job.padding = gemm.zero & 0xff;
  if (is_signed) gemm.zero += 128, gemm.flip = static_cast<int32_t>(0x80808080);
  const TensorView& x = views[0];
  job.x = x.data;
  job.end = x.data + (x.dims[0] - 1) * x.strides[0] + (x.dims[1] - 1) * x.strides[1] +
            (x.dims[2] - 1) * x.strides[2] + x.dims[3];
  multiply_bytes(gemm);
  round_sums(gemm);
  gemm.x_row = gemm.k, gemm.x_step = 1;
  gemm.w_panel = views[1].strides[0] / 4, gemm.w_row = TRACEA_PANEL, gemm.w_column = 1;
  gemm.next_weights = run.next_weights;
  gemm.caller = pthread_self();
  if (is_winograd(job)) return run_winograd_bytes(run, job, group_of(job, 0));
  if (lies_in_windows(job)) return run_windows(run, job, group_of(job, 0));
  divide_windows(job, run.host.processors);
  const int64_t rows = ceil_div(gemm.m, gemm.chunks);
  const int64_t bytes = job.depthwise ? depthwise_bytes(job)
                                      : rows * (job.row_bytes + (job.sums ? 4 : 0)) + kShortRun;
  Scratch scratch(run);
  const int64_t tasks = gemm.chunks * job.groups * gemm.groups;
  if (!make_slots(run, scratch, tasks, bytes, &gemm.slots)) return false;
  return run.parallel(tasks, conv_nhwc_task, &job);
}

}  // namespace tracea
