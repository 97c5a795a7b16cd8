// Maxima of bytes over windows, channels last: a task makes some lines of the result.
#pragma once
#include "runtime/check.h"
#include "runtime/run.h"

namespace tracea {

constexpr int64_t kPoolBytes = 64 * 1024;  // compared by one task, about

struct PoolNhwcJob {
  const TensorView *x, *y;
  int64_t kernel[2], strides[2], dilations[2], before[2];
  int64_t lines;  // of one task
  int32_t flip;   // bits to invert: signed bytes become unsigned ones
};

typedef uint8_t Bytes16 __attribute__((vector_size(16)));

// y = max(y, x), bytes as unsigned after inverting `flip`.
inline void take_larger(uint8_t* y, const uint8_t* x, int64_t count, uint8_t flip) {
  int64_t i = 0;
  const Bytes16 bits = Bytes16{} + flip;
  for (; i + 16 <= count; i += 16) {
    Bytes16 a, b;
    memcpy(&a, y + i, 16), memcpy(&b, x + i, 16);
    a ^= bits, b ^= bits;
    a = (a > b ? a : b) ^ bits;
    memcpy(y + i, &a, 16);
  }
  for (; i < count; ++i) {
    const uint8_t a = static_cast<uint8_t>(y[i] ^ flip), b = static_cast<uint8_t>(x[i] ^ flip);
    y[i] = static_cast<uint8_t>((a > b ? a : b) ^ flip);
  }
}

// Taps of a window along one axis that lie inside x, and where the first tap would lie.
struct TapRange {
  int64_t origin, first, end;
};
inline TapRange taps_inside(const PoolNhwcJob& job, int axis, int64_t place) {
  const int64_t origin = place * job.strides[axis] - job.before[axis], step = job.dilations[axis];
  const int64_t size = job.x->dims[1 + axis];
  const int64_t first = origin < 0 ? ceil_div(-origin, step) : 0;
  const int64_t end = origin < size ? (size - 1 - origin) / step + 1 : 0;
  return {origin, first, min(end, job.kernel[axis])};
}

inline void pool_window(const PoolNhwcJob& job, int64_t image, int64_t row, int64_t col) {
  const TensorView &x = *job.x, &y = *job.y;
  uint8_t* to = reinterpret_cast<uint8_t*>(y.data) + image * y.strides[0] + row * y.strides[1] +
                col * y.strides[2];
  const uint8_t* from = reinterpret_cast<const uint8_t*>(x.data) + image * x.strides[0];
  const TapRange down = taps_inside(job, 0, row), along = taps_inside(job, 1, col);
  const int64_t channels = x.dims[3];
  bool first = true;
  for (int64_t t = down.first; t < down.end; ++t)
    for (int64_t s = along.first; s < along.end; ++s) {
      const uint8_t* seen = from + (down.origin + t * job.dilations[0]) * x.strides[1] +
                            (along.origin + s * job.dilations[1]) * x.strides[2];
      if (first) memcpy(to, seen, static_cast<size_t>(channels));
      else take_larger(to, seen, channels, static_cast<uint8_t>(job.flip));
      first = false;
    }
  if (first) memset(to, job.flip, static_cast<size_t>(channels));  // no tap inside: the smallest
}

inline void pool_nhwc_task(void* usr, size_t index) {
  const PoolNhwcJob& job = *static_cast<const PoolNhwcJob*>(usr);
  const int64_t rows = job.y->dims[1], first = static_cast<int64_t>(index) * job.lines;
  for (int64_t line = first; line < min(first + job.lines, job.y->dims[0] * rows); ++line)
    for (int64_t col = 0; col < job.y->dims[2]; ++col)
      pool_window(job, line / rows, line % rows, col);
}

inline bool check_pool_nhwc(Signature& call) {
  return call.type(0) == call.type(1) || call.fail("results of another type");
}

inline bool run_pool_nhwc(Run& run, const Call& call, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1];
  PoolNhwcJob job = {};
  job.x = &x, job.y = &y;
  const int64_t* pads = call.ints + pool_nhwc_call::kPads;
  const bool ok = x.dims[0] == y.dims[0] && x.dims[3] == y.dims[3] &&
                  (x.dims[3] <= 1 || (x.strides[3] == 1 && y.strides[3] == 1));
  for (int axis = 0; axis < 2; ++axis) {
    job.kernel[axis] = call.ints[pool_nhwc_call::kKernel + axis];
    job.strides[axis] = call.ints[pool_nhwc_call::kStrides + axis];
    job.dilations[axis] = call.ints[pool_nhwc_call::kDilations + axis];
    job.before[axis] = pads[axis];
  }
  if (!ok) return misfit(run, "pool of bytes");
  const int64_t lines = y.dims[0] * y.dims[1], line = y.dims[2] * y.dims[3];
  if (lines == 0 || line == 0) return true;
  job.flip = call.views[0].type == ORT_I8 ? 0x80 : 0;
  job.lines = max(1, kPoolBytes / max(1, line * min(job.kernel[0] * job.kernel[1], kPoolBytes)));
  return run.parallel(ceil_div(lines, job.lines), pool_nhwc_task, &job);
}

}  // namespace tracea
