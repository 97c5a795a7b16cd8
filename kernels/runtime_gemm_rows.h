// Tasks of a GEMM over plain [N,K] weights, in place.
//
// The product is computed transposed: rows of w against panels of packed x.  Each result block is
// turned over in L1, where bias and chain are applied.
#pragma once
#include "runtime_gemm_tile.h"
#include "runtime_pack.h"

namespace tracea {

constexpr int64_t kRowGroup = 32;  // rows of w per block: columns of y
constexpr int64_t kMaxColumns = kMaxTile / kRowGroup;  // rows of y per block

inline void turn_block(const GemmJob& job, const GemmTile& at, const float* block, int64_t ld) {
  alignas(64) float turned[kMaxColumns * kRowGroup];
  transpose(block, ld, turned, kRowGroup, at.columns, at.rows);
  const float* bias = job.bias ? job.bias->f32() + at.column : nullptr;
  for (int64_t r = 0; bias && r < at.rows; ++r)
    for (int32_t c = 0; c < at.columns; ++c) turned[r * kRowGroup + c] += bias[c];
  if (job.chain) return finish_tile(job, at, turned, kRowGroup);
  const Box& y = job.results[0];
  for (int64_t r = 0; r < at.rows; ++r)
    memcpy(y.f32() + (at.row + r) * y.strides[0] + at.column, turned + r * kRowGroup,
           static_cast<size_t>(at.columns) * sizeof(float));
}

// One task: `per_group` groups of weight rows against all of x (packed at w; w_row is w's stride).
inline void by_rows_task(void* usr, size_t index) {
  const GemmJob& job = *static_cast<const GemmJob*>(usr);
  alignas(64) float block[kMaxTile];
  const int64_t first = static_cast<int64_t>(index) * job.per_group * kRowGroup;
  const int64_t last = least(job.n, first + job.per_group * kRowGroup);
  const int64_t width = least(job.isa->gemm_nv, kMaxColumns / TRACEA_PANEL) * TRACEA_PANEL;
  for (int64_t n = first; n < last; n += kRowGroup)
    for (int64_t m = 0; m < job.m; m += width) {
      const int64_t rows = least(width, job.m - m), columns = least(kRowGroup, last - n);
      tracea_gemm_tile tile = {};
      tile.k = job.k;
      tile.lda = job.w_row;
      tile.b = job.packed_x + m * job.k;
      tile.b_panel = job.k * TRACEA_PANEL;
      tile.b_row = TRACEA_PANEL;
      tile.nv = static_cast<int32_t>(ceil_div(rows, TRACEA_PANEL));
      tile.last = static_cast<int32_t>(rows - (tile.nv - 1) * TRACEA_PANEL);
      tile.ldc = width;
      const int64_t blocks = ceil_div(columns, job.isa->gemm_mr);
      for (int64_t b = 0, c = 0; b < blocks; ++b, c += tile.mr) {
        tile.mr = static_cast<int32_t>(columns / blocks + (b < columns % blocks));
        tile.a = job.w + (n + c) * job.w_row;
        tile.c = block + c * width;
        job.isa->gemm(&tile);
      }
      turn_block(job, {m, n, static_cast<int32_t>(rows), static_cast<int32_t>(columns)}, block,
                 width);
    }
}

inline bool run_by_rows(Run& run, GemmJob& job, int64_t w_row) {
  Scratch scratch(run);
  job.packed_x = pack(run, scratch, {job.x->f32(), 1, job.x->strides[0], job.k, job.m, nullptr});
  if (!job.packed_x) return false;
  job.w_row = w_row;
  const int64_t groups = ceil_div(job.n, kRowGroup), wanted = most(32, 4 * run.host.processors);
  job.per_group = ceil_div(groups, least(groups, wanted));
  return run.parallel(ceil_div(groups, job.per_group), by_rows_task, &job);
}

}  // namespace tracea
