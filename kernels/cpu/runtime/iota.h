// The host loop of grid: numbers that count along axes, start + Σ step[axis] · index[axis].
#pragma once
#include "runtime/check.h"
#include "runtime/run.h"

namespace tracea {

struct IotaJob {
  const TensorView* y;
  const double* floats;  // where the numbers start, then a step for each axis
  int32_t last, type;
  int64_t lines, chunk;  // of the last axis
};

template <class T>
void iota_line(T* out, int64_t stride, int64_t count, double first, double step) {
  for (int64_t i = 0; i < count; ++i)
    out[i * stride] = static_cast<T>(first + static_cast<double>(i) * step);
}

inline void iota_task(void* usr, size_t task) {
  const IotaJob& job = *static_cast<const IotaJob*>(usr);
  const TensorView& y = *job.y;
  const int64_t begin = static_cast<int64_t>(task) * job.chunk;
  const double step = job.floats[iota_call::kSteps + job.last];
  for (int64_t line = begin; line < min(job.lines, begin + job.chunk); ++line) {
    double first = job.floats[iota_call::kStart];
    int64_t offset = 0;
    for (int64_t axis = job.last, at = line; axis-- > 0; at /= y.dims[axis]) {
      offset += at % y.dims[axis] * y.strides[axis];
      first += static_cast<double>(at % y.dims[axis]) * job.floats[iota_call::kSteps + axis];
    }
    const int64_t stride = y.strides[job.last], count = y.dims[job.last];
    if (job.type == ORT_I64)
      iota_line(reinterpret_cast<int64_t*>(y.data) + offset, stride, count, first, step);
    else if (job.type == ORT_I32)
      iota_line(reinterpret_cast<int32_t*>(y.data) + offset, stride, count, first, step);
    else
      iota_line(y.f32() + offset, stride, count, first, step);
  }
}

// A result of the type asked for, and a step for each axis.
inline bool check_iota(Signature& call) {
  const int32_t rank = call.rank(iota_call::kY);
  if (call.type(iota_call::kY) != call.integer(iota_call::kYType))
    return call.fail("a result of another type");
  return (rank > 0 && call.floats() == iota_call::kSteps + rank) ||
         call.fail("steps that are not one for each axis");
}

inline bool run_iota(Run& run, const Call& call, const TensorView* views) {
  IotaJob job = {views, call.floats, call.views[0].rank - 1, static_cast<int32_t>(call.ints[iota_call::kYType]),
                 1, 0};
  for (int32_t axis = 0; axis < job.last; ++axis) job.lines *= views->dims[axis];
  const int64_t line = views->dims[job.last];
  if (job.lines == 0 || line == 0) return true;
  job.chunk = max(run.worth(kGrain) / line, 1);
  return run.parallel(ceil_div(job.lines, job.chunk), iota_task, &job);
}

}  // namespace tracea
