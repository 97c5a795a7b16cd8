// The host loop of take: elements picked along the last axis.
//
// Indices are often the same for every head: each block of them is checked and narrowed once, and
// then serves all rows it is for.
#pragma once
#include "runtime/check.h"
#include "runtime/rows.h"
#include "runtime/run.h"

namespace tracea {

constexpr int64_t kGathered = 1024;  // indices narrowed at once

struct GatherElementsJob {
  const TensorView *x, *index, *y;
  int32_t rank;
  bool wide;                    // 64-bit indices
  bool same[kMaxRank];          // axes along which indices are the same
  int64_t rows, alike;          // rows of indices; rows of x that each of them serves
  int64_t chunk, chunks;        // of the latter, for a task
  int64_t bad;
  bool outside;                 // an index outside x, kept in `bad`
};

// Where row `at` of the axes that have `same` lies in a box.
inline int64_t taken_row(const GatherElementsJob& job, const TensorView& box, bool same, int64_t at) {
  int64_t offset = 0;
  for (int32_t axis = job.rank - 1; axis-- > 0;) {
    if (job.same[axis] != same) continue;
    offset += at % job.y->dims[axis] * box.strides[axis];
    at /= job.y->dims[axis];
  }
  return offset;
}

// Indices of one row from `first` on, each in [0, size); false where one is not.
inline bool narrow_indices(GatherElementsJob& job, int64_t from, int64_t first, int64_t count, int64_t size,
                           int32_t* out) {
  const TensorView& index = *job.index;
  const int64_t step = index.strides[job.rank - 1];
  for (int64_t j = 0; j < count; ++j) {
    const int64_t at = from + (first + j) * step;
    int64_t i = job.wide ? reinterpret_cast<const int64_t*>(index.data)[at]
                         : reinterpret_cast<const int32_t*>(index.data)[at];
    if (i < 0) i += size;
    if (i < 0 || i >= size) {
      __atomic_store_n(&job.bad, i, __ATOMIC_RELAXED);
      __atomic_store_n(&job.outside, true, __ATOMIC_RELAXED);
      return false;
    }
    out[j] = static_cast<int32_t>(i);
  }
  return true;
}

inline void gather_elements_task(void* usr, size_t task) {
  GatherElementsJob& job = *static_cast<GatherElementsJob*>(usr);
  const TensorView &x = *job.x, &y = *job.y;
  const int32_t last = job.rank - 1;
  const int64_t row = static_cast<int64_t>(task) / job.chunks;
  const int64_t begin = static_cast<int64_t>(task) % job.chunks * job.chunk;
  const int64_t end = min(job.alike, begin + job.chunk);
  const int64_t of_index = taken_row(job, *job.index, false, row);
  const int64_t of_x = taken_row(job, x, false, row), of_y = taken_row(job, y, false, row);
  const int64_t step = x.strides[last], size = x.dims[last];
  int32_t block[kGathered];
  for (int64_t first = 0; first < y.dims[last]; first += kGathered) {
    const int64_t count = min(kGathered, y.dims[last] - first);
    if (!narrow_indices(job, of_index, first, count, size, block)) return;
    for (int64_t r = begin; r < end; ++r) {
      const float* from = x.f32() + of_x + taken_row(job, x, true, r);
      float* to = y.f32() + of_y + taken_row(job, y, true, r) + first;
      if (step == 1)
        for (int64_t j = 0; j < count; ++j) to[j] = from[block[j]];
      else
        for (int64_t j = 0; j < count; ++j) to[j] = from[block[j] * step];
    }
  }
}

inline bool check_gather_elements(Signature& call) {
  return call.type(gather_elements_call::kIndex) == call.integer(gather_elements_call::kIndexType) ||
         call.fail("indices of another type");
}

inline bool run_gather_elements(Run& run, const Call& call, const TensorView* views) {
  GatherElementsJob job = {};
  job.x = views, job.index = views + 1, job.y = views + 2;
  job.rank = call.views[2].rank;
  job.wide = call.ints[gather_elements_call::kIndexType] == ORT_I64;
  const int32_t last = job.rank - 1;
  bool fits = last >= 0 && job.index->dims[last] == job.y->dims[last];
  job.rows = job.alike = 1;
  for (int32_t axis = 0; fits && axis < last; ++axis) {
    const int64_t dim = job.y->dims[axis];
    fits = job.x->dims[axis] == dim && job.index->dims[axis] == dim;
    job.same[axis] = job.index->strides[axis] == 0;
    (job.same[axis] ? job.alike : job.rows) *= dim;
  }
  const int64_t count = fits ? job.y->dims[last] : 0;
  if (!fits || (count > 1 && job.y->strides[last] != 1) || job.x->dims[last] > INT32_MAX)
    return run.error.fail("The views of a take do not fit together.");
  if (job.rows == 0 || job.alike == 0 || count == 0) return true;
  job.chunk = min(job.alike, max(kGrain / count, 1));
  job.chunks = ceil_div(job.alike, job.chunk);
  if (!run.parallel(job.rows * job.chunks, gather_elements_task, &job)) return false;
  return !job.outside ||
         run.error.fail("An index of %lld lies outside the %lld elements it takes from.",
                        static_cast<long long>(job.bad),
                        static_cast<long long>(job.x->dims[last]));
}

}  // namespace tracea
