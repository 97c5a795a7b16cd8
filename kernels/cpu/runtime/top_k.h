// The host loop of TopK: the largest or smallest elements of each row, and where they are.
#pragma once
#include "runtime/check.h"
#include "runtime/run.h"

namespace tracea {

struct TopKJob {
  tracea_top_k_fn choose;
  tracea_top_k_tile whole;
  int64_t chunk;  // rows of a task
};

inline void top_k_task(void* usr, size_t index) {
  const TopKJob& job = *static_cast<const TopKJob*>(usr);
  const int64_t first = static_cast<int64_t>(index) * job.chunk;
  tracea_top_k_tile tile = job.whole;
  tile.rows = min(job.chunk, tile.rows - first);
  tile.x += first * tile.x_stride;
  tile.y += first * tile.k, tile.place += first * tile.k;
  job.choose(&tile);
}

inline bool run_top_k(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1], &place = views[2];
  const int64_t rows = x.dims[0], cols = x.dims[1], k = y.dims[1];
  const auto dense = [&](const TensorView& box) {
    return box.is(rows, k) && (k <= 1 || box.strides[1] == 1) &&
           (rows <= 1 || box.strides[0] == k);
  };
  if (!dense(y) || !dense(place) || (cols > 1 && x.strides[1] != 1))
    return run.error.fail("The views of a TopK do not fit together.");
  if (rows == 0) return true;
  if (k < 1 || k > cols)
    return run.error.fail("A TopK chooses %lld of %lld elements.", static_cast<long long>(k),
                          static_cast<long long>(cols));
  const int32_t smallest = static_cast<int32_t>(call.ints[top_k_call::kSmallest]);
  TopKJob job = {};
  job.choose = run.host.isa->top_k;
  job.whole = {rows,    cols, k, x.f32(), x.strides[0], y.f32(),
               reinterpret_cast<int64_t*>(place.data), smallest};
  job.chunk = max(kGrain / cols, 1);
  return run.parallel(ceil_div(rows, job.chunk), top_k_task, &job);
}

}  // namespace tracea
