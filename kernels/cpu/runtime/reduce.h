// The host loop of reductions: any axes of any strides, with an elementwise chain in front.
//
// Each task reduces a block of results; where there are few results and much to reduce, the range
// is cut into parts (by its size, never by the number of threads) whose totals are then added in
// order.
#pragma once
#include "runtime/axes.h"

namespace tracea {

constexpr int64_t kResults = 512;  // results of a task
constexpr int64_t kDepth = 64;   // rows of a tile whose columns are reduced
constexpr int64_t kFewTasks = 32;

struct ReduceJob : Planes {
  tracea_reduce_fn reduce;
  float *y, *totals, *rests;  // [part][result] where there are parts
  int64_t block, depth, width;  // results of a block; rows and columns of a tile
  int64_t blocks, outer, chunk;    // blocks per outer index; outer indices; blocks per task
  int64_t inner, steps, parts, per_part;  // tiles along the reduced axes, `inner` of them per outer index
  float divisor;
  int32_t kind;
};

// Reduces steps [step, last) into results [at, at + count) of outer index `outer`.
inline void reduce_block(const ReduceJob& job, int64_t outer, int64_t at, int64_t count,
                         int64_t step, int64_t last, float* total, float* rest, bool ends) {
  alignas(64) float filled[kTile];
  const int64_t along = job.down ? job.rows : job.cols;
  const int64_t stride = job.down ? job.depth : job.width;
  int64_t base[kMaxChainViews], from[kMaxChainViews];
  for (int32_t v = 0; v < job.views; ++v)
    base[v] = job.axes.offset(false, v, outer) + at * (job.down ? job.col_stride : job.row_stride)[v];
  tracea_reduce_tile tile = {};
  tile.kind = job.kind;
  tile.divisor = job.divisor;
  tile.first = 1;
  for (; step < last; ++step, tile.first = 0) {
    const int64_t begin = step % job.inner * stride, size = min(stride, along - begin);
    for (int32_t v = 0; v + 1 < job.views; ++v)
      from[v] = base[v] + job.axes.offset(true, v, step / job.inner) +
                begin * (job.down ? job.row_stride : job.col_stride)[v];
    tile.last = ends && step + 1 == last;
    // Where a chain fills the tile, it holds only as many of the block's rows as fit.
    const int64_t group = job.down || !job.prologue.type ? count : max(kTile / size, 1);
    for (int64_t r = 0; r < count; r += group) {
      const int64_t some = min(group, count - r);
      tile.rows = job.down ? size : some;
      tile.cols = job.down ? some : size;
      tile.x = job.x + from[0], tile.x_stride = job.row_stride[0];
      if (job.prologue.type) {
        job.prologue.fill(from, job.row_stride, tile.rows, tile.cols, filled, tile.cols);
        tile.x = filled, tile.x_stride = tile.cols;
        for (int32_t v = 0; v + 1 < job.views; ++v) from[v] += some * job.row_stride[v];
      }
      const int64_t y_stride = job.down ? 1 : job.row_stride[job.views - 1];
      tile.total = total + r, tile.rest = rest + r;
      tile.y = job.y + base[job.views - 1] + r * y_stride;
      tile.y_stride = y_stride;
      job.reduce(&tile);
    }
  }
}

inline void reduce_task(void* usr, size_t index) {
  const ReduceJob& job = *static_cast<const ReduceJob*>(usr);
  const int64_t task = static_cast<int64_t>(index) / job.parts;
  const int64_t part = static_cast<int64_t>(index) % job.parts;
  const int64_t kept = job.down ? job.cols : job.rows;
  const int64_t first = part * job.per_part, last = min(job.steps, first + job.per_part);
  const int64_t end = min(job.outer * job.blocks, (task + 1) * job.chunk);
  float total[kResults], rest[kResults];
  for (int64_t block = task * job.chunk; block < end; ++block) {
    const int64_t outer = block / job.blocks, at = block % job.blocks * job.block;
    const int64_t count = min(job.block, kept - at);
    const int64_t place = (part * job.outer + outer) * kept + at;
    const bool whole = job.parts == 1;
    reduce_block(job, outer, at, count, first, last, whole ? total : job.totals + place,
                 whole ? rest : job.rests + place, whole);
  }
}

inline float joined(int32_t kind, float a, float b) {
  switch (kind) {
    case TRACEA_MAX: return a != a || a > b ? a : b;
    case TRACEA_MIN: return a != a || a < b ? a : b;
    case TRACEA_PRODUCT: return a * b;
    default: return a + b;
  }
}

// Adds the totals of all parts, in order.
inline void join_parts(const ReduceJob& job) {
  const int64_t kept = job.down ? job.cols : job.rows, results = job.outer * kept;
  const int64_t* stride = job.down ? job.col_stride : job.row_stride;
  const bool sums = job.kind <= TRACEA_SQUARE_SUM;
  for (int64_t i = 0; i < results; ++i) {
    double sum = 0;
    float other = job.totals[i];
    for (int64_t part = 0; part < job.parts; ++part) {
      const float total = job.totals[part * results + i], rest = job.rests[part * results + i];
      const bool finite = __builtin_fabsf(total) < __builtin_inff();
      sum += finite ? static_cast<double>(total) + static_cast<double>(rest) : static_cast<double>(total);
      if (part) other = joined(job.kind, other, total);
    }
    const int32_t y = job.views - 1;
    job.y[job.axes.offset(false, y, i / kept) + i % kept * stride[y]] =
        (sums ? static_cast<float>(sum) : other) / job.divisor;
  }
}

inline void divide_reduction(ReduceJob& job) {
  const int64_t kept = job.down ? job.cols : job.rows, along = job.down ? job.rows : job.cols;
  const int64_t whole = along * job.axes.size(true);  // elements of one result
  const int64_t widest = job.prologue.type ? kTile / kDepth * 2 : kResults;
  job.block = min(kept, job.down ? widest : min(kResults, max(kGrain / whole, 1)));
  job.width = job.down ? job.block : min(job.cols, kTile);
  job.depth = min(job.rows, job.prologue.type ? min(kDepth, kTile / job.block) : kDepth);
  job.blocks = ceil_div(kept, job.block);
  job.outer = job.axes.size(false);
  job.chunk = max(kGrain / (whole * job.block), 1);
  job.inner = ceil_div(along, job.down ? job.depth : job.width);
  job.steps = job.inner * job.axes.size(true);
  const int64_t tasks = ceil_div(job.outer * job.blocks, job.chunk);
  const int64_t wanted = min(ceil_div(kFewTasks, tasks), whole * job.block / (2 * kGrain));
  job.per_part = tasks < kFewTasks / 2 ? ceil_div(job.steps, max(min(wanted, job.steps), 1))
                                       : job.steps;
  job.parts = ceil_div(job.steps, job.per_part);
}

// Result of reducing an empty range, means included, as ONNX Runtime defines it.
inline void fill_start(const Call& call, const TensorView& y) {
  const float inf = __builtin_inff();
  const float starts[] = {0.0f, 0.0f, 0.0f, -inf, inf, 1.0f};
  const int32_t rank = call.views[call.view_count - 1].rank;
  int64_t count = 1;
  for (int32_t axis = 0; axis < rank; ++axis) count *= y.dims[axis];
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    for (int64_t axis = rank, at = i; axis-- > 0; at /= y.dims[axis])
      offset += at % y.dims[axis] * y.strides[axis];
    y.f32()[offset] = starts[call.ints[reduce_call::kKind]];
  }
}

