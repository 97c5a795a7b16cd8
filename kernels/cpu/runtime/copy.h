// Host loop of copy: a strided view to another one, of any element type.
//
// Neighbouring axes that both sides cross at one stride become one.  The innermost axis left is
// the columns; the rows are the axis along which the source is contiguous, if that is another one,
// so that the kernel transposes blocks in registers.
#pragma once
#include "runtime/check.h"
#include "runtime/rows.h"
#include "runtime/run.h"

namespace tracea {

struct CopyJob {
  tracea_copy_fn copy;
  tracea_copy_tile whole;  // of the first outer iteration
  int32_t rank;            // axes left to loop over
  int64_t dims[kMaxRank], x_stride[kMaxRank], y_stride[kMaxRank];
  int64_t mc, row_tasks, col_chunk, col_tasks, outer, outer_chunk;
};

inline const char* at_element(const void* data, int64_t at, int32_t size) {
  return static_cast<const char*>(data) + at * size;
}

inline void copy_task(void* usr, size_t index) {
  const CopyJob& job = *static_cast<const CopyJob*>(usr);
  int64_t task = static_cast<int64_t>(index);
  const int64_t col = task % job.col_tasks * job.col_chunk;
  task /= job.col_tasks;
  const int64_t row = task % job.row_tasks * job.mc;
  const int64_t first = task / job.row_tasks * job.outer_chunk;
  const int64_t last = min(job.outer, first + job.outer_chunk);
  for (int64_t outer = first; outer < last; ++outer) {
    tracea_copy_tile tile = job.whole;
    int64_t x = row * tile.x_row + col * tile.x_col, y = row * tile.y_row + col * tile.y_col;
    int64_t rest = outer;
    for (int32_t axis = job.rank; axis-- > 0; rest /= job.dims[axis]) {
      x += rest % job.dims[axis] * job.x_stride[axis];
      y += rest % job.dims[axis] * job.y_stride[axis];
    }
    tile.rows = min(job.mc, tile.rows - row);
    tile.cols = min(job.col_chunk, tile.cols - col);
    tile.x = at_element(tile.x, x, tile.size);
    tile.y = const_cast<char*>(at_element(tile.y, y, tile.size));
    job.copy(&tile);
  }
}

// Axes of more than one element, neighbours merged where both sides allow.
inline void fold_copy(CopyJob& job, const TensorView& x, const TensorView& y, int32_t rank) {
  for (int32_t axis = 0; axis < rank; ++axis) {
    const int64_t dim = y.dims[axis];
    if (dim == 1) continue;
    int64_t of_x, of_y;
    const bool joins = job.rank > 0 && !__builtin_mul_overflow(x.strides[axis], dim, &of_x) &&
                       !__builtin_mul_overflow(y.strides[axis], dim, &of_y) &&
                       job.x_stride[job.rank - 1] == of_x && job.y_stride[job.rank - 1] == of_y;
    job.rank += !joins;
    job.dims[job.rank - 1] = joins ? job.dims[job.rank - 1] * dim : dim;
    job.x_stride[job.rank - 1] = x.strides[axis];
    job.y_stride[job.rank - 1] = y.strides[axis];
  }
}

// Takes an axis out of the loops.
inline void take_axis(CopyJob& job, int32_t axis, int64_t* count, int64_t* x, int64_t* y) {
  *count = job.dims[axis], *x = job.x_stride[axis], *y = job.y_stride[axis];
  for (--job.rank; axis < job.rank; ++axis) {
    job.dims[axis] = job.dims[axis + 1];
    job.x_stride[axis] = job.x_stride[axis + 1];
    job.y_stride[axis] = job.y_stride[axis + 1];
  }
}

inline int64_t divide_copy(const Run& run, CopyJob& job) {
  tracea_copy_tile& tile = job.whole;
  tile.rows = tile.cols = 1;
  if (job.rank > 0) take_axis(job, job.rank - 1, &tile.cols, &tile.x_col, &tile.y_col);
  int32_t row = job.rank - 1;
  for (int32_t axis = 0; tile.x_col != 1 && axis < job.rank; ++axis)
    if (job.x_stride[axis] == 1) row = axis;
  if (row >= 0) take_axis(job, row, &tile.rows, &tile.x_row, &tile.y_row);
  job.outer = 1;
  for (int32_t axis = 0; axis < job.rank; ++axis) job.outer *= job.dims[axis];
  // Chunks are whole blocks of sixteen both ways; transposed ones nearly square, so that few pages
  // are in use at once.
  const int64_t grain = run.worth(kGrain);
  const bool along = tile.x_col == 1 && tile.y_col == 1, transposed = !along && tile.x_row == 1;
  const int64_t most_cols = along ? kGrain : transposed ? 128 : kGrain / 16;
  job.col_chunk = tile.cols > 2 * most_cols ? most_cols : tile.cols;
  job.mc = min(tile.rows, ceil_div(max(grain / job.col_chunk, 1), 16) * 16);
  const bool whole = job.mc == tile.rows && job.col_chunk == tile.cols;
  job.outer_chunk = whole ? max(grain / (tile.rows * tile.cols), 1) : 1;
  job.outer_chunk = ceil_div(job.outer, run.even(ceil_div(job.outer, job.outer_chunk), job.outer));
  job.row_tasks = ceil_div(tile.rows, job.mc);
  job.col_tasks = ceil_div(tile.cols, job.col_chunk);
  return ceil_div(job.outer, job.outer_chunk) * job.row_tasks * job.col_tasks;
}

inline bool check_copy(Signature& call) {
  return call.type(copy_call::kX) == call.type(copy_call::kY) || call.fail("two element types");
}

inline bool run_copy(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1];
  const int32_t rank = call.views[1].rank;
  for (int32_t axis = 0; axis < rank; ++axis)
    if (y.dims[axis] == 0) return true;
  for (int32_t axis = 0; axis < rank; ++axis)
    if (x.dims[axis] != y.dims[axis])
      return run.error.fail("The views of a copy differ in size at axis %d.", axis);
  CopyJob job = {};
  job.copy = run.host.isa->copy;
  job.whole.x = x.data, job.whole.y = y.data;
  job.whole.size = static_cast<int32_t>(element_size(call.views[1].type));
  fold_copy(job, x, y, rank);
  return run.parallel(divide_copy(run, job), copy_task, &job);
}

}  // namespace tracea
