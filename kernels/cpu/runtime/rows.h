// Host loops over rows: norm, channel norm and embedding.
#pragma once
#include "runtime/check.h"
#include "runtime/run.h"

namespace tracea {

constexpr int64_t kGrain = 32 * 1024;  // elements per task: a few microseconds of work

// Rows of a task, a multiple of `unit`: equally many for each thread of a team.
inline int64_t task_rows(const Run& run, int64_t rows, int64_t cols, int64_t unit) {
  const int64_t units = ceil_div(rows, unit);
  const int64_t parts = min(units, ceil_div(rows * cols, run.worth(kGrain)));
  return parts <= 1 ? rows : ceil_div(units, run.even(parts, units)) * unit;
}

// ---- norm --------------------------------------------------------------------------------------

struct NormJob {
  tracea_norm_fn norm;
  tracea_norm_tile whole;
  int64_t chunk;
};

inline void norm_task(void* usr, size_t index) {
  const NormJob& job = *static_cast<const NormJob*>(usr);
  const int64_t row = static_cast<int64_t>(index) * job.chunk;
  tracea_norm_tile tile = job.whole;
  tile.rows = min(job.chunk, tile.rows - row);
  tile.x += row * tile.x_stride;
  if (tile.y) tile.y += row * tile.y_stride;
  if (tile.rounded) tile.rounded += row * tile.rounded_stride;
  job.norm(&tile);
}

// The result may be in bf16, in float32, or in both.
inline bool check_norm(Signature& call) {
  return !call.lacks(norm_call::kY) || !call.lacks(norm_call::kYBf16) || call.fail("no result");
}

inline bool run_norm(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &gamma = views[1], &beta = views[2], &y = views[3];
  const int64_t rows = x.dims[0], cols = x.dims[1];
  const auto vector = [&](const TensorView& v) {
    return !v.data || (v.is(cols) && (cols <= 1 || v.strides[0] == 1));
  };
  const bool rounds = call.views[4].kind != kNone;
  const auto fits = [&](const TensorView& box) {
    return box.is(rows, cols) && (cols <= 1 || box.strides[1] == 1);
  };
  const bool unit = cols <= 1 || x.strides[1] == 1;
  const bool results = (call.views[3].kind == kNone || fits(y)) && (!rounds || fits(views[4]));
  if (!unit || !results || !vector(gamma) || !vector(beta))
    return run.error.fail("The views of a norm do not fit together.");
  if (rows == 0 || cols == 0) return true;
  NormJob job = {};
  const bool rms = call.ints[norm_call::kKind] == norm_call::kKindRms;
  job.norm = rms ? run.host.isa->norm_rms : run.host.isa->norm_layer;
  job.whole = {rows,         cols, x.f32(), x.strides[0], gamma.f32(), beta.f32(),
               static_cast<float>(call.floats[norm_call::kEpsilon]), y.f32(), y.strides[0], 0,
               nullptr, 0};
  if (rounds)
    job.whole.rounded = reinterpret_cast<uint16_t*>(views[4].data),
    job.whole.rounded_stride = views[4].strides[0];
  job.chunk = task_rows(run, rows, cols, 4);  // kernels take four rows at once
  const RowTasks tasks = {rows, ceil_div(rows, job.chunk), 1, job.chunk};
  return run.parallel(tasks.steps, norm_task, &job, &tasks);
}

// ---- channel norm ------------------------------------------------------------------------------

struct ChannelNormJob {
  tracea_norm_fn norm;
  tracea_norm_tile whole;
  int64_t groups, blocks, total, chunk;  // groups per item; column blocks; units in all and per task
  int64_t x_item, y_item;                // strides between items
};

inline void channel_norm_task(void* usr, size_t index) {
  const ChannelNormJob& job = *static_cast<const ChannelNormJob*>(usr);
  const int64_t first = static_cast<int64_t>(index) * job.chunk;
  for (int64_t i = first; i < min(job.total, first + job.chunk); ++i) {
    tracea_norm_tile tile = job.whole;
    if (job.groups) {
      const int64_t row = i % job.groups * tile.rows, item = i / job.groups;
      tile.x += item * job.x_item + row * tile.x_stride;
      tile.y += item * job.y_item + row * tile.y_stride;
      if (tile.gamma) tile.gamma += row;
      if (tile.beta) tile.beta += row;
    } else {
      const int64_t width = ceil_div(ceil_div(job.whole.cols, job.blocks), 16) * 16;
      const int64_t at = min(i % job.blocks * width, tile.cols), item = i / job.blocks;
      tile.cols = min(width, tile.cols - at);
      tile.x += item * job.x_item + at;
      tile.y += item * job.y_item + at;
    }
    job.norm(&tile);
  }
}

inline bool run_channel_norm(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &gamma = views[1], &beta = views[2], &y = views[3];
  const int64_t items = x.dims[0], channels = x.dims[1], inner = x.dims[2];
  const int64_t groups = call.ints[channel_norm_call::kGroups];
  const auto vector = [&](const TensorView& v) {
    return !v.data || (v.is(channels) && (channels <= 1 || v.strides[0] == 1));
  };
  const bool whole = !groups || (channels % groups == 0 && x.strides[1] == inner &&
                                 y.strides[1] == inner);
  const bool unit = inner <= 1 || (x.strides[2] == 1 && y.strides[2] == 1);
  if (!unit || !whole || !y.is(items, channels) || y.dims[2] != inner || !vector(gamma) ||
      !vector(beta))
    return run.error.fail("The views of a channel norm do not fit together.");
  if (items == 0 || channels == 0 || inner == 0) return true;
  ChannelNormJob job = {};
  const bool layer = call.ints[channel_norm_call::kKind] == channel_norm_call::kKindLayer;
  job.norm = groups ? run.host.isa->norm_group : run.host.isa->norm_columns;
  job.groups = groups;
  job.blocks = groups ? 1 : ceil_div(inner, max(kGrain / channels / 16, 1) * 16);
  job.total = items * (groups ? groups : job.blocks);
  job.chunk = max(kGrain / (channels * inner / (groups ? groups : job.blocks)), 1);
  job.x_item = x.strides[0], job.y_item = y.strides[0];
  job.whole = {groups ? channels / groups : channels, inner, x.f32(), x.strides[1], gamma.f32(),
               beta.f32(), static_cast<float>(call.floats[channel_norm_call::kEpsilon]), y.f32(),
               y.strides[1], layer, nullptr, 0};
  return run.parallel(ceil_div(job.total, job.chunk), channel_norm_task, &job);
}

// ---- embedding ---------------------------------------------------------------------------------

constexpr int64_t kIdBlock = 64;

struct EmbeddingJob {
  tracea_gather_fn gather;
  const TensorView *tables, *ids, *y;
  int32_t count, rank;  // tables; axes of the ids
  bool wide;            // 64-bit ids
  int64_t rows, chunk, y_stride;
  int64_t bad, bad_table;  // an id outside its table, or -1 for `bad_table`
};

inline int64_t row_offset(const TensorView& ids, int32_t rank, int64_t row) {
  int64_t offset = 0;
  for (int32_t axis = rank; axis-- > 0; row /= ids.dims[axis])
    offset += row % ids.dims[axis] * ids.strides[axis];
  return offset;
}

// Sets pointers to the table rows that `rows` ids select.  If an id is out of range, records it and
// returns false.
inline bool resolve(EmbeddingJob& job, int32_t t, int64_t row, int64_t rows, const float** out) {
  const TensorView &table = job.tables[t], &ids = job.ids[t];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = row_offset(ids, job.rank, row + r);
    const int64_t id = job.wide ? reinterpret_cast<const int64_t*>(ids.data)[at]
                                : reinterpret_cast<const int32_t*>(ids.data)[at];
    const int64_t wrapped = id < 0 ? id + table.dims[0] : id;
    if (wrapped < 0 || wrapped >= table.dims[0]) {
      __atomic_store_n(&job.bad, id, __ATOMIC_RELAXED);
      __atomic_store_n(&job.bad_table, int64_t{t}, __ATOMIC_RELAXED);
      return false;
    }
    out[r] = table.f32() + wrapped * table.strides[0];
  }
  return true;
}

