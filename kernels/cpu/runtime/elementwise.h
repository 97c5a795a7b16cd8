// The host loop of elementwise: any number of axes, any strides, folded into rows and columns.
//
// Neighbouring axes that every view crosses at one stride become one.  The innermost axis becomes
// the columns if it lies as the chain was compiled (full and row operands at stride 1, col and
// scalar ones at 0), the next one the rows; any other axis is looped over.  A chain compiled for
// other strides than it meets is therefore slow, never wrong.
//
// Views that should lie along the columns and do not (a transposed operand, every second element)
// are staged: small tiles of them are copied together, or apart, on the stack.
#pragma once
#include "runtime/check.h"
#include "runtime/partition.h"
#include "runtime/rows.h"
#include "runtime/run.h"

namespace tracea {

constexpr int kMaxChainViews = TRACEA_MAX_OPERANDS + TRACEA_MAX_RESULTS;
constexpr int64_t kStage = 1024, kStageRows = 16;  // elements of a staged tile, and its most rows
constexpr int64_t kFewColumns = 16;  // up to so many leave vectors partly empty

struct ElementwiseJob {
  tracea_chain_fn chain;
  tracea_copy_fn copy;                         // null: the library cannot stage
  const tracea_chain_type* type;
  int32_t views, rank;                         // axes left to loop over
  char* data[kMaxChainViews];
  int64_t size[kMaxChainViews];                // bytes of one element
  int64_t dims[kMaxRank];
  int64_t strides[kMaxRank][kMaxChainViews];   // by axis, then view
  int64_t rows, cols, row_stride[kMaxChainViews], col_stride[kMaxChainViews];
  bool staged[kMaxChainViews], stages;         // by view; any
  int64_t grain;  // elements of a task, 0: the library's choice
  int64_t outer, outer_chunk, mc, col_chunk;
  int64_t outer_tasks, row_tasks, col_tasks;
  bool by_lines;  // tasks of the same rows and columns are neighbours
};

inline bool spreads(uint8_t kind, bool along_columns) {
  return kind == TRACEA_FULL || kind == (along_columns ? TRACEA_ROW : TRACEA_COL);
}

// The kind of a view: results are full.
inline uint8_t kind_of(const ElementwiseJob& job, int32_t v) {
  return v < job.type->operands ? job.type->kind[v] : static_cast<uint8_t>(TRACEA_FULL);
}

inline void fold_axes(ElementwiseJob& job, const TensorView* views, int32_t rank) {
  for (int32_t axis = 0; axis < rank; ++axis) {
    const int64_t dim = views[0].dims[axis];
    if (dim == 1) continue;
    bool joins = job.rank > 0;
    for (int32_t v = 0; joins && v < job.views; ++v) {
      int64_t through;
      joins = !__builtin_mul_overflow(views[v].strides[axis], dim, &through) &&
              job.strides[job.rank - 1][v] == through;
    }
    job.rank += !joins;
    job.dims[job.rank - 1] = joins ? job.dims[job.rank - 1] * dim : dim;
    for (int32_t v = 0; v < job.views; ++v) job.strides[job.rank - 1][v] = views[v].strides[axis];
  }
}

inline void swap(int64_t& a, int64_t& b) {
  const int64_t was = a;
  a = b, b = was;
}

// Can an axis be the columns in place of the innermost, with only results staged?
inline bool suits_columns(const ElementwiseJob& job, int32_t axis) {
  for (int32_t v = 0; v < job.views; ++v) {
    if (kind_of(job, v) != TRACEA_FULL) {
      if (job.strides[axis][v] || job.strides[job.rank - 1][v]) return false;
    } else if (v < job.type->operands && job.strides[axis][v] != 1) {
      return false;
    }
  }
  return true;
}

// Makes a longer axis, along which all operands lie, the innermost if that has few elements: colors
// of an image, say, whose results have them last.
inline void lengthen_columns(ElementwiseJob& job) {
  const int32_t last = job.rank - 1;
  if (last < 1 || !job.copy || job.dims[last] >= kFewColumns) return;
  int32_t axis = 0;
  while (axis < last && (job.dims[axis] < kFewColumns || !suits_columns(job, axis))) ++axis;
  for (; axis < last; ++axis) {
    swap(job.dims[axis], job.dims[axis + 1]);
    for (int32_t v = 0; v < job.views; ++v) swap(job.strides[axis][v], job.strides[axis + 1][v]);
  }
}

inline void choose_columns(ElementwiseJob& job) {
  job.cols = 1;
  if (job.rank == 0) return;
  const int64_t* inner = job.strides[job.rank - 1];
  bool staged[kMaxChainViews] = {}, any = false;
  for (int32_t v = 0; v < job.views; ++v) {
    if (inner[v] == spreads(kind_of(job, v), true)) continue;
    if (!job.copy || kind_of(job, v) != TRACEA_FULL) return;
    any = staged[v] = true;
  }
  for (int32_t v = 0; v < job.views; ++v) job.staged[v] = staged[v], job.col_stride[v] = inner[v];
  job.stages = any;
  job.cols = job.dims[--job.rank];
}

// The axis that becomes the rows: where a staged view is contiguous, else the innermost.
inline int32_t row_axis(const ElementwiseJob& job) {
  for (int32_t v = 0; v < job.views; ++v)
    for (int32_t axis = 0; job.staged[v] && axis < job.rank; ++axis)
      if (job.strides[axis][v] == 1) return axis;
  return job.rank - 1;
}

inline void choose_rows(ElementwiseJob& job) {
  job.rows = 1;
  if (job.rank == 0) return;
  int32_t axis = row_axis(job);
  const int64_t* inner = job.strides[axis];
  for (int32_t v = 0; v < job.views; ++v)
    if (inner[v] != 0 && !spreads(kind_of(job, v), false)) return;
  for (int32_t v = 0; v < job.views; ++v) job.row_stride[v] = inner[v];
  job.rows = job.dims[axis];
  for (--job.rank; axis < job.rank; ++axis) {
    job.dims[axis] = job.dims[axis + 1];
    for (int32_t v = 0; v < job.views; ++v) job.strides[axis][v] = job.strides[axis + 1][v];
  }
}

// Whether a staged view is contiguous along a few rows, colors of an image, say, which then are moved
// together.
inline bool joins_rows(const ElementwiseJob& job) {
  bool joins = false;
  for (int32_t v = 0; v < job.views; ++v) joins = joins || (job.staged[v] && job.row_stride[v] == 1);
  return joins && job.rows <= kStageRows;
}

inline int64_t divide_work(const Run& run, ElementwiseJob& job) {
  job.outer = 1;
  for (int32_t axis = 0; axis < job.rank; ++axis) job.outer *= job.dims[axis];
  const int64_t grain = job.grain ? job.grain : run.worth(kGrain), most = max(kGrain, job.grain);
  job.by_lines = job.outer > 1 && own_lines(run, 1, job.rows * job.cols / 16);
  const bool inside = job.by_lines || job.outer == 1;
  job.col_chunk = job.cols > 2 * most ? most : job.cols;
  if (inside && job.rows == 1) {
    const int64_t parts = run.even(ceil_div(job.cols, min(job.col_chunk, grain)), job.cols);
    job.col_chunk = min(job.cols, ceil_div(ceil_div(job.cols, parts), 16) * 16);
  }
  const bool joins = joins_rows(job);
  if (joins) job.col_chunk = min(job.col_chunk, ceil_div(most, 16 * job.rows) * 16);
  job.mc = joins ? job.rows : min(job.rows, max(grain / job.col_chunk, 1));
  if (inside && !joins)
    job.mc = ceil_div(job.rows, run.even(ceil_div(job.rows, job.mc), job.rows));
  const bool whole = job.mc == job.rows && job.col_chunk == job.cols;
  job.outer_chunk = whole ? max(grain / (job.rows * job.cols), 1) : 1;
  job.outer_chunk = ceil_div(job.outer, run.even(ceil_div(job.outer, job.outer_chunk), job.outer));
  job.row_tasks = ceil_div(job.rows, job.mc);
  job.col_tasks = ceil_div(job.cols, job.col_chunk);
  job.outer_tasks = ceil_div(job.outer, job.outer_chunk);
  return job.outer_tasks * job.row_tasks * job.col_tasks;
}

// Where view `v` of outer iteration `at` begins, in elements.
inline int64_t outer_offset(const ElementwiseJob& job, int32_t v, int64_t at) {
  int64_t offset = 0;
  for (int32_t axis = job.rank; axis-- > 0; at /= job.dims[axis])
    offset += at % job.dims[axis] * job.strides[axis][v];
  return offset;
}

// Sets where the chain reads or writes view `v`.
inline void point(const ElementwiseJob& job, tracea_chain_tile& tile, int32_t v, char* data,
                  int64_t row_stride) {
  const int32_t result = v - job.type->operands;
  if (result < 0) tile.in[v] = data, tile.in_stride[v] = row_stride;
  else tile.out[result] = data, tile.out_stride[result] = row_stride;
}

// A tile in pieces small enough for the stack; `data` is where each view begins.
__attribute__((noinline)) inline void run_staged(const ElementwiseJob& job, char* const* data,
                                                 int64_t rows, int64_t cols) {
  alignas(64) char stage[kMaxChainViews][kStage * 8];
  const int64_t height = min(rows, kStageRows), width = kStage / height / 16 * 16;
  tracea_chain_tile tile;
  tracea_copy_tile copy[kMaxChainViews];
  for (int64_t row = 0; row < rows; row += height)
    for (int64_t col = 0; col < cols; col += width) {
      tile.rows = min(height, rows - row), tile.cols = min(width, cols - col);
      for (int32_t v = 0; v < job.views; ++v) {
        const int64_t at = row * job.row_stride[v] + col * job.col_stride[v];
        char* place = data[v] + at * job.size[v];
        point(job, tile, v, job.staged[v] ? stage[v] : place,
              job.staged[v] ? width : job.row_stride[v]);
        copy[v] = {tile.rows, tile.cols, place, job.row_stride[v], job.col_stride[v], stage[v],
                   width, 1, static_cast<int32_t>(job.size[v])};
        if (job.staged[v] && v < job.type->operands) job.copy(&copy[v]);
      }
      job.chain(&tile);
      for (int32_t v = job.type->operands; v < job.views; ++v) {
        if (!job.staged[v]) continue;
        const tracea_copy_tile back = {tile.rows, tile.cols, stage[v], width, 1,
                                       const_cast<void*>(copy[v].x), job.row_stride[v],
                                       job.col_stride[v], copy[v].size};
        job.copy(&back);
      }
    }
}

inline void elementwise_task(void* usr, size_t index) {
  const ElementwiseJob& job = *static_cast<const ElementwiseJob*>(usr);
  const int64_t task = static_cast<int64_t>(index), inner = job.row_tasks * job.col_tasks;
  const int64_t place = job.by_lines ? task / job.outer_tasks : task % inner;
  const int64_t first = (job.by_lines ? task % job.outer_tasks : task / inner) * job.outer_chunk;
  const int64_t col = place % job.col_tasks * job.col_chunk;
  const int64_t row = place / job.col_tasks * job.mc;
  const int64_t last = min(job.outer, first + job.outer_chunk);
  tracea_chain_tile tile;
  tile.rows = min(job.mc, job.rows - row);
  tile.cols = min(job.col_chunk, job.cols - col);
  char* data[kMaxChainViews];
  for (int64_t outer = first; outer < last; ++outer) {
    for (int32_t v = 0; v < job.views; ++v) {
      const int64_t at = outer_offset(job, v, outer) + row * job.row_stride[v];
      data[v] = job.data[v] + (at + col * job.col_stride[v]) * job.size[v];
      point(job, tile, v, data[v], job.row_stride[v]);
    }
    if (job.stages) run_staged(job, data, tile.rows, tile.cols);
    else job.chain(&tile);
  }
}

// The chain over boxes of `rank` axes and equal sizes, operands first.
inline bool apply_chain(Run& run, int32_t chain, const TensorView* boxes, int32_t rank,
                        int64_t grain = 0) {
  ElementwiseJob job = {};
  job.grain = grain;
  job.type = &tracea_chain_types[chain];
  job.chain = run.host.isa->chain[chain];
  job.views = job.type->operands + job.type->results;
  job.copy = run.host.isa->copy;
  for (int32_t v = 0; v < job.views; ++v) {
    const int32_t result = v - job.type->operands;
    job.data[v] = boxes[v].data;
    job.size[v] = element_size(result < 0 ? job.type->type[v] : job.type->result[result]);
  }
  fold_axes(job, boxes, rank);
  lengthen_columns(job);
  choose_columns(job);
  choose_rows(job);
  return run.parallel(divide_work(run, job), elementwise_task, &job);
}

inline bool run_elementwise(Run& run, const Call& call, const TensorView* views) {
  const int32_t rank = call.views[0].rank;
  bool empty = false;
  int64_t rows = 1;
  for (int32_t axis = 0; axis + 1 < rank; ++axis) rows *= views[0].dims[axis];
  for (int32_t v = 0; v < call.view_count; ++v)
    for (int32_t axis = 0; axis < rank; ++axis) {
      if (views[v].dims[axis] != views[0].dims[axis])
        return run.error.fail("The views of an elementwise call differ in size at axis %d.", axis);
      empty = empty || views[v].dims[axis] == 0;
    }
  const int64_t columns = rank > 0 ? views[0].dims[rank - 1] : 1;
  const int64_t grain = call.task_schedule(rows).rows * min(columns, int64_t{1} << 32);
  return empty || apply_chain(run, call.chain, views, rank, grain);
}

}  // namespace tracea
