// The host loop of sum_rows: sums of rows of bytes, and rows filled up to whole lanes.
#pragma once
#include "runtime/rows.h"

namespace tracea {

struct SumRowsJob {
  const tracea_isa_table* isa;
  const TensorView *x, *sums, *y;  // sums and y may be null
  int32_t flip;
  int64_t chunk;
};

inline void sum_rows_task(void* usr, size_t index) {
  const SumRowsJob& job = *static_cast<const SumRowsJob*>(usr);
  const int64_t first = static_cast<int64_t>(index) * job.chunk, cols = job.x->dims[1];
  const int64_t rows = min(job.chunk, job.x->dims[0] - first), stride = job.x->strides[0];
  const uint8_t* x = reinterpret_cast<const uint8_t*>(job.x->data) + first * stride;
  if (job.sums) {
    int32_t* sums = reinterpret_cast<int32_t*>(job.sums->data) + first;
    const tracea_sum_rows_tile tile = {rows, cols, x, stride, job.flip, sums};
    job.isa->sum_rows_int8(&tile);
  }
  if (!job.y) return;
  const size_t used = static_cast<size_t>(cols), all = static_cast<size_t>(job.y->dims[1]);
  for (int64_t r = 0; r < rows; ++r) {
    char* y = job.y->data + (first + r) * job.y->strides[0];
    memcpy(y, x + r * stride, used);
    memset(y + used, 0, all - used);
  }
}

inline bool run_sum_rows(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &sums = views[1], &y = views[2];
  const int64_t rows = x.dims[0], cols = x.dims[1];
  const bool dense = cols <= 1 || x.strides[1] == 1;
  const bool summed = !sums.data || (sums.is(rows) && (rows <= 1 || sums.strides[0] == 1));
  const bool filled = !y.data || (y.is(rows, ceil_div(cols, 4) * 4) && y.strides[1] == 1 &&
                                  call.views[2].type == call.views[0].type);
  if (!dense || !summed || !filled)
    return run.error.fail("The views of sums of rows do not fit together.");
  if (rows == 0) return true;
  const int32_t flip = call.views[0].type == ORT_I8 ? 0x80 : 0;
  SumRowsJob job = {run.host.isa, &x, sums.data ? &sums : nullptr, y.data ? &y : nullptr, flip,
                    task_rows(run, rows, cols, 1)};
  return run.parallel(ceil_div(rows, job.chunk), sum_rows_task, &job);
}

}  // namespace tracea
