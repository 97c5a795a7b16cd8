// Tasks of a GEMM over weight panels: y = chain(x * w + bias), some panels times some rows each.
//
// Order inside a task: panels outside, row blocks inside, so that a panel of weights stays in L1
// while rows stream by; the next panel is prefetched meanwhile.
#pragma once
#include "runtime_run.h"

namespace tracea {

constexpr int kMaxTile = 32 * 64;  // floats of the largest register tile

struct GemmJob {
  const tracea_isa_table* isa;
  tracea_chain_fn chain;
  const tracea_chain_type* type;
  const Box *x, *bias, *extra, *results;  // bias may be null
  int64_t m, n, k;
  const float *w, *packed_x;
  int64_t w_panel, w_row;  // strides between panels, and between rows of one panel
  int32_t w_exact, prefetch;
  int64_t columns, per_group, groups, chunks;  // register-tile columns; tasks = groups * chunks
};

// Register-tile column `i` starts at this panel; tiles are of nearly equal width.
inline int64_t first_panel(const GemmJob& job, int64_t i) {
  return ceil_div(job.n, TRACEA_PANEL) * i / job.columns;
}

struct GemmTile {
  int64_t row, column;
  int32_t rows, columns;
};

inline void finish_tile(const GemmJob& job, const GemmTile& at, const float* c, int64_t ldc) {
  tracea_chain_tile tile = {};
  tile.rows = at.rows;
  tile.cols = at.columns;
  tile.in[0] = c;
  tile.in_stride[0] = ldc;
  for (int32_t i = 1; i < job.type->operands; ++i) {
    const Box& box = job.extra[i - 1];
    const uint8_t kind = job.type->kind[i];
    const bool by_row = kind == TRACEA_FULL || kind == TRACEA_COL;
    const bool by_column = kind == TRACEA_FULL || kind == TRACEA_ROW;
    const int64_t first = (by_row ? at.row * box.strides[0] : 0) + (by_column ? at.column : 0);
    tile.in[i] = box.data + first * element_size(job.type->type[i]);
    tile.in_stride[i] = by_row ? box.strides[0] : 0;
  }
  for (int32_t i = 0; i < job.type->results; ++i) {
    const Box& box = job.results[i];
    const int64_t first = at.row * box.strides[0] + at.column;
    tile.out[i] = box.data + first * element_size(job.type->result[i]);
    tile.out_stride[i] = box.strides[0];
  }
  job.chain(&tile);
}

// One register-tile column over rows [row, end).
inline void gemm_column(const GemmJob& job, int64_t i, int64_t row, int64_t end) {
  alignas(64) float block[kMaxTile];
  const int64_t p0 = first_panel(job, i), p1 = first_panel(job, i + 1);
  const int64_t blocks = ceil_div(end - row, job.isa->gemm_mr), all = end - row;
  const bool more = job.prefetch && i + 1 < job.columns;
  const int64_t lines = more ? (first_panel(job, i + 2) - p1) * job.k : 0;
  const int64_t share = ceil_div(lines, blocks);
  tracea_gemm_tile tile = {};
  tile.k = job.k;
  tile.lda = job.x->strides[0];
  tile.b = job.w + p0 * job.w_panel;
  tile.b_panel = job.w_panel;
  tile.b_row = job.w_row;
  tile.bias = job.bias ? job.bias->f32() + p0 * TRACEA_PANEL : nullptr;
  tile.nv = static_cast<int32_t>(p1 - p0);
  const int64_t columns = least(p1 * TRACEA_PANEL, job.n) - p0 * TRACEA_PANEL;
  tile.last = static_cast<int32_t>(columns - (tile.nv - 1) * TRACEA_PANEL);
  tile.b_exact = job.w_exact;
  for (int64_t b = 0; b < blocks; ++b) {
    tile.mr = static_cast<int32_t>(all / blocks + (b < all % blocks));
    tile.a = job.x->f32() + row * tile.lda;
    tile.prefetch_lines = static_cast<int32_t>(most(0, least(share, lines - b * share)));
    tile.prefetch = tile.prefetch_lines ? reinterpret_cast<const char*>(job.w + p1 * job.w_panel) +
                                              b * share * kAlign
                                        : nullptr;
    const Box& y = job.results[0];
    tile.c = job.chain ? block : y.f32() + row * y.strides[0] + p0 * TRACEA_PANEL;
    tile.ldc = job.chain ? tile.nv * TRACEA_PANEL : y.strides[0];
    job.isa->gemm(&tile);
    if (job.chain)
      finish_tile(job, {row, p0 * TRACEA_PANEL, tile.mr, static_cast<int32_t>(columns)}, block,
                  tile.ldc);
    row += tile.mr;
  }
}

inline void gemm_task(void* usr, size_t index) {
  const GemmJob& job = *static_cast<const GemmJob*>(usr);
  const int64_t task = static_cast<int64_t>(index);
  const int64_t chunk = task / job.groups, group = task % job.groups;
  const int64_t row = job.m * chunk / job.chunks, end = job.m * (chunk + 1) / job.chunks;
  const int64_t last = least(job.columns, (group + 1) * job.per_group);
  for (int64_t i = group * job.per_group; i < last; ++i) gemm_column(job, i, row, end);
}

}  // namespace tracea
