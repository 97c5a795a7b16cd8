// The attention driver: a task is some query rows of one (batch, head).
#pragma once
#include "runtime_check.h"
#include "runtime_slots.h"

namespace tracea {

constexpr int64_t kQueryChunk = 48;  // fewer queries per task would pack the keys too often

struct AttentionJob {
  tracea_attention_fn attention;
  const Box *q, *k, *v, *mask, *y;
  int32_t mask_kind, zero_rows;
  int64_t mask_size;  // bytes per element
  float scale;
  int64_t heads, shared, chunks;  // query heads; query heads per key head; tasks per head
  Slots slots;
};

inline void attention_task(void* usr, size_t index) {
  AttentionJob& job = *static_cast<AttentionJob*>(usr);
  const int64_t task = static_cast<int64_t>(index), chunk = task % job.chunks;
  const int64_t h = task / job.chunks % job.heads, b = task / job.chunks / job.heads;
  const int64_t queries = job.q->dims[2];
  const int64_t first = queries * chunk / job.chunks, last = queries * (chunk + 1) / job.chunks;
  const auto at = [&](const Box& box, int64_t head, int64_t row) {
    return b * box.strides[0] + head * box.strides[1] + row * box.strides[2];
  };
  const int slot = claim_slot(job.slots);
  tracea_attention_tile tile = {};
  tile.queries = last - first;
  tile.keys = job.k->dims[2];
  tile.head = job.q->dims[3];
  tile.head_v = job.v->dims[3];
  tile.q = job.q->f32() + at(*job.q, h, first), tile.q_stride = job.q->strides[2];
  tile.k = job.k->f32() + at(*job.k, h / job.shared, 0), tile.k_stride = job.k->strides[2];
  tile.v = job.v->f32() + at(*job.v, h / job.shared, 0), tile.v_stride = job.v->strides[2];
  if (job.mask) {
    tile.mask = job.mask->data + at(*job.mask, h, first) * job.mask_size;
    tile.mask_row = job.mask->strides[2];
    tile.mask_col = job.mask->strides[3];
    tile.mask_kind = job.mask_kind;
  }
  tile.zero_rows = job.zero_rows;
  tile.scale = job.scale;
  tile.y = job.y->f32() + at(*job.y, h, first), tile.y_stride = job.y->strides[2];
  tile.scratch = memory_of(job.slots, slot);
  job.attention(&tile);
  release_slot(job.slots, slot);
}

inline bool check_attention(Signature& call) {
  if (!call.no_chain() || !call.counts(2, 1, 5) || !call.parameter(0, 0, 2) || !call.parameter(1, 0, 1)) return false;
  const int64_t kind = call.integer(0);
  const bool ok = call.reads(0, 4) && call.reads(1, 4) && call.reads(2, 4) && call.writes(4, 4);
  if (!ok) return false;
  if (kind == 0) return call.absent(3);
  return call.reads(3, 4, kind == 1 ? ORT_F32 : ORT_BOOL);
}

inline bool attention_shapes(const Box* views, bool masked) {
  const Box &q = views[0], &k = views[1], &v = views[2], &mask = views[3], &y = views[4];
  const int64_t batch = q.dims[0], heads = q.dims[1], queries = q.dims[2], head = q.dims[3];
  const int64_t shared = k.dims[1], keys = k.dims[2], head_v = v.dims[3];
  const auto is = [](const Box& box, int64_t d0, int64_t d1, int64_t d2, int64_t d3) {
    return box.is(d0, d1) && box.dims[2] == d2 && box.dims[3] == d3;
  };
  const auto unit = [](const Box& box) { return box.dims[3] <= 1 || box.strides[3] == 1; };
  const auto real = [](const Box& box) { return box.dims[2] <= 1 || box.strides[2] != 0; };
  return is(k, batch, shared, keys, head) && is(v, batch, shared, keys, head_v) &&
         is(y, batch, heads, queries, head_v) && unit(q) && unit(k) && unit(v) && unit(y) &&
         real(k) && real(v) && head >= 1 && head <= 256 && head_v >= 1 && head_v <= 256 &&
         keys >= 1 && shared >= 1 && heads % shared == 0 &&
         (!masked || (is(mask, batch, heads, queries, keys) &&
                      (keys == 1 || mask.strides[3] == 0 || mask.strides[3] == 1)));
}

inline bool run_attention(Run& run, const Call& call, const Box* views) {
  const Host& host = run.host;
  const Box &q = views[0], &y = views[4];
  const bool masked = call.ints[0] != 0;
  if (q.dims[0] == 0 || q.dims[1] == 0 || q.dims[2] == 0 || y.dims[3] == 0) {
    const bool empty = y.dims[0] == 0 || y.dims[1] == 0 || y.dims[2] == 0 || y.dims[3] == 0;
    return empty || run.fault.fail("The views of an attention do not fit together.");
  }
  if (!attention_shapes(views, masked))
    return run.fault.fail("The views of an attention do not fit together.");
  AttentionJob job = {};
  job.attention = host.isa->attention;
  job.q = &views[0], job.k = &views[1], job.v = &views[2], job.y = &views[4];
  job.mask = masked ? &views[3] : nullptr;
  job.mask_kind = static_cast<int32_t>(call.ints[0]);
  job.zero_rows = static_cast<int32_t>(call.ints[1]);
  job.mask_size = job.mask_kind == 1 ? 4 : 1;
  job.scale = static_cast<float>(call.floats[0]);
  job.heads = q.dims[1];
  job.shared = job.heads / views[1].dims[1];
  const int64_t all = q.dims[0] * q.dims[1], wanted = most(8, host.processors);
  job.chunks = most(1, least(ceil_div(q.dims[2], kQueryChunk), wanted / all));
  const int64_t tasks = all * job.chunks;
  const int64_t bytes = host.isa->attention_scratch(views[1].dims[2], q.dims[3], views[2].dims[3]);
  Scratch scratch(run);
  return make_slots(run, scratch, tasks, bytes, &job.slots) &&
         run.parallel(tasks, attention_task, &job);
}

}  // namespace tracea
