// Tiles and tasks of a dense convolution (runtime/conv.h).
#pragma once
#include "runtime/blocked.h"

namespace tracea {

constexpr int64_t kTaskInputBytes = 256 * 1024;  // about a quarter of an L2 cache
constexpr int64_t kSmallInput = 1024 * 1024;  // read again and again rather than large weights
constexpr int64_t kPanelBytes = 256 * 1024;   // of weights; a larger panel is summed in parts
constexpr int64_t kMaxPrefetchLines = 8 * 1024;     // asked for ahead of a product: half an L2 cache
constexpr int64_t kBriefSum = 32;            // numbers; of bf16 and float32 alike
constexpr double kConvTask = 1e6;             // multiply-adds worth a task of their own
constexpr double kShared = kConvTask / 8;     // worth being divided, between threads of a team
constexpr int64_t kNearer = 2;                // reading what all share rather than another core's

// The plan's tiling for so many images; all zero where the plan has none.
inline ConvSchedule choose_conv_schedule(const Call& call, int64_t images) {
  for (int32_t i = 0; i < call.schedule_count; ++i)
    if (images <= call.conv_schedules[i].max_images) return call.conv_schedules[i];
  return {};
}

// Input blocks whose sums of integers fit 32 bits, as in ops/int16.py.
constexpr int64_t kWholeRun = 256;
inline int64_t whole_blocks(int64_t taps) { return max(1, kWholeRun / kLanes / max(taps, 1)); }

// One axis of what is read: `size` lines or columns, the first and last of which hold zeros.
struct Axis {
  int64_t size, before, behind, stride, dilation;
};

// The taps between which all lie that meet a number for outputs [from, from + count).  At least one.
inline Taps taps_of(const Axis& a, int64_t taps, int64_t from, int64_t count) {
  const int64_t begin = from * a.stride, reach = (count - 1) * a.stride, end = a.size - a.behind;
  if (begin >= a.before && begin + reach + (taps - 1) * a.dilation < end) return {0, taps};
  const auto meets = [&](int64_t tap) {
    const int64_t at = begin + tap * a.dilation;
    const int64_t skipped = at < a.before ? ceil_div(a.before - at, a.stride) * a.stride : 0;
    return at + skipped < end && skipped <= reach;
  };
  int64_t first = 0, last = taps;
  while (last > 1 && !meets(last - 1)) --last;
  while (first < last - 1 && !meets(first)) ++first;
  return {first, last};
}

// Taps widened to whole groups of `group` taps: the order of a sum must not depend on how outputs
// are tiled.
inline Taps whole_groups(const Taps& t, int64_t group, int64_t taps) {
  return {t.first / group * group, min(ceil_div(t.end, group) * group, taps)};
}

struct ConvJob {
  tracea_conv_fn conv;
  tracea_conv_end_fn end;            // null where kernels set nothing up
  int64_t pixels;                    // of the kernel's largest tile
  int64_t tap_group;                 // taps of a row that it takes together
  const float *x_scales, *w_scales;  // of integers; else null
  tracea_conv_tile tap;  // strides and counts every tile shares
  PostOps post_ops;
  const TensorView* x;
  const float* first;                // of x that a tap meets
  Axis down, along;                  // of x from there on
  bool scattered;                    // taps are left out, and so some of the filters
  int64_t x_strides[4];
  const float* bias;
  int64_t images, blocks;              // blocks of output channels
  bool half_tile;                      // the last of them has 8 channels at most
  int64_t w_image;                     // floats of weights per image, or 0 where they share them
  int64_t groups, per_group, x_group;  // blocks of y, and floats of x, per group
  int64_t height, width;               // in outputs; height 1 when lines are joined,
  int64_t joined;                      // of so many outputs; else 0
  int64_t x_step_row;                  // floats between the inputs of two output rows
  int64_t lines, across, units;        // rows per tile; tiles per line; tile rows
  int64_t narrow, wider;               // outputs of a tile's line; the first `wider` have one more
  int64_t part;                        // input blocks summed at once
  int64_t columns, per_task, chunks;   // channel groups of nv blocks; of a task; tasks over them
  int64_t h_tasks;                     // tasks over the tiles of one image
  WeightPrefetch next_weights;                         // what the next product reads
};

// Whether lines of x, y and every operand follow each other without a gap.
inline bool joins_lines(const TensorView& x, const PostOps& post_ops) {
  const Canvas& y = post_ops.canvas;
  const int64_t row = y.width * kLanes;
  const Halo& halo = y.halo;
  if (y.height == 1 || (halo.left | halo.right)) return false;
  bool ok = x.dims[3] == y.width && x.strides[2] == row && y.strides[2] == y.width * y.lanes &&
            (!post_ops.add || post_ops.add_strides[2] == y.width * post_ops.add_lanes);
  for (int32_t i = 1; ok && post_ops.type && i < post_ops.type->operands; ++i) {
    const TensorView& box = post_ops.extra[i - 1];
    ok = box.strides[2] == box.strides[3] * y.width;
  }
  return ok;
}

// Tiles of a brief sum have half the outputs, in bf16 of one block: they end while the next one's
// products begin, for which the results of a whole one leave no room in the processor's queues.
// At AVX2, and on matrix tiles, whole tiles are as small or end otherwise; a chain wants long lines.
inline bool brief(const ConvJob& job, const tracea_isa_table& isa) {
  const tracea_conv_tile& tap = job.tap;
  return tap.blocks * tap.rows * tap.cols * kLanes <= kBriefSum && !job.x_scales && !job.half_tile &&
         !job.post_ops.chain && isa.conv_nv > 1 && job.pixels == isa.conv_pixels;
}

// Whether every thread shall have lines of its own, which are then those it wrote in the call
// before: what lies in another core's cache takes longer to read than filters that all read.
inline bool by_lines(const ConvJob& job, int64_t threads, int64_t input, int64_t weights,
                     double work) {
  const int64_t tiles = job.units * job.across;
  return threads > 1 && job.images % threads && tiles >= threads && work >= kShared &&
         (job.units == 1 || tiles >= 3 * threads) && weights < kNearer * input;
}

// Gives every thread equally many tasks along the image, next to each other, and tasks in them that
// another thread may take.
inline void share_lines(ConvJob& job, int64_t threads, int64_t wanted) {
  if (job.units == 1) {
    job.across = min(job.width, ceil_div(job.across, threads) * threads);
    job.narrow = job.width / job.across, job.wider = job.width % job.across;
  }
  job.h_tasks = min(job.units * job.across, ceil_div(job.h_tasks, threads) * threads);
  const int64_t chunks = ceil_div(wanted, job.images * job.h_tasks);
  job.per_task = ceil_div(job.columns, max(1, min(chunks, job.columns)));
  job.chunks = ceil_div(job.columns, job.per_task);
}

constexpr double kTeamTask = kConvTask / 10;  // worth a task of their own, between threads of a team
constexpr int64_t kMostTasks = 6;  // of a thread
constexpr double kPerByte = 4;    // multiply-adds in which a byte of another core's arrives
constexpr double kPerTask = 2e4;  // what one more task takes
constexpr double kPerTile = 1.0 / 8;  // what one more tile takes, of the widest one

// How long the thread with most to do takes, and the tasks so divided.
struct ConvShares {
  double time;
  int64_t across, h_tasks, per_task, chunks;
};

// Work, in multiply-adds, and bytes that a convolution reads.
struct ConvCosts {
  double work, input, weights;
};

// Divides tiles, `across` a line, and the columns among `threads` threads, in up to `most` tasks each;
// keeps what is better than `best`.
inline void try_shares(const ConvJob& job, const ConvCosts& costs, int64_t threads, int64_t most,
                       int64_t across, ConvShares* best) {
  const int64_t tiles = job.units * across;
  const double all = static_cast<double>(tiles), more = kPerTile * static_cast<double>(job.pixels);
  const double first = static_cast<double>(job.units * job.across * ceil_div(job.width, job.across));
  const double size = static_cast<double>(ceil_div(job.width, across) * job.lines) + more;
  const double tile = costs.work * size / (first * static_cast<double>(job.lines));
  for (int64_t per_task = job.columns; per_task;) {
    const int64_t chunks = ceil_div(job.columns, per_task);
    for (int64_t rounds = 1, before = 0; rounds <= most; ++rounds) {
      const int64_t h_tasks = min(tiles, max(1, threads * rounds / (job.images * chunks)));
      if (h_tasks == before) continue;
      before = h_tasks;
      const int64_t each = ceil_div(job.images * h_tasks * chunks, threads);
      const double lines = static_cast<double>(ceil_div(tiles, h_tasks));
      const double part = static_cast<double>(per_task) / static_cast<double>(job.columns);
      const double busy = static_cast<double>(each) * (tile * lines * part + kPerTask);
      const double read = static_cast<double>(ceil_div(each, chunks)) * lines / all;
      const double time = busy * with_tail(each) +
                          kPerByte * (read * costs.input +
                                      static_cast<double>(min(each, chunks)) * part * costs.weights / 2);
      if (best->time > 0 && time >= best->time) continue;
      *best = {time, across, h_tasks, per_task, chunks};
    }
    per_task = per_task > 1 ? min(per_task - 1, ceil_div(job.columns, chunks + 1 + chunks / 8)) : 0;
  }
}

// Divides the tiles of an image, and the columns, among several threads: so that the one with most
// to do has least, with what it reads counted in.  Where there are few tiles, narrower ones may be
// shared more evenly: of 49 outputs in 5 columns, 15 tiles of 17 for 16 threads, not 10 of 25.
inline void share_evenly(ConvJob& job, int64_t threads, const ConvCosts& costs) {
  const int64_t worth = static_cast<int64_t>(costs.work / kTeamTask);
  const int64_t most = max(1, min(kMostTasks, worth / threads));
  threads = max(1, min(threads, worth + worth / 2));
  ConvShares best = {};
  const bool few = job.units == 1 && job.images * job.across * job.columns < 2 * threads;
  const int64_t last = few ? min(job.width, job.across + job.across / 2 + 1) : job.across;
  for (int64_t across = job.across; across <= last; ++across)
    try_shares(job, costs, threads, most, across, &best);
  job.across = best.across, job.h_tasks = best.h_tasks;
  job.narrow = job.width / job.across, job.wider = job.width % job.across;
  job.per_task = best.per_task, job.chunks = best.chunks;
}

// Tile sizes of the outputs and the work of one task: as the plan says, else chosen by size.
inline void divide_conv(Run& run, ConvJob& job, int64_t stride_h, const ConvSchedule& schedule) {
  const tracea_isa_table& isa = *run.host.isa;
  const tracea_conv_tile& tap = job.tap;
  const bool small = brief(job, isa);
  const int64_t widest = schedule.ow_tile ? min(schedule.ow_tile, job.pixels) : job.pixels / (small ? 2 : 1);
  const bool nchw32c = job.post_ops.canvas.nchw32c || job.post_ops.add_nchw32c;
  const int64_t most_nv = nchw32c ? min(isa.conv_nv, 2) : isa.conv_nv;
  const int64_t nv = small && job.conv == isa.conv_bf16 ? 1 : most_nv;
  const bool pairs = job.width <= job.pixels / 2 && job.height > 1;
  job.lines = pairs && schedule.oh_tile != 1 ? 2 : 1;
  job.across = ceil_div(job.width, widest);
  job.narrow = job.width / job.across, job.wider = job.width % job.across;
  job.units = ceil_div(job.height, job.lines);
  job.columns = job.groups * ceil_div(job.per_group, nv);
  const int64_t panel = tap.w_block * nv * 4, weights = job.blocks * tap.w_panel * 4;
  const int64_t part = schedule.ic_block ? min(schedule.ic_block, tap.blocks) : max(1, kPanelBytes / panel);
  job.part = ceil_div(tap.blocks, ceil_div(tap.blocks, part));
  if (job.post_ops.canvas.rounds()) job.part = tap.blocks;  // nowhere to keep sums in between
  if (job.x_scales) job.part = whole_blocks(tap.rows * tap.cols);

  const int64_t tiles = job.units * job.across;
  const int64_t input = tap.blocks * job.groups * job.height * stride_h * job.width * tap.x_step *
                        static_cast<int64_t>(sizeof(float));
  job.h_tasks = 1;
  if (job.columns > 1 && (input > kSmallInput || weights < input))
    job.h_tasks = ceil_div(input, kTaskInputBytes);
  job.h_tasks = max(1, min(job.h_tasks, tiles / 4));
  const int64_t threads = run.host.processors;
  if (job.h_tasks >= threads) job.h_tasks = min(tiles, ceil_div(job.h_tasks, threads) * threads);
  if (schedule.h_tasks) job.h_tasks = min(schedule.h_tasks, tiles);
  const double work = static_cast<double>(tiles) * static_cast<double>(widest) *
                      static_cast<double>(job.blocks * tap.w_panel);
  int64_t wanted = min(4 * threads, static_cast<int64_t>(work / kConvTask));
  const bool busy = wanted >= threads;  // as many tasks for each, then
  if (busy) wanted = ceil_div(wanted, threads) * threads;
  const int64_t team = run.team && !schedule.h_tasks && !schedule.oc_chunk ? run.divisions() : 1;
  if (team > 2 && work < kConvTask * static_cast<double>(2 * team))
    return share_evenly(job, team, {work, static_cast<double>(input), static_cast<double>(weights)});
  if (!schedule.h_tasks && !schedule.oc_chunk && by_lines(job, run.divisions(), input, weights, work))
    return share_lines(job, run.divisions(), wanted);
  const int64_t shared = max(job.images * job.h_tasks, 1);
  int64_t columns = ceil_div(wanted, shared);
  while (busy && columns < job.columns && shared * columns % threads) ++columns;
  job.per_task = ceil_div(job.columns, max(min(columns, job.columns), 1));
  if (schedule.oc_chunk) job.per_task = min(schedule.oc_chunk, job.columns);
  job.chunks = ceil_div(job.columns, job.per_task);
  const int64_t tasks = job.images * job.h_tasks * job.chunks;
  if (!schedule.h_tasks && tasks < min(wanted, 2 * threads))
    job.h_tasks = max(job.h_tasks, min(tiles, ceil_div(wanted, job.images * job.chunks)));
}

}  // namespace tracea
