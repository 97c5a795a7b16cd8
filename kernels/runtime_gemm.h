// The GEMM driver: y = chain(x * w + bias), cut into tasks of some panels times some rows.
//
// Order inside a task: panels outside, row blocks inside, so that a panel of weights stays in L1
// while rows stream by; the next panel is prefetched meanwhile.
#pragma once
#include "runtime_check.h"
#include "runtime_run.h"

namespace tracea {

constexpr int kMaxTile = 32 * 64;  // floats of the largest register tile

struct GemmJob {
  const tracea_isa_table* isa;
  tracea_chain_fn chain;
  const tracea_chain_type* type;
  const Box *x, *bias, *extra, *results;  // bias may be null
  int64_t m, n, k;
  const float* w;
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
    tile.in[i] = box.f32() + (by_row ? at.row * box.strides[0] : 0) + (by_column ? at.column : 0);
    tile.in_stride[i] = by_row ? box.strides[0] : 0;
  }
  for (int32_t i = 0; i < job.type->results; ++i) {
    const Box& box = job.results[i];
    tile.out[i] = box.f32() + at.row * box.strides[0] + at.column;
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

// Copies weights of any strides into panels, zero-padded.
struct PackJob {
  const float* w;
  int64_t row, column, k, n;  // strides of w, its size
  float* panels;
};

inline void pack_task(void* usr, size_t index) {
  const PackJob& job = *static_cast<const PackJob*>(usr);
  const int64_t n0 = static_cast<int64_t>(index) * TRACEA_PANEL;
  const int64_t width = least(TRACEA_PANEL, job.n - n0);
  float* to = job.panels + n0 * job.k;
  const float* from = job.w + n0 * job.column;
  constexpr int64_t kRows = 64;  // keeps the written block in L1
  for (int64_t k0 = 0; k0 < job.k; k0 += kRows) {
    const int64_t k1 = least(job.k, k0 + kRows);
    for (int64_t j = 0; j < TRACEA_PANEL; ++j)
      for (int64_t k = k0; k < k1; ++k)
        to[k * TRACEA_PANEL + j] = j < width ? from[k * job.row + j * job.column] : 0.0f;
  }
}

inline Driver choose_driver(const Call& call, int64_t m) {
  Driver driver = {INT32_MAX, 0, 128, 0, 1};
  for (int32_t i = 0; i < call.driver_count; ++i) {
    driver = call.drivers[i];
    if (m <= driver.max_rows) break;
  }
  return driver;
}

inline void divide_work(GemmJob& job, const Driver& driver) {
  const int64_t widest = job.isa->gemm_nv;
  const int64_t width = driver.tile_panels ? least(driver.tile_panels, widest) : widest;
  job.columns = ceil_div(ceil_div(job.n, TRACEA_PANEL), width);
  const int64_t together = job.m >= 64 ? 1 : least(most(job.columns / 4, 1), job.m >= 32 ? 2 : 4);
  job.per_group = driver.panel_group ? driver.panel_group : together;
  job.groups = ceil_div(job.columns, job.per_group);
  job.chunks = ceil_div(job.m, driver.row_chunk);
  const bool packed = job.w_row == TRACEA_PANEL && job.w_panel == job.k * TRACEA_PANEL;
  job.prefetch = driver.prefetch && packed;
  constexpr double kSmall = 1e5;  // multiply-adds that are not worth waking a thread for
  const double work = static_cast<double>(job.m) * static_cast<double>(job.n);
  if (work * static_cast<double>(job.k) < kSmall) job.per_group = job.columns, job.groups = 1;
}

inline bool check_gemm(Signature& call) {
  const tracea_chain_type* chain = call.chain();
  const int32_t extra = chain ? chain->operands - 1 : 0, results = chain ? chain->results : 1;
  if (chain && (chain->operands < 1 || chain->kind[0] != TRACEA_FULL))
    return call.fail("a chain that does not begin with the product");
  if (!call.counts(1, 0, 3 + extra + results) || !call.parameter(0, 0, 2)) return false;
  bool ok = call.reads(0, 2) && call.reads(1, call.integer(0) == 0 ? 3 : 2) && call.may_read(2, 1);
  for (int32_t i = 0; i < extra; ++i) ok = ok && call.reads(3 + i, 2);
  for (int32_t i = 0; i < results; ++i) ok = ok && call.writes(3 + extra + i, 2);
  return ok;
}

// Whether an [M,N] operand lies as its kind says; then the chain stays inside the view.
inline bool lies_as(const Box& box, uint8_t kind, int64_t m, int64_t n) {
  const bool by_row = kind == TRACEA_FULL || kind == TRACEA_COL;
  const bool by_column = kind == TRACEA_FULL || kind == TRACEA_ROW;
  return box.is(m, n) && (by_row || m == 1 || box.strides[0] == 0) &&
         (n == 1 || box.strides[1] == by_column);
}

inline bool gemm_shapes(Run& run, const Call& call, const Box* views, GemmJob& job) {
  const Box &x = views[0], &w = views[1], &bias = views[2];
  const int64_t layout = call.ints[0];
  job.m = x.dims[0], job.k = x.dims[1];
  job.n = job.results[0].dims[1];
  bool ok = (job.k <= 1 || x.strides[1] == 1) && (!job.bias || bias.is(job.n)) &&
            (!job.bias || job.n <= 1 || bias.strides[0] == 1);
  if (layout == 0)
    ok = ok && w.is(ceil_div(job.n, TRACEA_PANEL), job.k) && w.dims[2] == TRACEA_PANEL &&
         w.strides[2] == 1;
  else ok = ok && (layout == 1 ? w.is(job.k, job.n) : w.is(job.n, job.k));
  const int32_t results = job.type ? job.type->results : 1;
  for (int32_t i = 0; i < results; ++i)
    ok = ok && lies_as(job.results[i], TRACEA_FULL, job.m, job.n);
  for (int32_t i = 1; ok && job.type && i < job.type->operands; ++i)
    ok = lies_as(job.extra[i - 1], job.type->kind[i], job.m, job.n);
  return ok || run.fault.fail("The views of a gemm do not fit together (M %lld, N %lld, K %lld).",
                              static_cast<long long>(job.m), static_cast<long long>(job.n),
                              static_cast<long long>(job.k));
}

inline bool run_gemm(Run& run, const Call& call, const Box* views) {
  GemmJob job = {};
  job.isa = run.host.isa;
  job.type = call.chain_type();
  job.chain = job.type ? job.isa->chain[call.chain] : nullptr;
  job.x = &views[0];
  job.bias = views[2].data ? &views[2] : nullptr;
  job.extra = &views[3];
  job.results = job.extra + (job.type ? job.type->operands - 1 : 0);
  if (!gemm_shapes(run, call, views, job)) return false;
  if (job.m == 0 || job.n == 0) return true;
  const Box& w = views[1];
  const int64_t layout = call.ints[0], panels = ceil_div(job.n, TRACEA_PANEL);
  Scratch scratch(run);
  job.w = w.f32();
  if (layout == 0) {
    job.w_panel = w.strides[0], job.w_row = w.strides[1];
  } else if (layout == 1 && (job.n == 1 || w.strides[1] == 1)) {
    job.w_panel = TRACEA_PANEL, job.w_row = w.strides[0], job.w_exact = 1;
  } else {
    const int64_t row = w.strides[layout == 1 ? 0 : 1], column = w.strides[layout == 1 ? 1 : 0];
    int64_t bytes;
    if (__builtin_mul_overflow(panels * TRACEA_PANEL * int64_t{4}, job.k, &bytes)) bytes = -1;
    float* packed = reinterpret_cast<float*>(scratch.take(bytes));
    if (!packed) return false;
    PackJob pack = {job.w, row, column, job.k, job.n, packed};
    if (!run.parallel(panels, pack_task, &pack)) return false;
    job.w = packed, job.w_panel = job.k * TRACEA_PANEL, job.w_row = TRACEA_PANEL;
  }
  divide_work(job, choose_driver(call, job.m));
  return run.parallel(job.groups * job.chunks, gemm_task, &job);
}

}  // namespace tracea