inline bool run_reduce(Run& run, const Call& call, const TensorView* views) {
  const int32_t last = call.view_count - 1, rank = call.views[last].rank;
  bool no_result = false, no_element = false;
  const int64_t axes = call.ints[reduce_call::kAxes];
  if (!sizes_agree(call, views, axes, &no_result, &no_element))
    return run.error.fail("The views of a reduction do not fit together.");
  if (no_result) return true;
  if (no_element) return fill_start(call, views[last]), true;
  ReduceJob job = {};
  Scratch dense(run), partial(run);
  job.begin(run, call, views);
  if (!job.fold(views, rank, axes, false)) {
    if (!job.prologue.type)
      return run.error.fail("A reduction's operand does not lie densely.");
    if (!fold_apart(job, run, dense, call, views, rank, axes, false)) return false;
  }
  job.reduce = job.down ? run.host.isa->reduce_columns : run.host.isa->reduce_rows;
  job.y = views[last].f32();
  job.kind = static_cast<int32_t>(call.ints[reduce_call::kKind]);
  const int64_t along = (job.down ? job.rows : job.cols) * job.axes.size(true);
  job.divisor = call.ints[reduce_call::kMean] ? static_cast<float>(along) : 1.0f;
  if (job.down && !job.writes_densely())
    return run.error.fail("A reduction's result does not lie densely.");
  divide_reduction(job);
  if (job.parts > 1) {
    const int64_t results = job.outer * (job.down ? job.cols : job.rows) * job.parts;
    char* data = partial.take(results * 8);
    if (!data) return false;
    job.totals = reinterpret_cast<float*>(data);
    job.rests = job.totals + results;
  }
  const int64_t tasks = ceil_div(job.outer * job.blocks, job.chunk);
  if (!run.parallel(tasks * job.parts, reduce_task, &job)) return false;
  if (job.parts > 1) join_parts(job);
  return true;
}

}  // namespace tracea