inline void embedding_task(void* usr, size_t index) {
  EmbeddingJob& job = *static_cast<EmbeddingJob*>(usr);
  const float* rows[TRACEA_MAX_TABLES][kIdBlock];
  const int64_t begin = static_cast<int64_t>(index) * job.chunk;
  const int64_t end = min(job.rows, begin + job.chunk);
  for (int64_t row = begin; row < end; row += kIdBlock) {
    tracea_gather_tile tile = {};
    tile.rows = min(kIdBlock, end - row);
    tile.cols = job.y->dims[job.rank];
    tile.tables = job.count;
    for (int32_t t = 0; t < job.count; ++t) {
      if (!resolve(job, t, row, tile.rows, rows[t])) return;
      tile.row[t] = rows[t];
    }
    tile.y = job.y->f32() + row * job.y_stride;
    tile.y_stride = job.y_stride;
    job.gather(&tile);
  }
}

inline bool check_embedding(Signature& call) {
  const int32_t tables = static_cast<int32_t>(call.integer(embedding_call::kCount));
  bool ok = true;
  for (int32_t t = 0; t < tables; ++t)
    ok = ok && call.type(tables + t) == call.integer(embedding_call::kIndexType);
  return ok || call.fail("ids of another type");
}

// Whether all rows of y are one stride apart; that stride is stored in the job.
inline bool even_rows(EmbeddingJob& job) {
  const TensorView& y = *job.y;
  int64_t below = 1;  // rows one step of this axis spans
  bool found = false;
  for (int32_t axis = job.rank; axis-- > 0;) {
    if (y.dims[axis] != 1) {
      if (!found) job.y_stride = y.strides[axis], found = true;
      else if (y.strides[axis] != job.y_stride * below) return false;
    }
    below *= y.dims[axis];
  }
  job.rows = below;
  return true;
}

