// Tasks of a GEMM of few rows over weights stored [N,K], in place: they are read once, as they lie.
#pragma once
#include "runtime/gemm_tile.h"

namespace tracea {

constexpr int64_t kDotRows = 8;         // rows of x up to which this is the way
constexpr int64_t kDotColumns = 512;    // columns of y per block
constexpr int64_t kDotGrain = 64;       // tasks are multiples of so many columns
constexpr int64_t kDotFloats = 1 << 17; // weights per task, about

// One task: `per_group` columns of y, all rows, of one product.
inline void dot_task(void* usr, size_t index) {
  const GemmJob& job = *static_cast<const GemmJob*>(usr);
  alignas(64) float block[kDotRows * kDotColumns];
  const int64_t task = static_cast<int64_t>(index);
  const Item item = item_of(job, task / job.groups);
  const int64_t first = task % job.groups * job.per_group;
  const int64_t last = min(job.n, first + job.per_group);
  float* y = reinterpret_cast<float*>(item.result[0]);
  tracea_gemm_dot_tile tile;
  tile.m = job.m, tile.k = job.k;
  tile.a = item.x, tile.lda = job.x_row;
  tile.ldb = job.w_column;
  tile.ldc = !in_place(job) ? kDotColumns : job.results[0].strides[job.outer];
  for (int64_t n = first; n < last; n += kDotColumns) {
    tile.n = min(kDotColumns, last - n);
    tile.b = item.w + n * job.w_column;
    tile.bias = job.bias ? job.bias->f32() + n : nullptr;
    tile.c = in_place(job) ? y + n : block;
    job.isa->gemm_dot(&tile);
    if (!in_place(job))
      finish(job, item,
                  {0, n, static_cast<int32_t>(job.m), static_cast<int32_t>(tile.n)}, block,
                  kDotColumns);
  }
}

inline bool run_dot(Run& run, GemmJob& job) {
  const int64_t wanted = max(1, 4 * run.host.processors / job.items);
  const int64_t even = ceil_div(job.n, wanted), some = kDotFloats / max(job.k, 1);
  job.per_group = ceil_div(max(1, min(even, some)), kDotGrain) * kDotGrain;
  job.groups = ceil_div(job.n, job.per_group);
  return run.parallel(job.items * job.groups, dot_task, &job);
}

}  // namespace tracea
