// Products by a matrix of which only some blocks are stored: y = chain(x * w + bias).
//
// Block indices number the blocks of the dense matrix, panel after panel, along k in each; the L1 map
// lists the places that are stored, in ascending order, as the blocks themselves lie.  Rows of x
// are packed by sixteen first.  A row with a NaN or an infinity gives NaN in every column that skips
// it, as the products by zero would: those sums begin with what the skipped blocks add to them.
#pragma once
#include "runtime/gemm.h"

namespace tracea {

constexpr int64_t kGroup = 16;    // rows packed together
constexpr int64_t kTogether = 4;  // panels finished together
constexpr int64_t kStreamedFloats = 4 * kNearFloats;  // stored numbers that each group may read anew

struct BlockSparseJob {
  GemmJob gemm;  // operands, sizes and what finishes a tile
  const int32_t* places;
  int64_t stored, block, depth;  // blocks stored; steps of k in one; k in whole blocks
  int64_t a_step, packed_floats;
  int64_t groups, groups_per_chunk, chunks, panels_per_task, tasks_per_chunk;
  float* packed;      // [groups][depth][16]; null: x as it lies
  tracea_block_sparse_fn kernel;
  tracea_finite_fn all_finite;
  bool pairs;         // lanes are pairs of bf16: x, k, block and depth count them
  int32_t* finite;    // by group
  int32_t* packing;   // by group: how far its packing is
  int64_t* starts;    // by panel, and one more: its first stored block
};

enum Packing : int32_t { kAsItLies, kUnderWay, kPacked };

inline GemmJob stored_job(Run& run, const Call& call, const TensorView* views) {
  GemmJob gemm = {};
  gemm.isa = run.host.isa;
  gemm.type = call.chain_type();
  gemm.chain = gemm.type ? gemm.isa->chain[call.chain] : nullptr;
  gemm.x = &views[0], gemm.w = &views[1];
  gemm.bias = views[2].data ? &views[2] : nullptr;
  gemm.extra = &views[4];
  gemm.results = gemm.extra + (gemm.type ? gemm.type->operands - 1 : 0);
  gemm.parts = static_cast<int32_t>(call.ints[gemm_block_sparse_call::kParts]);
  gemm.items = 1;
  return gemm;
}

// Whether bias, results and the chain's operands are as wide and long as the product, whose
// columns this counts.
inline bool stored_results(GemmJob& gemm) {
  bool ok = true;
  for (int32_t i = 0; i < gemm.parts; ++i)
    ok = ok && !__builtin_add_overflow(gemm.n, gemm.results[i].dims[1], &gemm.n);
  ok = ok && (!gemm.bias || (gemm.bias->is(gemm.n) && (gemm.n <= 1 || gemm.bias->strides[0] == 1)));
  return ok && epilogue_lies(gemm);
}

inline int64_t places_of_panel(const BlockSparseJob& job) { return job.depth / job.block; }

// Where each panel's stored blocks begin; the places are in order.
inline void find_starts(const BlockSparseJob& job, int64_t panels) {
  const int64_t each = places_of_panel(job);
  int64_t stored = 0;
  for (int64_t panel = 0; panel < panels; ++panel) {
    job.starts[panel] = stored;
    while (stored < job.stored && job.places[stored] < (panel + 1) * each) ++stored;
  }
  job.starts[panels] = job.stored;
}

inline void pack_group(const BlockSparseJob& job, int64_t group) {
  const GemmJob& gemm = job.gemm;
  const int64_t row = group * kGroup;
  float* to = job.packed + group * job.depth * kGroup;
  tracea_gemm_pack_tile tile;
  tile.k = gemm.k, tile.columns = min(kGroup, gemm.m - row);
  tile.from = gemm.x->f32() + row * gemm.x_row;
  tile.row = gemm.x_step, tile.column = gemm.x_row;
  tile.to = to, tile.panel = 0;
  gemm.isa->gemm_pack(&tile);
  memset(to + gemm.k * kGroup, 0, static_cast<size_t>((job.depth - gemm.k) * kGroup) * sizeof *to);
  job.finite[group] = job.all_finite(to, gemm.k * kGroup);
}

// Packs a group of rows unless another task did, or waits until the one that does is through.
inline void want_group(const BlockSparseJob& job, int64_t group) {
  if (!job.packed) return;
  int32_t* state = &job.packing[group];
  int32_t seen = __atomic_load_n(state, __ATOMIC_ACQUIRE);
  if (seen == kAsItLies && __atomic_compare_exchange_n(state, &seen, kUnderWay, false,
                                                    __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
    pack_group(job, group);
    __atomic_store_n(state, kPacked, __ATOMIC_RELEASE);
    return;
  }
  while (seen != kPacked) {
    sched_yield();
    seen = __atomic_load_n(state, __ATOMIC_ACQUIRE);
  }
}

// 0 times a lane's number, or both of its.
inline float nothing_of(const BlockSparseJob& job, float lane) {
  if (!job.pairs) return lane * 0.0f;
  uint32_t bits;
  memcpy(&bits, &lane, sizeof bits);
  const uint32_t halves[2] = {bits << 16, bits & 0xffff0000u};
  float both[2];
  memcpy(both, halves, sizeof both);
  return both[0] * 0.0f + both[1] * 0.0f;
}

// bias + 0 * x over the blocks [low, high) of a panel leaves out, for some rows of sixteen columns.
inline void begin_sums(const BlockSparseJob& job, const tracea_block_sparse_tile& tile, float* sums) {
  for (int64_t i = 0; i < tile.rows; ++i) {
    float skipped = 0.0f;
    for (int64_t b = 0, s = 0; b < places_of_panel(job); ++b) {
      if (s < tile.count && tile.place[s] - tile.first == b) {
        ++s;
        continue;
      }
      for (int64_t k = b * job.block; k < (b + 1) * job.block; ++k)
        skipped += nothing_of(job, tile.a[k * job.a_step + i]);
    }
    for (int64_t j = 0; j < tile.last; ++j)
      sums[i * TRACEA_PANEL + j] = skipped + (tile.init ? tile.init[j] : 0.0f);
  }
}

// Panels [panel, end), no more than finish together, of one group of rows.
inline void block_sparse_tile(const BlockSparseJob& job, int64_t group, int64_t panel, int64_t end) {
  constexpr int64_t kWide = kTogether * TRACEA_PANEL;
  alignas(64) float finished[kGroup * kWide], begun[kGroup * TRACEA_PANEL];
  const GemmJob& gemm = job.gemm;
  const int64_t row = group * kGroup, n0 = panel * TRACEA_PANEL;
  const int64_t columns = min(end * TRACEA_PANEL, gemm.n) - n0;
  const int64_t y_row = gemm.results[0].strides[0];
  tracea_block_sparse_tile tile;
  tile.rows = static_cast<int32_t>(min(kGroup, gemm.m - row));
  tile.a = job.packed ? job.packed + group * job.depth * kGroup : gemm.x->f32();
  tile.a_step = job.a_step, tile.block = job.block;
  for (int64_t p = panel; p < end; ++p) {
    const int64_t low = job.starts[p], high = job.starts[p + 1], n = p * TRACEA_PANEL;
    tile.b = gemm.w->f32() + low * job.block * TRACEA_PANEL;
    tile.place = job.places + low, tile.count = high - low;
    tile.first = p * places_of_panel(job);
    tile.last = static_cast<int32_t>(min(TRACEA_PANEL, gemm.n - n));
    tile.init = gemm.bias ? gemm.bias->f32() + n : nullptr;
    tile.init_stride = 0;
    if (!job.finite[group]) {
      begin_sums(job, tile, begun);
      tile.init = begun, tile.init_stride = TRACEA_PANEL;
    }
    tile.c = in_place(gemm) ? gemm.results[0].f32() + row * y_row + n : finished + (n - n0);
    tile.ldc = in_place(gemm) ? y_row : kWide;
    job.kernel(&tile);
  }
  if (!in_place(gemm))
    finish(gemm, item_of(gemm, 0), {row, n0, tile.rows, static_cast<int32_t>(columns)}, finished,
           kWide);
}

// Where part `part` of a chunk's tasks begins: each has about as much work, which is stored steps
// of k and what a panel takes beside them.
inline int64_t part_begins(const BlockSparseJob& job, int64_t part) {
  constexpr int64_t kPanelSteps = 16;
  const int64_t panels = ceil_div(job.gemm.n, TRACEA_PANEL);
  const auto work = [&](int64_t panel) {
    return job.starts[panel] * job.block + panel * kPanelSteps;
  };
  const int64_t wanted = work(panels) / job.tasks_per_chunk * part;
  if (part >= job.tasks_per_chunk) return panels;
  int64_t low = 0, high = panels;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (work(middle) < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

inline void block_sparse_task(void* usr, size_t index) {
  const BlockSparseJob& job = *static_cast<const BlockSparseJob*>(usr);
  const int64_t task = static_cast<int64_t>(index);
  const int64_t chunk = task / job.tasks_per_chunk;
  const int64_t first = part_begins(job, task % job.tasks_per_chunk);
  const int64_t last = part_begins(job, task % job.tasks_per_chunk + 1);
  const int64_t begin = chunk * job.groups_per_chunk;
  const int64_t count = min(job.groups - begin, job.groups_per_chunk);
  // Tasks of a chunk begin with different groups, so that each packs some of them.
  const int64_t turn = task % job.tasks_per_chunk * count / job.tasks_per_chunk;
  for (int64_t panel = first; panel < last; panel += kTogether)
    for (int64_t i = 0; i < count; ++i) {
      const int64_t group = begin + (i + turn) % count;
      want_group(job, group);
      block_sparse_tile(job, group, panel, min(panel + kTogether, last));
    }
}

inline bool block_sparse_shapes(Run& run, const TensorView* views, BlockSparseJob& job) {
  GemmJob& gemm = job.gemm;
  const TensorView &x = views[0], &w = views[1], &places = views[3];
  const int64_t lane = job.pairs ? 2 : 1;  // elements of x and w in four bytes
  gemm.m = x.dims[0], gemm.k = x.dims[1] / lane;
  bool ok = stored_results(gemm);
  job.stored = w.dims[0], job.block = w.dims[1];
  ok = ok && (job.block * lane == 1 || (job.block > 0 && job.block * lane % 4 == 0)) &&
       w.dims[2] == TRACEA_PANEL && places.is(job.stored) &&
       (!job.pairs || (w.dims[3] == 2 && w.strides[3] == 1 && x.dims[1] % 2 == 0 &&
                       x.strides[1] == 1 && x.strides[0] % 2 == 0)) &&
       (job.stored == 0 || (w.strides[2] == lane && w.strides[1] == TRACEA_PANEL * lane &&
                            w.strides[0] == job.block * TRACEA_PANEL * lane)) &&
       (job.stored <= 1 || places.strides[0] == 1);
  if (!ok)
    return run.error.fail("The views of a gemm_block_sparse do not fit together (M %lld, N %lld, K %lld).",
                          static_cast<long long>(gemm.m), static_cast<long long>(gemm.n),
                          static_cast<long long>(gemm.k));
  job.places = reinterpret_cast<const int32_t*>(places.data);
  int64_t in_all;
  job.groups = ceil_div(gemm.m, kGroup);
  bool fits = !__builtin_mul_overflow(ceil_div(gemm.k, job.block), job.block, &job.depth) &&
              !__builtin_mul_overflow(ceil_div(gemm.n, TRACEA_PANEL), places_of_panel(job), &in_all) &&
              !__builtin_mul_overflow(job.groups, job.depth, &job.packed_floats) &&
              !__builtin_mul_overflow(job.packed_floats, kGroup, &job.packed_floats);
  if (!fits || job.packed_floats > INT64_MAX / 8)
    return run.error.fail("A gemm_block_sparse is larger than memory.");
  bool sorted = job.stored == 0 || (job.places[0] >= 0 && job.places[job.stored - 1] < in_all);
  for (int64_t i = 1; i < job.stored; ++i) sorted &= job.places[i - 1] < job.places[i];
  return sorted || run.error.fail("The map of a gemm_block_sparse does not list places of its matrix "
                                  "in ascending order.");
}

inline bool run_gemm_block_sparse(Run& run, const Call& call, const TensorView* views) {
  BlockSparseJob job = {};
  GemmJob& gemm = job.gemm = stored_job(run, call, views);
  job.pairs = call.opcode == kGemmBlockSparseBf16;
  job.kernel = job.pairs ? gemm.isa->gemm_block_sparse_bf16 : gemm.isa->gemm_block_sparse;
  job.all_finite = job.pairs ? gemm.isa->all_finite_bf16 : gemm.isa->all_finite;
  if (!block_sparse_shapes(run, views, job)) return false;
  if (gemm.m == 0 || gemm.n == 0) return true;
  gemm.x_row = gemm.x->strides[0] / (job.pairs ? 2 : 1), gemm.x_step = gemm.x->strides[1];
  const int64_t panels = ceil_div(gemm.n, TRACEA_PANEL), near = kNearFloats / kGroup;
  // Numbers are read in order, and fetched ahead; packed rows here and there, so that they stay near.
  const bool streamed = job.stored <= kStreamedFloats / (job.block * TRACEA_PANEL);
  job.groups_per_chunk = streamed ? 1 : max(1, min(job.groups, near / max(job.depth, 1)));
  const TaskSchedule schedule = call.task_schedule(gemm.m);
  if (schedule.rows) job.groups_per_chunk = min(job.groups, ceil_div(schedule.rows, kGroup));
  job.chunks = ceil_div(job.groups, job.groups_per_chunk);
  const int64_t wanted = run.host.processors > 1 ? 4 * run.host.processors : 1;
  const int64_t share = ceil_div(panels, ceil_div(wanted, job.chunks));
  job.panels_per_task = ceil_div(share, kTogether) * kTogether;
  if (schedule.columns) job.panels_per_task = ceil_div(schedule.columns, TRACEA_PANEL);
  job.tasks_per_chunk = ceil_div(panels, job.panels_per_task);
  const bool as_it_lies = gemm.m == 1 && job.depth == gemm.k && gemm.x_step == 1;
  if (as_it_lies) job.packed_floats = 0;
  const int64_t starts_bytes = (panels + 1) * static_cast<int64_t>(sizeof *job.starts);
  Scratch scratch(run);
  char* memory = scratch.take(job.packed_floats * 4 + starts_bytes + 2 * job.groups * 4);
  if (!memory) return false;
  job.starts = reinterpret_cast<int64_t*>(memory + job.packed_floats * 4);
  job.finite = reinterpret_cast<int32_t*>(memory + job.packed_floats * 4 + starts_bytes);
  job.packing = job.finite + job.groups;
  job.a_step = as_it_lies ? 1 : kGroup;
  find_starts(job, panels);
  if (as_it_lies) job.finite[0] = job.all_finite(gemm.x->f32(), gemm.k);
  else job.packed = reinterpret_cast<float*>(memory);
  for (int64_t group = 0; group < job.groups; ++group) job.packing[group] = kAsItLies;
  return run.parallel(job.chunks * job.tasks_per_chunk, block_sparse_task, &job);
}

}  // namespace tracea