inline bool run_embedding(Run& run, const Call& call, const TensorView* views) {
  EmbeddingJob job = {};
  job.gather = run.host.isa->gather;
  job.count = static_cast<int32_t>(call.ints[embedding_call::kCount]);
  job.wide = call.ints[embedding_call::kIndexType] == ORT_I64;
  job.tables = views, job.ids = views + job.count, job.y = views + 2 * job.count;
  job.rank = call.views[2 * job.count].rank - 1;
  job.bad_table = -1;
  const int64_t cols = job.y->dims[job.rank];
  bool ok = cols <= 1 || job.y->strides[job.rank] == 1;
  for (int32_t t = 0; t < job.count; ++t) {
    ok = ok && job.tables[t].dims[1] == cols && (cols <= 1 || job.tables[t].strides[1] == 1);
    for (int32_t axis = 0; axis < job.rank; ++axis)
      ok = ok && job.ids[t].dims[axis] == job.y->dims[axis];
  }
  if (!ok || !even_rows(job))
    return run.error.fail("The views of an embedding do not fit together.");
  if (job.rows == 0 || cols == 0) return true;
  job.chunk = task_rows(run, job.rows, cols, kIdBlock);
  if (!run.parallel(ceil_div(job.rows, job.chunk), embedding_task, &job)) return false;
  if (job.bad_table < 0) return true;
  return run.error.fail("An embedding's id is %lld, but its table has %lld rows.",
                        static_cast<long long>(job.bad),
                        static_cast<long long>(job.tables[job.bad_table].dims[0]));
}

}  // namespace tracea
