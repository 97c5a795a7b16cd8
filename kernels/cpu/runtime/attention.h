// The host loop of attention: a task is some query rows of the heads that share keys, or of some of them.
#pragma once
#include "runtime/kv_append.h"
#include "runtime/check.h"
#include "runtime/slots.h"

namespace tracea {

constexpr int64_t kQueryChunk = 48;  // queries per task; with fewer, keys would be packed too often
constexpr int64_t kFewQueries = 4;  // up to so many rows, packing the keys costs more than it saves
constexpr int64_t kFewHeads = 16;   // the same for heads of a single query, which become rows
constexpr int64_t kLargeMask = 1 << 18;  // elements from which a mask shared by all heads is scanned once
constexpr int64_t kRangesPerTask = 16;

struct AttentionJob {
  tracea_attention_fn attention;
  const TensorView *q, *k, *v, *mask, *y;
  const TensorView* positions;              // of each item's first query among its keys, or null
  tracea_attention_tile common;   // what all tasks share
  int64_t mask_size;              // bytes per element
  int64_t lane;                   // elements of q, k and v in four bytes
  int64_t cached_size;            // bytes of an element of k and v
  int64_t groups, parts, chunks;  // key heads; tasks per key head; tasks per heads' queries
  tracea_attention_ranges_fn find_ranges;
  tracea_attention_range* ranges;  // [batches][chunks][blocks], or null: each task looks itself
  int64_t blocks, pieces;          // blocks of queries, and tasks that find their ranges, per chunk
  bool by_rows;                    // tasks of the same queries are neighbours; else those of a head
  Slots slots;
};

inline void attention_task(void* usr, size_t index) {
  AttentionJob& job = *static_cast<AttentionJob*>(usr);
  const int64_t task = static_cast<int64_t>(index), heads = job.groups * job.parts;
  const int64_t chunk = job.by_rows ? task / heads : task % job.chunks;
  const int64_t at_head = job.by_rows ? task % heads : task / job.chunks;
  const int64_t part = at_head % job.parts, group = at_head / job.parts;
  const int64_t g = group % job.groups, b = group / job.groups;
  const int64_t queries = job.q->dims[2], shared = job.q->dims[1] / job.groups;
  const int64_t first = queries * chunk / job.chunks, last = queries * (chunk + 1) / job.chunks;
  const int64_t head = g * shared + shared * part / job.parts;
  const auto at = [&](const TensorView& box, int64_t h, int64_t row) {
    return b * box.strides[0] + h * box.strides[1] + row * box.strides[2];
  };
  const auto lanes = [&](const TensorView& box, int64_t h, int64_t row) {
    return box.f32() + at(box, h, row) / job.lane;
  };
  const auto cached = [&](const TensorView& box) {
    return reinterpret_cast<const float*>(box.data + at(box, g, 0) * job.cached_size);
  };
  const int slot = claim_slot(job.slots);
  tracea_attention_tile tile = job.common;
  tile.queries = last - first;
  tile.heads = g * shared + shared * (part + 1) / job.parts - head;
  tile.q = lanes(*job.q, head, first);
  tile.k = cached(*job.k);
  tile.v = cached(*job.v);
  if (job.positions) {
    const int64_t place = position_of_item(*job.positions, b);
    tile.keys = place + queries, tile.seen = place + 1, tile.causal = queries > 1;
  }
  if (job.mask) tile.mask = job.mask->data + at(*job.mask, head, first) * job.mask_size;
  tile.y = job.y->data + at(*job.y, head, first) * tile.y_size;
  tile.seen += first, tile.first_query = first;
  if (queries == 1) {  // heads become rows: their keys are read once
    tile.queries = tile.heads, tile.heads = 1, tile.seen_step = 0;
    tile.q_stride = tile.q_head, tile.y_stride = tile.y_head, tile.mask_row = tile.mask_head;
  }
  tile.scratch = memory_of(job.slots, slot);
  if (job.ranges) tile.ranges = job.ranges + (b * job.chunks + chunk) * job.blocks;
  job.attention(&tile);
  release_slot(job.slots, slot);
}

// Range of keys that the mask leaves for some queries of a chunk, for every head.
inline void ranges_task(void* usr, size_t index) {
  AttentionJob& job = *static_cast<AttentionJob*>(usr);
  const int64_t task = static_cast<int64_t>(index), piece = task % job.pieces;
  const int64_t chunk = task / job.pieces % job.chunks, b = task / job.pieces / job.chunks;
  const int64_t queries = job.q->dims[2], rows = kRangesPerTask * TRACEA_QUERIES;
  const int64_t first = queries * chunk / job.chunks + piece * rows;
  const int64_t last = min(queries * (chunk + 1) / job.chunks, first + rows);
  tracea_attention_tile tile = job.common;
  tile.queries = last - first;
  const int64_t at = b * job.mask->strides[0] + first * job.mask->strides[2];
  tile.mask = job.mask->data + at * job.mask_size;
  tile.seen += first;
  job.find_ranges(&tile, job.ranges + (b * job.chunks + chunk) * job.blocks + piece * kRangesPerTask);
}

// Ranges of a large mask that all heads share are found once, before the heads run.
inline bool find_ranges(Run& run, AttentionJob& job, Scratch& scratch) {
  const int64_t batches = job.q->dims[0], queries = job.q->dims[2], keys = job.k->dims[2];
  const bool shared = job.mask && job.mask->strides[1] == 0 && job.mask->strides[2] != 0 &&
                      job.mask->strides[3] == 1 && job.q->dims[1] > 1;
  if (!shared || job.common.direct || job.common.spans || queries <= kFewQueries || keys < kLargeMask / queries)
    return true;
  job.blocks = ceil_div(ceil_div(queries, job.chunks), TRACEA_QUERIES);
  job.pieces = ceil_div(job.blocks, kRangesPerTask);
  const int64_t all = batches * job.chunks * job.blocks;
  job.ranges = reinterpret_cast<tracea_attention_range*>(
      scratch.take(all * static_cast<int64_t>(sizeof *job.ranges)));
  return job.ranges && run.parallel(batches * job.chunks * job.pieces, ranges_task, &job);
}

// A mask has four axes; with order `placed` the mask operand holds each item's position instead.
inline bool check_attention(Signature& call) {
  using namespace attention_call;
  const int64_t kind = call.integer(kMaskKind);
  const int32_t type = call.lacks(kMask) ? 0 : call.type(kMask);
  const int32_t rank = call.lacks(kMask) ? 0 : call.rank(kMask);
  const int64_t tiles = call.integer(kTileKind);
  const bool near = call.integer(kWindowLeft) >= 0, bound = tiles == kTileKindBound;
  for (int32_t i = 0; i < 4; ++i)
    if ((tiles != kTileKindNone) != (call.integer(kTileGrid + i) > 0))
      return call.fail("half a grid of tiles");
  if ((tiles != kTileKindNone) == call.lacks(kTiles)) return call.fail("a map of tiles or a grid alone");
  if ((tiles && call.integer(kOrder) == kOrderPlaced) ||
      (bound && (call.integer(kOrder) != kOrderNone || near || kind == kMaskKindNone)))
    return call.fail("tiles beside an order or a window");
  if (call.integer(kOrder) == kOrderPlaced)
    return (kind == kMaskKindNone && !call.integer(kGlobalKeys) && type == ORT_I64 && rank == 1) ||
           call.fail("a mask beside positions");
  if (kind == kMaskKindNone) return !type || call.fail("a mask it does not take");
  return (type == (kind == kMaskKindAdd ? ORT_F32 : ORT_BOOL) && rank == 4) ||
         call.fail("another mask than it says");
}

// The spans of keys in active tiles: the L1 map lists tiles in ascending order, row after row.
inline bool find_spans(Run& run, const Call& call, const TensorView& map, Scratch& scratch,
                       tracea_attention_tile* tile) {
  const int64_t* grid = call.ints + attention_call::kTileGrid;
  const int64_t rows = grid[0], keys = grid[1], key_tiles = grid[3], active = map.dims[0];
  const auto* ids = reinterpret_cast<const int32_t*>(map.data);
  const int64_t queries = tile->queries, used = ceil_div(queries, rows);
  if (used > grid[2] || ceil_div(tile->keys, keys) > key_tiles)
    return run.error.fail("%lld queries and %lld keys do not fit %lld x %lld tiles of %lld x %lld.",
                          static_cast<long long>(queries), static_cast<long long>(tile->keys),
                          static_cast<long long>(grid[2]), static_cast<long long>(key_tiles),
                          static_cast<long long>(rows), static_cast<long long>(keys));
  bool sorted = active == 0 || (map.strides[0] == 1 || active == 1);
  sorted = sorted && (active == 0 || (ids[0] >= 0 && ids[active - 1] < grid[2] * key_tiles));
  for (int64_t i = 1; sorted && i < active; ++i) sorted = ids[i - 1] < ids[i];
  if (!sorted)
    return run.error.fail("The map of an attention does not list its tiles in ascending order.");
  const int64_t starts_bytes = (used + 1) * static_cast<int64_t>(sizeof *tile->starts);
  const int64_t span_bytes = max(active, 1) * static_cast<int64_t>(sizeof *tile->spans);
  char* memory = scratch.take(starts_bytes + span_bytes);
  if (!memory) return false;
  auto* starts = reinterpret_cast<int64_t*>(memory);
  auto* spans = reinterpret_cast<tracea_attention_span*>(memory + starts_bytes);
  int64_t at = 0, count = 0;
  for (int64_t row = 0; row < used; ++row) {
    starts[row] = count;
    for (; at < active && ids[at] / key_tiles == row; ++at) {
      const int64_t low = ids[at] % key_tiles * keys, high = min(low + keys, tile->keys);
      if (low >= high) continue;
      if (count > starts[row] && spans[count - 1].high == low) spans[count - 1].high = high;
      else spans[count++] = {low, high};
    }
  }
  starts[used] = count;
  tile->spans = spans, tile->starts = starts, tile->tile_rows = rows;
  tile->tiles_mask = call.ints[attention_call::kTileKind] == attention_call::kTileKindMask;
  tile->beyond = static_cast<float>(call.floats[attention_call::kBeyond]);
  return true;
}

// Pairs of columns lie together, and whole pairs between rows and heads.
inline bool in_pairs(const TensorView& box) {
  return box.strides[3] == 1 && box.dims[3] % 2 == 0 && box.strides[0] % 2 == 0 &&
         box.strides[1] % 2 == 0 && box.strides[2] % 2 == 0;
}

inline bool attention_shapes(const TensorView* views, bool masked) {
  using namespace attention_call;
  const TensorView &q = views[kQ], &k = views[kK], &v = views[kV], &mask = views[kMask], &y = views[kY];
  const int64_t batch = q.dims[0], heads = q.dims[1], queries = q.dims[2], head = q.dims[3];
  const int64_t shared = k.dims[1], keys = k.dims[2], head_v = v.dims[3];
  const auto is = [](const TensorView& box, int64_t d0, int64_t d1, int64_t d2, int64_t d3) {
    return box.is(d0, d1) && box.dims[2] == d2 && box.dims[3] == d3;
  };
  const auto unit = [](const TensorView& box) { return box.dims[3] <= 1 || box.strides[3] == 1; };
  const auto real = [](const TensorView& box) { return box.dims[2] <= 1 || box.strides[2] != 0; };
  return is(k, batch, shared, keys, head) && is(v, batch, shared, keys, head_v) &&
         is(y, batch, heads, queries, head_v) && unit(q) && unit(v) && unit(y) &&
         (unit(k) || k.strides[2] == 1) && real(v) && (real(k) || !unit(k)) && head >= 1 && head <= 256 && head_v >= 1 && head_v <= 256 &&
         keys >= 1 && shared >= 1 && heads % shared == 0 &&
         (!masked || (is(mask, batch, heads, queries, keys) &&
                      (keys == 1 || mask.strides[3] == 0 || mask.strides[3] == 1)));
}

// Rounds q, k and v from float32 to bf16 once, for a kernel whose tasks read them repeatedly.
struct RoundHeadsJob {
  tracea_round_fn round;
  const TensorView* from;
  TensorView* to;
  const TensorView* positions;  // as an attention's
};

inline void round_heads_task(void* usr, size_t index) {
  const RoundHeadsJob& job = *static_cast<const RoundHeadsJob*>(usr);
  int64_t task = static_cast<int64_t>(index);
  int which = 0;
  for (; task >= job.from[which].dims[0] * job.from[which].dims[1]; which++)
    task -= job.from[which].dims[0] * job.from[which].dims[1];
  const TensorView &x = job.from[which], &y = job.to[which];
  const int64_t b = task / x.dims[1], h = task % x.dims[1];
  const bool cached = job.positions && which > 0;  // beyond the queries the cache holds arbitrary values
  const int64_t rows = cached ? position_of_item(*job.positions, b) + job.from[0].dims[2] : x.dims[2];
  const tracea_round_tile tile = {
      rows, x.dims[3], x.f32() + b * x.strides[0] + h * x.strides[1], x.strides[2],
      reinterpret_cast<uint16_t*>(y.data) + b * y.strides[0] + h * y.strides[1], y.strides[2]};
  job.round(&tile);
}

// Makes `views`, q, k and v in float32, dense ones in bf16.
inline bool round_heads(Run& run, const TensorView* positions, TensorView* views, Scratch& scratch) {
  TensorView made[3];
  int64_t tasks = 0, numbers = 0;
  for (int i = 0; i < 3; i++) {
    TensorView& box = made[i] = views[i];
    if (box.dims[3] > 1 && box.strides[3] != 1)
      return misfit(run, "fused attention");
    box.strides[3] = 1;
    for (int axis = 3; axis > 0; axis--) box.strides[axis - 1] = box.strides[axis] * box.dims[axis];
    tasks += box.dims[0] * box.dims[1];
    numbers += box.dims[0] * box.strides[0];
  }
  char* memory = scratch.take(numbers * 2);
  if (!memory) return false;
  for (TensorView& box : made) box.data = memory, memory += box.dims[0] * box.strides[0] * 2;
  RoundHeadsJob job = {run.host.isa->round_bf16, views, made, positions};
  if (!run.parallel(tasks, round_heads_task, &job)) return false;
  for (int i = 0; i < 3; i++) views[i] = made[i];
  return true;
}

// Fills in what all tasks of a call share.
inline tracea_attention_tile attention_tile(const Call& call, const TensorView* views, int64_t lane) {
  using namespace attention_call;
  const TensorView &q = views[kQ], &k = views[kK], &v = views[kV], &mask = views[kMask], &y = views[kY];
  tracea_attention_tile tile = {};
  tile.queries = q.dims[2];
  tile.keys = k.dims[2], tile.head = q.dims[3] / lane, tile.head_v = v.dims[3];
  tile.q_stride = q.strides[2] / lane, tile.q_head = q.strides[1] / lane;
  tile.k_stride = k.strides[2] / lane, tile.k_col = k.dims[3] <= 1 ? 1 : k.strides[3];
  tile.v_stride = v.strides[2] / lane;
  tile.y_size = call.views[kY].type == ORT_BF16 ? 2 : 4;
  tile.y_stride = y.strides[2], tile.y_head = y.strides[1];
  tile.mask_kind = static_cast<int32_t>(call.ints[kMaskKind]);
  if (tile.mask_kind)
    tile.mask_head = mask.strides[1], tile.mask_row = mask.strides[2], tile.mask_col = mask.strides[3];
  tile.zero_rows = static_cast<int32_t>(call.ints[kZeroRows]);
  const int64_t order = call.ints[kOrder];
  const int64_t seen = order == kOrderTop ? 0 : k.dims[2] - q.dims[2];  // before the first query
  tile.causal = order != kOrderNone && seen + 1 < tile.keys;
  tile.seen = seen + 1, tile.seen_step = 1;
  tile.window_left = call.ints[kWindowLeft], tile.window_right = call.ints[kWindowRight];
  tile.global_keys = call.ints[kGlobalKeys];
  tile.scale = static_cast<float>(call.floats[kScale]);
  tile.fill = static_cast<float>(call.floats[kFill]);
  tile.softcap = static_cast<float>(call.floats[kSoftcap]);
  return tile;
}

// Without keys the result is zero.
inline bool attend_to_nothing(Run& run, const Call& call, const TensorView& q, const TensorView& y) {
  if (!y.is(q.dims[0], q.dims[1], q.dims[2]) || (y.dims[3] > 1 && y.strides[3] != 1))
    return misfit(run, "fused attention");
  const int64_t size = element_size(call.views[attention_call::kY].type);
  for (int64_t b = 0; b < y.dims[0]; ++b)
    for (int64_t h = 0; h < y.dims[1]; ++h)
      for (int64_t i = 0; i < y.dims[2]; ++i)
        memset(y.data + (b * y.strides[0] + h * y.strides[1] + i * y.strides[2]) * size, 0,
               static_cast<size_t>(y.dims[3] * size));
  return true;
}

inline bool run_attention(Run& run, const Call& call, const TensorView* given) {
  using namespace attention_call;
  const Host& host = run.host;
  const TensorView &q = given[kQ], &y = given[kY];
  const bool placed = call.ints[kOrder] == kOrderPlaced;
  const bool masked = call.ints[kMaskKind] != kMaskKindNone;
  if (q.dims[0] == 0 || q.dims[1] == 0 || q.dims[2] == 0 || y.dims[3] == 0) {
    const bool empty = y.dims[0] == 0 || y.dims[1] == 0 || y.dims[2] == 0 || y.dims[3] == 0;
    return empty || misfit(run, "fused attention");
  }
  if (!placed && given[1].dims[2] == 0 && given[2].dims[2] == 0)
    return attend_to_nothing(run, call, q, y);
  // Rounding keys that a few queries read once would cost more than it saves.
  const bool rounds = call.opcode == kAttentionF32AsBf16 && q.dims[2] > kFewQueries;
  const bool narrow = rounds || call.opcode == kAttentionBf16;
  const TensorView* positions = placed ? &given[3] : nullptr;
  const int64_t queries = q.dims[2], keys = given[1].dims[2];
  TensorView views[] = {q, given[kK], given[kV], given[kMask], given[kTiles], y};
  Scratch heads(run), scratch(run), ranges(run), spans(run);
  if (!attention_shapes(views, masked) ||
      (positions && !(positions->is(q.dims[0]) && check_positions(run, *positions, queries, keys, keys))))
    return misfit(run, "fused attention");
  if (rounds && !round_heads(run, positions, views, heads)) return false;
  const CacheKernels kernels = cache_kernels(*host.isa, call.opcode);
  if (kernels.round && views[1].dims[3] > 1 && views[1].strides[3] != 1)
    return misfit(run, "fused attention");
  if (narrow && !(in_pairs(views[0]) && in_pairs(views[1]) && in_pairs(views[2])))
    return misfit(run, "fused attention");
  AttentionJob job = {};
  job.attention = narrow ? host.isa->attention_bf16 : kernels.attention;
  job.lane = narrow ? 2 : 1, job.cached_size = narrow ? 2 : kernels.size;
  job.q = &views[0], job.k = &views[1], job.v = &views[2], job.y = &views[kY];
  job.mask = masked ? &views[3] : nullptr;
  job.mask_size = call.ints[kMaskKind] == kMaskKindAdd ? 4 : 1;
  job.common = attention_tile(call, views, job.lane);
  job.positions = positions;
  job.groups = views[1].dims[1];
  const int64_t shared = q.dims[1] / job.groups, all = q.dims[0] * job.groups;
  const int64_t wanted = max(8, host.processors);
  const TaskSchedule schedule = call.task_schedule(queries);
  job.chunks = max(1, min(ceil_div(queries, kQueryChunk), wanted / all));
  job.by_rows = run.links && q.dims[0] == 1;
  if (job.by_rows)  // products of the first rows then begin while other threads attend to the last
    job.chunks = max(job.chunks, min(ceil_div(queries, kQueryChunk), ceil_div(2 * run.divisions(), all)));
  if (schedule.rows) job.chunks = ceil_div(queries, schedule.rows);
  // Heads that share keys are split only if threads would be idle otherwise.
  job.parts = max(1, min(shared, host.processors / (all * job.chunks)));
  if (schedule.columns) job.parts = ceil_div(shared, schedule.columns);
  job.common.direct = !narrow && queries <= kFewQueries && (queries > 1 || shared <= kFewHeads);
  const int64_t tasks = all * job.parts * job.chunks;
  const auto scratch_of = narrow ? host.isa->attention_bf16_scratch : kernels.scratch;
  const int64_t bytes = scratch_of(keys, job.common.head, views[2].dims[3]);
  if (call.ints[kTileKind] && !find_spans(run, call, given[kTiles], spans, &job.common))
    return false;
  job.find_ranges = narrow ? host.isa->attention_bf16_ranges : kernels.ranges;
  const RowTasks rows = {queries, job.chunks, job.groups * job.parts, 0, true};
  return find_ranges(run, job, ranges) && make_slots(run, scratch, tasks, bytes, &job.slots) &&
         run.parallel(tasks, attention_task, &job, job.by_rows ? &rows : nullptr);
}

}  // namespace tracea
