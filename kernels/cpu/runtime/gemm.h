// The host loop of GEMM: checks the views, picks the tasks for the operands' layout and divides the work.
#pragma once
#include "runtime/check.h"
#include "runtime/gemm_rows.h"
#include "runtime/gemm_tile.h"
#include "runtime/run.h"

namespace tracea {

constexpr int64_t kNearFloats = 192 * 1024;  // of a column of w that stay in a core's own cache
constexpr int64_t kDepthBlock = 2048;        // steps of k where they do not
constexpr int64_t kPackFloats = 64 * 1024;   // of w packed at a time
constexpr int64_t kThinPack = 256;           // steps of k packed at a time where rows lie apart
constexpr int64_t kThinBlock = 64;           // and between columns where such rows stay in place

// Views before those of the epilogue: x, w, bias and, of integers, the scales of rows and columns,
// or the zero point of x and the sums of its rows.
inline int32_t fixed_views(int64_t layout) {
  return layout == gemm_call::kLayoutInt16 || layout == gemm_call::kLayoutInt8 ? 5 : 3;
}

inline GemmSchedule choose_gemm_schedule(const Call& call, int64_t m) {
  GemmSchedule schedule = {INT32_MAX, 0, 128, 0, m > 4};  // few rows stream at full speed unaided
  for (int32_t i = 0; i < call.schedule_count; ++i) {
    schedule = call.gemm_schedules[i];
    if (m <= schedule.max_rows) break;
  }
  return schedule;
}

// Blocks of k, each a multiple of 16 but the last; whole turns of split panels.
inline void divide_k(GemmJob& job, int64_t wanted) {
  job.k_blocks = max(1, ceil_div(job.k, max(wanted, 64)));
  const int64_t unit = job.split ? TRACEA_SPLIT : TRACEA_PANEL;
  job.k_block = ceil_div(ceil_div(job.k, job.k_blocks), unit) * unit;
  job.k_blocks = max(1, ceil_div(job.k, max(job.k_block, 1)));
}

// How many tasks a product is divided into: `many`, as far as they have `rows` rows; columns become
// narrower for `some` tasks, and narrower than `width` panels for `few`.
struct GemmShare {
  int64_t many, some, few, width, rows;
};

// A team of some threads gets more tasks, because processors differ in speed, and its threads need not
// be woken up.
inline GemmShare team_share(int64_t threads) { return {8 * threads, 3 * threads, threads, 2, 32}; }

// Enough tasks for every processor, of rows enough to make use of a packed panel.
inline GemmShare share_of(const Run& run) {
  const int64_t threads = run.divisions(), processors = run.host.processors;
  if (run.team && threads > 2) return team_share(threads);
  return {processors > 1 ? 4 * processors : 1, processors, processors, 1, 64};
}

// Columns, groups of them and chunks of rows.
inline void divide_work(GemmJob& job, const GemmSchedule& schedule, const GemmShare& share) {
  const int64_t widest = job.nv, panels = ceil_div(job.n, TRACEA_PANEL);
  int64_t width = schedule.nr_panels ? min(schedule.nr_panels, widest) : widest;
  constexpr double kSmall = 1e5;  // multiply-adds that are not worth waking a thread for
  const double work = static_cast<double>(job.m) * static_cast<double>(job.n) *
                      static_cast<double>(job.k);
  const int64_t wanted = work >= kSmall ? share.many : 1;
  job.chunks = ceil_div(job.m, schedule.mc);
  const auto tasks = [&](int64_t group) {
    return job.items * job.chunks * ceil_div(ceil_div(panels, width), group);
  };
  if (!schedule.nc) {
    while (tasks(1) < wanted && job.m / (2 * job.chunks) >= share.rows) job.chunks *= 2;
    while (!schedule.nr_panels && width > 1 &&
           tasks(1) < min(wanted, width > share.width ? share.some : share.few))
      --width;
  }
  job.columns = ceil_div(panels, width);
  const bool large = job.m >= 64 && job.k * width * TRACEA_PANEL > kNearFloats;
  divide_k(job, (large && !job.whole_k) || job.packs ? kDepthBlock : job.k);
  if (job.packs && job.w_column == 1) divide_k(job, min(job.k_block, kThinPack));
  int64_t together = job.m >= 64 ? 1 : min(max(job.columns / 4, 1), job.m >= 32 ? 2 : 4);
  if (job.packs) together = max(1, kPackFloats / (width * TRACEA_PANEL * max(job.k_block, 1)));
  else if (job.w_exact) divide_k(job, kThinBlock), together = 16;
  else if (job.k_blocks > 1) together = 8;
  while (together > 1 && tasks(together) < wanted) together /= 2;
  job.per_group = min(job.columns, schedule.nc ? schedule.nc : together);
  job.per_task = 1;
  if (work < kSmall) {
    job.per_group = job.columns;
    job.per_task = max(1, static_cast<int64_t>(kSmall / max(static_cast<int64_t>(work), 1)));
  }
  job.groups = ceil_div(job.columns, job.per_group);
  job.prefetch = schedule.prefetch && !job.w_exact;
}

// Whether a team's tasks of the same columns are neighbours, so that one or two threads read each of
// the weights, which come from memory.  Products that may be linked have tasks in the order of rows.
inline bool stays_with_columns(const Run& run, const Call& call, const GemmJob& job) {
  const bool simple = job.items == 1 && job.chunks > 1 && !job.packs && job.k_blocks == 1;
  if (!simple || !run.team || run.threads() < kLinkedThreads) return false;
  return call.barrier_from ? has_barrier(call, run.threads(), job.m)
                           : job.k * job.n * 4 > kLinkedWeights;
}

inline bool run_tiles(Run& run, const Call& call, GemmJob& job) {
  divide_work(job, choose_gemm_schedule(call, job.m), share_of(run));
  job.next_weights = run.next_weights;
  job.caller = pthread_self();
  job.streams = streams(job);
  const int64_t tasks = ceil_div(job.items, job.per_task) * job.groups * job.chunks;
  const int64_t width = (ceil_div(ceil_div(job.n, TRACEA_PANEL), job.columns) * job.per_group) *
                        TRACEA_PANEL;
  job.packed_floats = job.packs ? width * job.k_block : 0;
  job.sum_row = !in_place(job) && job.k_blocks > 1 ? width : 0;
  const int64_t sums = job.sum_row * ceil_div(job.m, job.chunks);
  Scratch scratch(run);
  if (job.packed_floats + sums > 0 &&
      !make_slots(run, scratch, tasks, (job.packed_floats + sums) * 4, &job.slots))
    return false;
  job.by_columns = stays_with_columns(run, call, job);
  const RowTasks rows = {job.m, job.chunks, job.groups, 0};
  return run.parallel(tasks, gemm_task, &job, job.items == 1 && !job.by_columns ? &rows : nullptr);
}

// Panels are one axis more than a matrix, lanes of several elements another one; x has such lanes
// too, unless it is rounded on the way.
inline bool check_gemm(Signature& call) {
  const int64_t layout = call.integer(gemm_call::kLayout);
  const int32_t rank = call.rank(gemm_call::kX), size = element_size(call.type(gemm_call::kW));
  const int32_t more = size < 4 ? 2 : layout == gemm_call::kLayoutPanels ? 1 : 0;
  if (call.rank(gemm_call::kW) != rank + more || (size < 4 && rank > 2))
    return call.fail("operands that are no matrices");
  if (layout == gemm_call::kLayoutInt8) {
    if (!call.lacks(gemm_call::kBias)) return call.fail("a bias on integers");
    if (!call.lacks(3) && call.type(3) != call.type(gemm_call::kX))
      return call.fail("a zero point of another type");
  }
  const bool lanes = size < 4 && layout != gemm_call::kLayoutWeightOnlyBf16;
  return element_size(call.type(gemm_call::kX)) == (lanes ? size : 4) ||
         call.fail("operands that are not as its layout says");
}

// Whether w is panels of fours of k, with rows of sums and, where x has some, of zero points; the
// zero point of x and the sums of its rows go into the job.
inline bool takes_fours(const TensorView* views, GemmJob& job) {
  const TensorView &x = views[0], &w = views[1], &zero = views[3], &rows = views[4];
  const int64_t rest = rows.data ? 2 : 1;
  if (zero.data && !zero.is(1)) return false;
  if (rows.data && (!rows.is(job.m) || (job.m > 1 && rows.strides[0] != 1))) return false;
  job.row_sums = reinterpret_cast<const int32_t*>(rows.data);
  return job.k % 4 == 0 && w.dims[0] == ceil_div(job.n, TRACEA_PANEL) &&
         w.dims[1] == job.k / 4 + rest && w.dims[2] == TRACEA_PANEL && w.dims[3] == 4 &&
         w.strides[3] == 1 && w.strides[2] == 4 && w.strides[1] == 4 * TRACEA_PANEL &&
         w.strides[0] % 4 == 0 && (job.k <= 1 || x.strides[1] == 1) &&
         (job.m <= 1 || x.strides[0] % 4 == 0);
}

// Whether an [..., M, N] operand lies as its kind says; then the chain stays inside the view.
inline bool lies_as(const GemmJob& job, const TensorView& box, uint8_t kind) {
  const bool by_row = kind == TRACEA_FULL || kind == TRACEA_COL;
  const bool by_column = kind == TRACEA_FULL || kind == TRACEA_ROW;
  const int64_t *dims = box.dims + job.outer, *strides = box.strides + job.outer;
  return dims[0] == job.m && (job.parts > 1 || dims[1] == job.n) && (by_row || job.m == 1 || strides[0] == 0) &&
         (job.n == 1 || strides[1] == by_column);
}

// Whether the results, and the operands of the epilogue, lie as their kinds say.
inline bool epilogue_lies(const GemmJob& job) {
  const int32_t results = job.type ? job.type->results : job.parts;
  bool ok = true;
  for (int32_t i = 0; ok && i < results; ++i) ok = lies_as(job, job.results[i], TRACEA_FULL);
  for (int32_t i = 1; ok && job.type && i < job.type->operands; ++i)
    ok = lies_as(job, job.extra[i - 1], job.type->kind[i]);
  return ok;
}

inline bool gemm_shapes(Run& run, const Call& call, const TensorView* views, GemmJob& job) {
  const TensorView &x = *job.x, &w = *job.w, &y = job.results[0];
  const int32_t o = job.outer;
  const int64_t layout = call.ints[gemm_call::kLayout], *wide = w.dims + o;
  const bool by_row = layout == gemm_call::kLayoutKn;
  job.m = x.dims[o], job.k = x.dims[o + 1];
  bool sized = true;
  for (int32_t i = 0; i < job.parts; ++i)
    sized = sized && !__builtin_add_overflow(job.n, job.results[i].dims[o + 1], &job.n);
  bool ok = sized && (!job.bias || (job.bias->is(job.n) && (job.n <= 1 || job.bias->strides[0] == 1)));
  if (layout == gemm_call::kLayoutPanels)
    ok = ok && wide[0] == ceil_div(job.n, TRACEA_PANEL) && wide[1] == job.k &&
         wide[2] == TRACEA_PANEL && w.strides[o + 2] == 1;
  else if (layout == gemm_call::kLayoutInt8)
    ok = ok && takes_fours(views, job);
  else if (layout >= gemm_call::kLayoutVnni2)  // x and w as lanes of two elements
    ok = ok && wide[0] == ceil_div(job.n, TRACEA_PANEL) && 2 * wide[1] == job.k &&
         wide[2] == TRACEA_PANEL && wide[3] == 2 && w.strides[2] == 2 && w.strides[3] == 1 &&
         w.strides[1] == 2 * TRACEA_PANEL && w.strides[0] % 2 == 0 && x.strides[1] == 1 &&
         (layout == gemm_call::kLayoutWeightOnlyBf16 || x.strides[0] % 2 == 0) &&
         (layout != gemm_call::kLayoutBf16x2 || job.k % (2 * TRACEA_SPLIT) == 0);
  else
    ok = ok && wide[by_row ? 0 : 1] == job.k && wide[by_row ? 1 : 0] == job.n;
  if (layout == gemm_call::kLayoutInt16) {
    const TensorView &rows = views[3], &columns = views[4];
    ok = ok && rows.is(job.m) && (job.m <= 1 || rows.strides[0] == 1) &&
         columns.is(ceil_div(job.n, TRACEA_PANEL) * TRACEA_PANEL) && columns.strides[0] == 1;
    job.row_scale = rows.f32(), job.column_scale = columns.f32(), job.whole_k = 1;
  }
  ok = ok && epilogue_lies(job);
  job.items = 1;
  for (int32_t axis = 0; ok && axis < o; ++axis) {
    job.items *= y.dims[axis];  // no more than the result has elements
    for (int32_t v = 0; v < call.view_count; ++v)
      ok = ok && (v == 2 || views[v].dims[axis] == y.dims[axis]);
  }
  return ok || run.error.fail("The views of a gemm do not fit together (M %lld, N %lld, K %lld).",
                              static_cast<long long>(job.m), static_cast<long long>(job.n),
                              static_cast<long long>(job.k));
}

// Signed bytes of x become unsigned ones 128 greater by inverting their highest bits.
inline void set_fours(const Call& call, const TensorView* views, GemmJob& job) {
  const bool is_signed = call.views[0].type == ORT_I8;
  const char* zero = views[3].data;
  job.zero = static_cast<int32_t>(call.ints[gemm_call::kZero]);
  if (zero && is_signed) job.zero = *reinterpret_cast<const int8_t*>(zero);
  else if (zero) job.zero = *reinterpret_cast<const uint8_t*>(zero);
  if (is_signed) job.zero += 128, job.flip = static_cast<int32_t>(0x80808080);
  multiply_bytes(job);
  round_sums(job);
  job.whole_k = 1;
  job.x_row /= 4, job.k /= 4;
  job.w_panel = views[1].strides[0] / 4, job.w_row = TRACEA_PANEL, job.w_column = 1;
}

inline bool run_gemm(Run& run, const Call& call, const TensorView* views) {
  GemmJob job = {};
  job.isa = run.host.isa;
  job.type = call.chain_type();
  job.chain = job.type ? job.isa->chain[call.chain] : nullptr;
  job.x = &views[0], job.w = &views[1];
  job.bias = views[2].data ? &views[2] : nullptr;
  job.extra = &views[fixed_views(call.ints[gemm_call::kLayout])];
  job.results = job.extra + (job.type ? job.type->operands - 1 : 0);
  job.parts = static_cast<int32_t>(call.ints[gemm_call::kParts]);
  job.outer = call.views[0].rank - 2;
  if (!gemm_shapes(run, call, views, job)) return false;
  if (job.items == 0 || job.m == 0 || job.n == 0) return true;
  const int64_t *x = job.x->strides + job.outer, *w = job.w->strides + job.outer;
  const int64_t layout = call.ints[gemm_call::kLayout];
  job.x_row = x[0], job.x_step = x[1];
  job.kernel = job.isa->gemm;
  job.mr = rows_of_tile(job.isa->gemm_mr), job.nv = job.isa->gemm_nv;
  if (layout == gemm_call::kLayoutPanels) {
    job.w_panel = w[0], job.w_row = w[1], job.w_column = 1;
  } else if (layout == gemm_call::kLayoutInt8) {
    set_fours(call, views, job);
  } else if (layout >= gemm_call::kLayoutVnni2) {
    job.split = layout == gemm_call::kLayoutBf16x2;
    if (layout == gemm_call::kLayoutVnni2 || job.split) {
      job.kernel = job.split ? job.isa->gemm_bf16x2 : job.isa->gemm_bf16;
      job.end = job.split ? job.isa->gemm_bf16x2_end : job.isa->gemm_bf16_end;
      job.mr = job.isa->bf16_mr, job.nv = job.isa->bf16_nv;
      job.x_row /= 2;
    } else if (layout == gemm_call::kLayoutInt16) {
      job.kernel = job.isa->gemm_int16;
      job.x_row /= 2;
#if defined(__aarch64__)
    } else if (layout == gemm_call::kLayoutF16) {
      job.kernel = job.isa->gemm_f16;
      job.x_row /= 2;
      job.whole_k = 1;  // blocks would end sums in fp16 early
#endif
    } else {
      job.kernel = job.isa->gemm_weight_only_bf16;
      job.x_step = 2;
    }
    job.k /= 2, job.w_panel = w[0] / 2, job.w_row = TRACEA_PANEL, job.w_column = 1;
  } else {
    job.w_panel = TRACEA_PANEL;
    const bool by_row = layout == gemm_call::kLayoutKn;
    job.w_row = w[by_row ? 0 : 1], job.w_column = w[by_row ? 1 : 0];
    const bool along = job.k <= 1 || (job.w_row == 1 && job.x_step == 1);
    if (along && job.m <= kDotRows) return run_dot(run, job);
    job.w_exact = (job.n == 1 || job.w_column == 1) && job.m <= kDotRows;
    job.packs = !job.w_exact;
  }
  return run_tiles(run, call, job);
}

}  // namespace tracea
