// The host loop of bytes_equal: whether tensors hold the bytes of their references.
//
// Tensors of any type, all of them dense.  Their bytes, one tensor after another, are cut into
// parts of one size; a difference that was found stops whoever has not begun its part.
#pragma once
#include "runtime/check.h"
#include "runtime/run.h"

namespace tracea {

constexpr int64_t kComparedBytes = 256 * 1024;  // worth waking a thread up for

struct BytesEqualJob {
  const TensorView* views;  // tensors, then their references
  int64_t ends[kMaxCompared];  // of each tensor in the bytes of all
  int32_t count;
  int64_t chunk;
  bool differ;
};

inline void bytes_equal_task(void* usr, size_t task) {
  BytesEqualJob& job = *static_cast<BytesEqualJob*>(usr);
  const int64_t begin = static_cast<int64_t>(task) * job.chunk;
  int64_t start = 0;  // of a tensor in the bytes of all
  for (int32_t i = 0; i < job.count; start = job.ends[i++]) {
    const int64_t low = max(begin, start) - start;
    const int64_t high = min(begin + job.chunk, job.ends[i]) - start;
    if (low >= high) continue;
    if (__atomic_load_n(&job.differ, __ATOMIC_RELAXED)) return;
    const char *x = job.views[i].data + low, *reference = job.views[job.count + i].data + low;
    if (memcmp(x, reference, static_cast<size_t>(high - low)))
      return __atomic_store_n(&job.differ, true, __ATOMIC_RELAXED);
  }
}

// A reference has the element type of its tensor.
inline bool check_bytes_equal(Signature& call) {
  const int32_t count = static_cast<int32_t>(call.integer(bytes_equal_call::kCount));
  bool ok = true;
  for (int32_t i = 0; i < count; ++i) ok = ok && call.type(i) == call.type(count + i);
  return ok || call.fail("a reference of another element type");
}

inline bool run_bytes_equal(Run& run, const Call& call, const TensorView* views) {
  const int32_t count = static_cast<int32_t>(call.ints[bytes_equal_call::kCount]);
  const TensorView& y = views[2 * count];
  BytesEqualJob job = {};
  job.views = views, job.count = count;
  int64_t bytes = 0;
  for (int32_t i = 0; i < count; ++i) {
    const TensorView &x = views[i], &reference = views[count + i];
    if (x.dims[0] != reference.dims[0] ||
        (x.dims[0] > 1 && (x.strides[0] != 1 || reference.strides[0] != 1)))
      return misfit(run, "comparison");
    job.ends[i] = bytes += x.dims[0] * element_size(call.views[i].type);
  }
  if (!y.is(1)) return misfit(run, "comparison");
  if (call.ints[bytes_equal_call::kFurther] && !*y.data) return true;
  job.chunk = run.worth(kComparedBytes);
  const bool ran = run.parallel(ceil_div(bytes, job.chunk), bytes_equal_task, &job);
  *y.data = !job.differ;
  return ran;
}

}  // namespace tracea
