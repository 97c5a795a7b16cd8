// The drivers that round rows to bf16 and to 16-bit integers.
#pragma once
#include "runtime/rows.h"

namespace tracea {

struct RoundJob {
  tracea_round_fn round;
  tracea_round_tile whole;
  int64_t chunk;
};

inline void round_task(void* usr, size_t index) {
  const RoundJob& job = *static_cast<const RoundJob*>(usr);
  const int64_t row = static_cast<int64_t>(index) * job.chunk;
  tracea_round_tile tile = job.whole;
  tile.rows = least(job.chunk, tile.rows - row);
  tile.x += row * tile.x_stride;
  tile.y += row * tile.y_stride;
  job.round(&tile);
}

inline bool check_round(Signature& call) {
  return call.no_chain() && call.counts(0, 0, 2) && call.reads(0, 2) &&
         call.writes(1, 2, ORT_BF16);
}

inline bool run_round(Run& run, const Call&, const Box* views) {
  const Box &x = views[0], &y = views[1];
  const int64_t rows = x.dims[0], cols = x.dims[1];
  if (!y.is(rows, cols + cols % 2) || (cols > 1 && x.strides[1] != 1) ||
      (cols > 0 && y.strides[1] != 1))
    return run.fault.fail("The views of a rounding do not fit together.");
  if (rows == 0 || cols == 0) return true;
  RoundJob job = {run.host.isa->round_bf16,
                  {rows, cols, x.f32(), x.strides[0], reinterpret_cast<uint16_t*>(y.data),
                   y.strides[0]},
                  most(kGrain / cols, 1)};
  return run.parallel(ceil_div(rows, job.chunk), round_task, &job);
}

struct RoundInt16Job {
  tracea_round_int16_fn round;
  tracea_round_int16_tile whole;
  int64_t chunk;
};

inline void round_int16_task(void* usr, size_t index) {
  const RoundInt16Job& job = *static_cast<const RoundInt16Job*>(usr);
  const int64_t row = static_cast<int64_t>(index) * job.chunk;
  tracea_round_int16_tile tile = job.whole;
  tile.rows = least(job.chunk, tile.rows - row);
  tile.x += row * tile.x_stride;
  tile.y += row * tile.y_stride;
  tile.scale += row;
  job.round(&tile);
}

inline bool check_round_int16(Signature& call) {
  return call.no_chain() && call.counts(0, 0, 3) && call.reads(0, 2) &&
         call.writes(1, 2, ORT_I16) && call.writes(2, 1);
}

inline bool run_round_int16(Run& run, const Call&, const Box* views) {
  const Box &x = views[0], &y = views[1], &scale = views[2];
  const int64_t rows = x.dims[0], cols = x.dims[1];
  if (!y.is(rows, cols + cols % 2) || !scale.is(rows) || (cols > 1 && x.strides[1] != 1) ||
      (cols > 0 && y.strides[1] != 1) || (rows > 1 && scale.strides[0] != 1))
    return run.fault.fail("The views of a rounding do not fit together.");
  if (rows == 0 || cols == 0) return true;
  RoundInt16Job job = {run.host.isa->round_int16,
                       {rows, cols, x.f32(), x.strides[0], reinterpret_cast<int16_t*>(y.data),
                        y.strides[0], scale.f32()},
                       most(kGrain / cols, 1)};
  return run.parallel(ceil_div(rows, job.chunk), round_int16_task, &job);
}

}  // namespace tracea
