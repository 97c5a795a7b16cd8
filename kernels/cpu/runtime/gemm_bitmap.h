// Products by a matrix of which only the numbers other than zero are stored, for few rows: what
// counts is how many bytes of it are read.
//
// The map has a row for each panel: where its numbers begin, then a bit for each of its places, two
// steps of k a word.  More rows than the kernel takes at once read the panel again.
#pragma once
#include "runtime/gemm_block_sparse.h"

namespace tracea {

constexpr int64_t kBitmapPanels = 32;  // panels finished together
constexpr int64_t kBitmapRows = 4;     // rows finished together

struct BitmapJob {
  GemmJob gemm;
  tracea_bitmap_fn kernel;
  const int32_t* map;
  int64_t map_row, stored, size;  // words of a row; numbers stored; bytes of one
  int64_t panels, per_task;
  int32_t odd;  // 1: a panel's numbers do not end where the next one's begin
};

inline int64_t bitmap_start(const BitmapJob& job, int64_t panel) {
  return panel < job.panels ? job.map[panel * job.map_row] : job.stored;
}

// Panels [first, end), no more than finish together, of `rows` rows from `row` on.
inline void bitmap_tile(BitmapJob& job, int64_t row, int64_t rows, int64_t first, int64_t end) {
  constexpr int64_t kWide = kBitmapPanels * TRACEA_PANEL;
  alignas(64) float finished[kBitmapRows * kWide];
  const GemmJob& gemm = job.gemm;
  const int64_t n0 = first * TRACEA_PANEL, columns = min(end * TRACEA_PANEL, gemm.n) - n0;
  const int64_t y_row = gemm.results[0].strides[0];
  tracea_bitmap_tile tile;
  tile.k = gemm.k;
  tile.a = gemm.x->f32() + row * gemm.x_row, tile.lda = gemm.x_row, tile.a_step = gemm.x_step;
  tile.end = gemm.w->data + job.stored * job.size;
  tile.rows = static_cast<int32_t>(rows);
  tile.ldc = in_place(gemm) ? y_row : kWide;
  for (int64_t panel = first; panel < end; ++panel) {
    const int64_t n = panel * TRACEA_PANEL;
    tile.mask = reinterpret_cast<const uint32_t*>(job.map + panel * job.map_row + 1);
    tile.b = gemm.w->data + bitmap_start(job, panel) * job.size;
    tile.last = static_cast<int32_t>(min(TRACEA_PANEL, gemm.n - n));
    tile.bias = gemm.bias ? gemm.bias->f32() + n : nullptr;
    tile.c = in_place(gemm) ? gemm.results[0].f32() + row * y_row + n : finished + (n - n0);
    if (job.kernel(&tile) != gemm.w->data + bitmap_start(job, panel + 1) * job.size)
      __atomic_store_n(&job.odd, 1, __ATOMIC_RELAXED);
  }
  if (!in_place(gemm))
    finish(gemm, item_of(gemm, 0),
           {row, n0, static_cast<int32_t>(rows), static_cast<int32_t>(columns)}, finished, kWide);
}

inline void bitmap_task(void* usr, size_t index) {
  BitmapJob& job = *static_cast<BitmapJob*>(usr);
  const int64_t begin = static_cast<int64_t>(index) * job.per_task;
  const int64_t end = min(job.panels, begin + job.per_task);
  for (int64_t panel = begin; panel < end; panel += kBitmapPanels)
    for (int64_t row = 0; row < job.gemm.m; row += kBitmapRows)
      bitmap_tile(job, row, min(kBitmapRows, job.gemm.m - row), panel,
                  min(panel + kBitmapPanels, end));
}

inline bool bitmap_shapes(Run& run, const TensorView* views, BitmapJob& job) {
  GemmJob& gemm = job.gemm;
  const TensorView &x = views[0], &w = views[1], &map = views[3];
  gemm.m = x.dims[0], gemm.k = x.dims[1];
  job.stored = w.dims[0];
  const bool ok = stored_results(gemm) && (job.stored <= 1 || w.strides[0] == 1) &&
                  map.dims[0] == ceil_div(gemm.n, TRACEA_PANEL) &&
                  map.dims[1] == 1 + ceil_div(gemm.k, 2) && map.strides[1] == 1;
  if (!ok)
    return run.error.fail("The views of a gemm_bitmap do not fit together (M %lld, N %lld, K %lld).",
                          static_cast<long long>(gemm.m), static_cast<long long>(gemm.n),
                          static_cast<long long>(gemm.k));
  job.panels = map.dims[0];
  job.map = reinterpret_cast<const int32_t*>(map.data), job.map_row = map.strides[0];
  bool sorted = job.panels == 0 || job.map[0] == 0;
  for (int64_t panel = 0; panel < job.panels; ++panel)
    sorted &= bitmap_start(job, panel) >= 0 &&
              bitmap_start(job, panel) <= bitmap_start(job, panel + 1);
  return sorted || run.error.fail("The map of a gemm_bitmap does not say where panels begin.");
}

inline bool run_gemm_bitmap(Run& run, const Call& call, const TensorView* views) {
  BitmapJob job = {};
  GemmJob& gemm = job.gemm = stored_job(run, call, views);
  const bool halves = call.opcode == kGemmBitmapBf16;
  job.kernel = halves ? gemm.isa->gemm_bitmap_bf16 : gemm.isa->gemm_bitmap;
  job.size = halves ? 2 : 4;
  if (!bitmap_shapes(run, views, job)) return false;
  if (gemm.m == 0 || gemm.n == 0) return true;
  gemm.x_row = gemm.x->strides[0], gemm.x_step = gemm.x->strides[1];
  const int64_t wanted = run.host.processors > 1 ? 4 * run.host.processors : 1;
  job.per_task = ceil_div(job.panels, wanted);
  if (!run.parallel(ceil_div(job.panels, job.per_task), bitmap_task, &job)) return false;
  return !job.odd || run.error.fail("The map of a gemm_bitmap does not fit the numbers stored.");
}

}  // namespace tracea
