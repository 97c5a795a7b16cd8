// The host loop of gemm_nbits: products with codes of 2, 4 or 8 bits that have scales by blocks.
// Few rows of x become bytes, three of them for each number unless one is what the model asks for,
// and are multiplied with the codes as they lie.  Many rows in float32 are multiplied as such, with
// panels that are unpacked a block of k at a time.
#pragma once
#include "runtime/gemm.h"

namespace tracea {

constexpr int64_t kCodeRows = 8;           // rows of x up to which three terms are faster
constexpr int64_t kCodeWork = 1 << 17;     // steps of k times columns that are a task of one row
constexpr int64_t kRowsOfTask = 96;        // rows that go through a panel while it is near
constexpr int64_t kRoundGrain = 16 * 1024;  // numbers of x that are a task of rounding

struct NBitsJob {
  GemmJob gemm;
  NBitsMatrix w;
  int32_t terms, mr, nv;
  int64_t row_bytes, rows_per_chunk, chunks, panels_per_task, groups, rows_per_round;
  int8_t* a;
  float* a_scale;
  int32_t* a_sum;
  int32_t odd;  // 1 once a row has anything that is not finite
};

inline void round_nbits_task(void* usr, size_t index) {
  NBitsJob& job = *static_cast<NBitsJob*>(usr);
  const int64_t first = static_cast<int64_t>(index) * job.rows_per_round;
  for (int64_t r = first; r < min(job.gemm.m, first + job.rows_per_round); ++r) {
    tracea_nbits_round_tile tile = {};
    tile.k = job.gemm.k, tile.block = job.w.block, tile.terms = job.terms;
    tile.x = job.gemm.x->f32() + r * job.gemm.x_row;
    tile.y = job.a + r * job.terms * job.row_bytes, tile.y_term = job.row_bytes;
    tile.scale = job.a_scale + r * job.terms * job.w.blocks;
    tile.sum = job.a_sum + r * job.terms * job.w.blocks;
    if (!job.gemm.isa->round_nbits(&tile)) __atomic_store_n(&job.odd, 1, __ATOMIC_RELAXED);
  }
}

// A tile at panel `p` whose panels lie `gap` apart.
inline tracea_nbits_tile nbits_tile(const NBitsJob& job, int64_t p, int64_t gap) {
  const int64_t scale_panel = job.w.blocks * job.w.scale_rows * TRACEA_PANEL;
  tracea_nbits_tile tile = {};
  tile.blocks = job.w.blocks, tile.block = job.w.block, tile.bits = job.w.bits;
  tile.terms = job.terms, tile.lda = job.row_bytes;
  tile.a = job.a, tile.a_scale = job.a_scale, tile.a_sum = job.a_sum;
  tile.b = job.w.codes + p * job.w.panel, tile.b_panel = gap * job.w.panel;
  tile.b_scale = job.w.scales + p * scale_panel, tile.b_scale_panel = gap * scale_panel;
  tile.scale_rows = job.w.scale_rows, tile.zero = job.w.zero;
  tile.b_zero = job.w.zeros ? job.w.zeros + p * job.w.panel : nullptr;
  tile.init = job.gemm.bias ? job.gemm.bias->f32() + p * TRACEA_PANEL : nullptr;
  tile.init_panel = tile.c_panel = gap * TRACEA_PANEL;
  return tile;
}

// Panels from `p` on, as many as a tile has, for rows [row, end).
inline void nbits_columns(const NBitsJob& job, const Item& item, int64_t p, int64_t last, int64_t row,
                          int64_t end) {
  alignas(64) float finished[kMaxTile];
  const GemmJob& gemm = job.gemm;
  const int64_t panels = min(job.nv, last - p), n0 = p * TRACEA_PANEL, wide = panels * TRACEA_PANEL;
  const int64_t columns = min(wide, gemm.n - n0), y_row = gemm.results[0].strides[0];
  const int64_t rows = end - row, blocks = ceil_div(rows, job.mr);
  const bool there = in_place(gemm);
  tracea_nbits_tile tile = nbits_tile(job, p, 1);
  tile.nv = static_cast<int32_t>(panels);
  tile.last = static_cast<int32_t>(columns - (panels - 1) * TRACEA_PANEL);
  tile.ldc = there ? y_row : wide;
  for (int64_t b = 0; b < blocks; ++b) {
    tile.mr = static_cast<int32_t>(rows / blocks + (b < rows % blocks));
    tile.a = job.a + row * job.terms * job.row_bytes;
    tile.a_scale = job.a_scale + row * job.terms * job.w.blocks;
    tile.a_sum = job.a_sum + row * job.terms * job.w.blocks;
    tile.c = there ? reinterpret_cast<float*>(item.result[0]) + row * y_row + n0 : finished;
    gemm.isa->gemm_nbits(&tile);
    if (!there) finish(gemm, item, {row, n0, tile.mr, static_cast<int32_t>(columns)}, finished, wide);
    row += tile.mr;
  }
}

// One row by panels from `first` on, several runs of them side by side; returns where those end.
// Weights in mapped files lie in small pages, at whose ends the processor's own prefetches stop: with
// more runs of memory there is always one that goes on.
inline int64_t nbits_runs(const NBitsJob& job, const Item& item, int64_t first, int64_t last) {
  alignas(64) float finished[kMaxTile];
  const GemmJob& gemm = job.gemm;
  const int64_t runs = 2 * gemm.isa->nbits_nv, gap = (last - first) / runs;
  const int64_t most = kMaxTile / (runs * TRACEA_PANEL), wide = most * TRACEA_PANEL;
  const bool there = in_place(gemm);
  for (int64_t p = first; p < first + gap; p += most) {
    const int64_t held = min(most, first + gap - p);
    for (int64_t i = 0; i < held; ++i) {
      tracea_nbits_tile tile = nbits_tile(job, p + i, gap);
      const int64_t n = (p + i) * TRACEA_PANEL, end = n + (runs - 1) * gap * TRACEA_PANEL;
      tile.mr = 1, tile.nv = static_cast<int32_t>(runs);
      tile.last = static_cast<int32_t>(min(TRACEA_PANEL, gemm.n - end));
      tile.c = there ? reinterpret_cast<float*>(item.result[0]) + n : finished + i * TRACEA_PANEL;
      if (!there) tile.c_panel = wide;
      gemm.isa->gemm_nbits(&tile);
    }
    for (int64_t r = 0; !there && r < runs; ++r) {
      const int64_t n = (p + r * gap) * TRACEA_PANEL, columns = min(held * TRACEA_PANEL, gemm.n - n);
      finish(gemm, item, {0, n, 1, static_cast<int32_t>(columns)}, finished + r * wide, wide);
    }
  }
  return first + gap * runs;
}

inline void nbits_task(void* usr, size_t index) {
  const NBitsJob& job = *static_cast<const NBitsJob*>(usr);
  const int64_t task = static_cast<int64_t>(index), group = task % job.groups;
  const int64_t row = task / job.groups * job.rows_per_chunk;
  const int64_t panels = ceil_div(job.gemm.n, TRACEA_PANEL), first = group * job.panels_per_task;
  const int64_t last = min(panels, first + job.panels_per_task);
  const Item item = item_of(job.gemm, 0);
  int64_t p = job.gemm.m == 1 ? nbits_runs(job, item, first, last) : first;
  for (; p < last; p += job.nv)
    nbits_columns(job, item, p, last, row, min(job.gemm.m, row + job.rows_per_chunk));
}

// The matrix [K, N] that lies in two views; false if they do not fit.
inline bool nbits_matrix(const TensorView& w, const TensorView& scales, int64_t n, int64_t k,
                         int64_t bits, int64_t block, int64_t zeros, NBitsMatrix& to) {
  const int64_t panels = ceil_div(n, TRACEA_PANEL);
  to.bits = static_cast<int32_t>(bits), to.block = static_cast<int32_t>(block);
  to.blocks = ceil_div(k, block);
  to.scale_rows = zeros == gemm_nbits_call::kZerosFloat ? 2 : 1;
  to.zero = zeros == gemm_nbits_call::kZerosMiddle ? 1 << (to.bits - 1) : 0;
  const bool integers = zeros == gemm_nbits_call::kZerosInteger;
  const int64_t first = integers ? ceil_div(to.blocks * TRACEA_PANEL, kAlign) * kAlign : 0;
  const int64_t row = to.scale_rows * TRACEA_PANEL;
  to.zeros = integers ? reinterpret_cast<const uint8_t*>(w.data) : nullptr;
  to.codes = reinterpret_cast<const uint8_t*>(w.data) + first;
  to.panel = w.strides[0], to.scales = scales.f32();
  return (bits == 2 || bits == 4 || bits == 8) && block % 16 == 0 &&
         w.is(panels, first + to.blocks * block * 2 * bits) && w.strides[1] == 1 &&
         scales.dims[0] == panels && scales.dims[1] == to.blocks &&
         scales.dims[2] == to.scale_rows && scales.dims[3] == TRACEA_PANEL &&
         scales.strides[3] == 1 && (to.scale_rows == 1 || scales.strides[2] == TRACEA_PANEL) &&
         (to.blocks <= 1 || scales.strides[1] == row) &&
         (panels <= 1 || scales.strides[0] == to.blocks * row);
}

inline bool nbits_shapes(Run& run, const Call& call, const TensorView* views, NBitsJob& job) {
  GemmJob& gemm = job.gemm;
  const TensorView& x = views[0];
  gemm.m = x.dims[0], gemm.k = x.dims[1];
  bool ok = true;
  for (int32_t i = 0; i < gemm.parts; ++i)
    ok = ok && !__builtin_add_overflow(gemm.n, gemm.results[i].dims[1], &gemm.n);
  ok = ok && nbits_matrix(views[1], views[3], gemm.n, gemm.k, call.ints[gemm_nbits_call::kBits],
                          call.ints[gemm_nbits_call::kBlock], call.ints[gemm_nbits_call::kZeros], job.w);
  ok = ok && (!gemm.bias || (gemm.bias->is(gemm.n) && (gemm.n <= 1 || gemm.bias->strides[0] == 1)));
  ok = ok && (gemm.k <= 1 || x.strides[1] == 1);
  ok = ok && epilogue_lies(gemm);
  return ok || run.error.fail("The views of a gemm_nbits do not fit together (M %lld, N %lld, K %lld).",
                              static_cast<long long>(gemm.m), static_cast<long long>(gemm.n),
                              static_cast<long long>(gemm.k));
}

// Rows as bytes, in scratch; false if there is no memory.
inline bool round_nbits_rows(Run& run, Scratch& scratch, NBitsJob& job) {
  const int64_t rows = job.gemm.m * job.terms, each = job.row_bytes + 8 * job.w.blocks;
  int64_t bytes;
  if (__builtin_mul_overflow(rows, each, &bytes)) bytes = -1;
  char* memory = scratch.take(bytes);
  if (!memory) return false;
  job.a_scale = reinterpret_cast<float*>(memory);
  job.a_sum = reinterpret_cast<int32_t*>(memory + 4 * rows * job.w.blocks);
  job.a = reinterpret_cast<int8_t*>(memory + 8 * rows * job.w.blocks);
  job.rows_per_round = max(1, kRoundGrain / max(job.gemm.k, 1));
  return run.parallel(ceil_div(job.gemm.m, job.rows_per_round), round_nbits_task, &job);
}

inline bool run_nbits_tiles(Run& run, NBitsJob& job, const TaskSchedule& schedule) {
  GemmJob& gemm = job.gemm;
  const int64_t panels = ceil_div(gemm.n, TRACEA_PANEL);
  job.mr = max(1, gemm.isa->nbits_mr / job.terms);
  job.nv = gemm.isa->nbits_nv;
  job.chunks = ceil_div(gemm.m, schedule.rows ? schedule.rows : kRowsOfTask);
  job.rows_per_chunk = ceil_div(ceil_div(gemm.m, job.chunks), job.mr) * job.mr;
  job.chunks = ceil_div(gemm.m, job.rows_per_chunk);
  const int64_t wanted = run.host.processors > 1 ? 4 * run.host.processors : 1;
  const int64_t even = ceil_div(panels * job.chunks, wanted);
  const int64_t least = ceil_div(kCodeWork, TRACEA_PANEL * max(gemm.k, 1) * job.rows_per_chunk);
  job.panels_per_task = ceil_div(min(panels, max(even, least)), job.nv) * job.nv;
  if (schedule.columns) job.panels_per_task = ceil_div(schedule.columns, TRACEA_PANEL);
  job.groups = ceil_div(panels, job.panels_per_task);
  return run.parallel(job.groups * job.chunks, nbits_task, &job);
}

inline bool run_gemm_nbits(Run& run, const Call& call, const TensorView* views) {
  NBitsJob job = {};
  GemmJob& gemm = job.gemm;
  gemm.isa = run.host.isa;
  gemm.type = call.chain_type();
  gemm.chain = gemm.type ? gemm.isa->chain[call.chain] : nullptr;
  gemm.x = &views[0], gemm.w = &views[1];
  gemm.bias = views[2].data ? &views[2] : nullptr;
  gemm.extra = &views[4];
  gemm.results = gemm.extra + (gemm.type ? gemm.type->operands - 1 : 0);
  gemm.parts = static_cast<int32_t>(call.ints[gemm_nbits_call::kParts]);
  gemm.items = 1;
  if (!nbits_shapes(run, call, views, job)) return false;
  if (gemm.m == 0 || gemm.n == 0) return true;
  gemm.x_row = views[0].strides[0], gemm.x_step = views[0].strides[1];
  const bool bytes = call.ints[gemm_nbits_call::kInt8Rows] != 0;
  if (bytes || gemm.m <= kCodeRows) {
    job.terms = bytes ? 1 : 3;
    job.row_bytes = job.w.blocks * job.w.block;
    Scratch scratch(run);
    if (!round_nbits_rows(run, scratch, job)) return false;
    if (bytes || !job.odd) return run_nbits_tiles(run, job, call.task_schedule(gemm.m));
  }
  gemm.kernel = gemm.isa->gemm;
  gemm.mr = gemm.isa->gemm_mr, gemm.nv = gemm.isa->gemm_nv;
  gemm.nbits = &job.w;
  gemm.packs = 1;
  return run_tiles(run, call, gemm);
}

}  // namespace tracea
