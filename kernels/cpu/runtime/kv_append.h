// The host loop of append: new rows behind those of a cache, for each item at a place of its own.
#pragma once
#include "runtime/check.h"
#include "runtime/rows.h"
#include "runtime/run.h"

namespace tracea {

// Kernels of attention over a cache whose elements have `size` bytes; round: float32 to the type of
// the cache, null if that is float32.
struct CacheKernels {
  tracea_attention_fn attention;
  int64_t (*scratch)(int64_t, int64_t, int64_t);
  tracea_attention_ranges_fn ranges;
  tracea_round_fn round;
  int64_t size;
};

inline CacheKernels cache_kernels(const tracea_isa_table& isa, int32_t opcode) {
  switch (opcode) {
    case kAttentionF32ByF16: case kKvAppendF16:
      return {isa.attention_f32_by_f16, isa.attention_f32_by_f16_scratch,
              isa.attention_f32_by_f16_ranges, isa.round_f32_by_f16, 2};
    case kAttentionF32ByBf16: case kKvAppendBf16:
      return {isa.attention_f32_by_bf16, isa.attention_f32_by_bf16_scratch,
              isa.attention_f32_by_bf16_ranges, isa.round_f32_by_bf16, 2};
    case kAttentionF32ByI8: case kKvAppendI8:
      return {isa.attention_f32_by_i8, isa.attention_f32_by_i8_scratch,
              isa.attention_f32_by_i8_ranges, isa.round_f32_by_i8, 1};
    default:
      return {isa.attention, isa.attention_scratch, isa.attention_ranges, nullptr, 4};
  }
}

struct KvAppendJob {
  const TensorView *x, *past, *positions, *y;
  tracea_round_fn round;
  int64_t size;
  bool in_place;  // the cache is its own result: what it holds stays
  int64_t chunk, chunks;
};

inline int64_t position_of_item(const TensorView& positions, int64_t item) {
  return reinterpret_cast<const int64_t*>(positions.data)[item * positions.strides[0]];
}

// Positions say where each item's first new row goes: `rows` of them end within `keys`.
inline bool check_positions(Run& run, const TensorView& positions, int64_t rows, int64_t held, int64_t keys) {
  for (int64_t b = 0; b < positions.dims[0]; ++b) {
    const int64_t place = position_of_item(positions, b);
    if (place < 0 || place > held || rows > keys - place)
      return run.error.fail("A sequence of %lld rows begins at row %lld of a cache of %lld.",
                            static_cast<long long>(rows), static_cast<long long>(place),
                            static_cast<long long>(keys));
  }
  return true;
}

// Copies rows that lie so far apart, all in bytes; null: zeros.
inline void put_rows(const char* from, int64_t from_row, char* to, int64_t to_row, int64_t cols,
                     int64_t rows) {
  const bool dense = to_row == cols && (!from || from_row == cols);
  const int64_t steps = dense ? 1 : rows;
  const size_t bytes = static_cast<size_t>(dense ? rows * cols : cols);
  for (int64_t r = 0; r < steps; ++r)
    if (from) memcpy(to + r * to_row, from + r * from_row, bytes);
    else memset(to + r * to_row, 0, bytes);
}

inline void kv_append_task(void* usr, size_t index) {
  const KvAppendJob& job = *static_cast<const KvAppendJob*>(usr);
  const TensorView &x = *job.x, &past = *job.past, &y = *job.y;
  int64_t task = static_cast<int64_t>(index);
  const int64_t first = task % job.chunks * job.chunk;
  const int64_t last = min(y.dims[2], first + job.chunk);
  task /= job.chunks;
  const int64_t h = task % y.dims[1], b = task / y.dims[1];
  const int64_t place = position_of_item(*job.positions, b), end = place + x.dims[2];
  const auto row_of = [&](const TensorView& box, int64_t row, int64_t size) {
    return box.data + (b * box.strides[0] + h * box.strides[1] + row * box.strides[2]) * size;
  };
  // Rows [low, high) of the result are those of `box` from its first one on.
  const auto put = [&](const TensorView* box, int64_t low, int64_t high) {
    const int64_t begin = max(first, low), rows = min(last, high) - begin;
    if (rows <= 0) return;
    const int64_t step = box ? box->strides[2] : 0;
    char* to = row_of(y, begin, job.size);
    if (box == &x && job.round) {
      const auto* from = reinterpret_cast<const float*>(row_of(x, begin - low, sizeof(float)));
      const tracea_round_tile tile = {
          rows, y.dims[3], from, step, reinterpret_cast<uint16_t*>(to), y.strides[2]};
      return job.round(&tile);
    }
    const char* from = box ? row_of(*box, begin - low, job.size) : nullptr;
    put_rows(from, step * job.size, to, y.strides[2] * job.size, y.dims[3] * job.size, rows);
  };
  put(&x, place, end);
  if (job.in_place) return;
  put(past.data ? &past : nullptr, 0, place);
  put(nullptr, end, y.dims[2]);
}

inline bool run_kv_append(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &past = views[1], &positions = views[2], &y = views[3];
  const bool cached = call.views[1].kind != kNone;
  const auto like = [&](const TensorView& box) {
    return box.is(y.dims[0], y.dims[1]) && box.dims[3] == y.dims[3] &&
           (box.dims[3] <= 1 || box.strides[3] == 1);
  };
  if (!like(x) || !like(y) || (cached && !like(past)) || !positions.is(y.dims[0]))
    return run.error.fail("The views of an append do not fit together.");
  const int64_t held = cached ? min(past.dims[2], y.dims[2]) : 0;
  if (!check_positions(run, positions, x.dims[2], held, y.dims[2])) return false;
  const int64_t heads = y.dims[0] * y.dims[1];
  if (heads == 0 || y.dims[2] == 0 || y.dims[3] == 0) return true;
  KvAppendJob job = {};
  job.x = &x, job.past = &past, job.positions = &positions, job.y = &y;
  const CacheKernels kernels = cache_kernels(*run.host.isa, call.opcode);
  job.round = kernels.round, job.size = kernels.size;
  job.in_place = cached && past.data == y.data && past.dims[2] == y.dims[2];
  job.chunk = max(1, kGrain / y.dims[3]);
  job.chunks = ceil_div(y.dims[2], job.chunk);
  return run.parallel(heads * job.chunks, kv_append_task, &job);
}

}  // namespace tracea
