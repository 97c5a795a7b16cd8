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

// Taps of a window along one axis that lie inside x, and where the first tap would lie.
struct TapRange {
  int64_t origin, first, end;
};
inline TapRange taps_inside(const PoolNhwcJob& job, int axis, int64_t place) {
  const int64_t origin = place * job.strides[axis] - job.before[axis], step = job.dilations[axis];
  const int64_t size = job.x->dims[1 + axis], taps = job.kernel[axis];
  if (origin >= 0 && origin + (taps - 1) * step < size) return {origin, 0, taps};
  const int64_t first = origin < 0 ? ceil_div(-origin, step) : 0;
  const int64_t end = origin < size ? (size - 1 - origin) / step + 1 : 0;
  return {origin, first, min(end, taps)};
}

// The taps of a window that lie inside x.
struct PooledWindow {
  const uint8_t* first;  // channel 0
  int64_t down, along;   // taps
  int64_t line, pixel;   // bytes from one to the next
};

// The largest of 16 * N channels, bytes as unsigned after inverting `flip`; the smallest byte if there
// is no tap.
template <int N>
inline void pool_channels(const PooledWindow& window, int64_t channel, uint8_t flip, uint8_t* to) {
  const Bytes16 bits = Bytes16{} + flip;
  Bytes16 largest[N] = {};
  const uint8_t* line = window.first + channel;
  for (int64_t t = 0; t < window.down; ++t, line += window.line) {
    const uint8_t* tap = line;
    for (int64_t s = 0; s < window.along; ++s, tap += window.pixel)
      _Pragma("GCC unroll 4") for (int i = 0; i < N; ++i) {  // which stay in registers
        Bytes16 seen;
        memcpy(&seen, tap + 16 * i, sizeof seen);
        seen ^= bits;
        largest[i] = largest[i] > seen ? largest[i] : seen;
      }
  }
  _Pragma("GCC unroll 4") for (int i = 0; i < N; ++i) {
    largest[i] ^= bits;
    memcpy(to + channel + 16 * i, &largest[i], sizeof largest[i]);
  }
}

inline void pool_channel(const PooledWindow& window, int64_t channel, uint8_t flip, uint8_t* to) {
  uint8_t largest = 0;
  for (int64_t t = 0; t < window.down; ++t)
    for (int64_t s = 0; s < window.along; ++s) {
      const uint8_t seen =
          static_cast<uint8_t>(window.first[channel + t * window.line + s * window.pixel] ^ flip);
      largest = seen > largest ? seen : largest;
    }
  to[channel] = static_cast<uint8_t>(largest ^ flip);
}

// A line of results.
inline void pool_line(const PoolNhwcJob& job, int64_t image, int64_t row) {
  const TensorView &x = *job.x, &y = *job.y;
  const uint8_t* from = reinterpret_cast<const uint8_t*>(x.data) + image * x.strides[0];
  uint8_t* to = reinterpret_cast<uint8_t*>(y.data) + image * y.strides[0] + row * y.strides[1];
  const TapRange down = taps_inside(job, 0, row);
  const int64_t channels = x.dims[3], top = down.origin + down.first * job.dilations[0];
  const uint8_t flip = static_cast<uint8_t>(job.flip);
  PooledWindow window = {nullptr, max(down.end - down.first, 0), 0, job.dilations[0] * x.strides[1],
                         job.dilations[1] * x.strides[2]};
  for (int64_t col = 0; col < y.dims[2]; ++col, to += y.strides[2]) {
    const TapRange along = taps_inside(job, 1, col);
    const int64_t left = along.origin + along.first * job.dilations[1];
    window.first = from + top * x.strides[1] + left * x.strides[2];
    window.along = max(along.end - along.first, 0);
    int64_t channel = 0;
    for (; channel + 64 <= channels; channel += 64) pool_channels<4>(window, channel, flip, to);
    for (; channel + 16 <= channels; channel += 16) pool_channels<1>(window, channel, flip, to);
    for (; channel < channels; ++channel) pool_channel(window, channel, flip, to);
  }
}

inline void pool_nhwc_task(void* usr, size_t index) {
  const PoolNhwcJob& job = *static_cast<const PoolNhwcJob*>(usr);
  const int64_t rows = job.y->dims[1], first = static_cast<int64_t>(index) * job.lines;
  for (int64_t line = first; line < min(first + job.lines, job.y->dims[0] * rows); ++line)
    pool_line(job, line / rows, line % rows);
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
