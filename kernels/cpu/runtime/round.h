// Host loops that round rows to bf16, bf16x2 and integers.
#pragma once
#include "runtime/rows.h"

namespace tracea {

template <class Tile>
struct RoundJob {
  void (*round)(const Tile*);
  Tile whole;
  int64_t chunk;
};

inline void to_row(tracea_round_tile&, int64_t) {}
inline void to_row(tracea_round_int16_tile& tile, int64_t row) { tile.scale += row; }
inline void to_row(tracea_round_int8_tile& tile, int64_t row) { tile.scale += row; }

template <class Tile>
inline void round_task(void* usr, size_t index) {
  const RoundJob<Tile>& job = *static_cast<const RoundJob<Tile>*>(usr);
  const int64_t row = static_cast<int64_t>(index) * job.chunk;
  Tile tile = job.whole;
  tile.rows = min(job.chunk, tile.rows - row);
  tile.x += row * tile.x_stride;
  tile.y += row * tile.y_stride;
  to_row(tile, row);
  job.round(&tile);
}

// Whether the views of rows rounded to vnni2 are those that the kernels accept.
inline bool round_fits(const TensorView& x, const TensorView& y) {
  const int64_t rows = x.dims[0], cols = x.dims[1];
  return y.is(rows, cols + cols % 2) && (cols <= 1 || x.strides[1] == 1) &&
         (cols <= 0 || y.strides[1] == 1);
}

template <class Tile>
inline bool round_rows(Run& run, void (*round)(const Tile*), const Tile& whole) {
  if (whole.rows == 0 || whole.cols == 0) return true;
  RoundJob<Tile> job = {round, whole, task_rows(run, whole.rows, whole.cols, 1)};
  return run.parallel(ceil_div(whole.rows, job.chunk), round_task<Tile>, &job);
}

// Rounds rows to bf16 or fp16.
inline bool run_round_half(Run& run, void (*round)(const tracea_round_tile*), const TensorView* views) {
  const TensorView &x = views[0], &y = views[1];
  if (!round_fits(x, y)) return run.error.fail("The views of a rounding do not fit together.");
  return round_rows<tracea_round_tile>(
      run, round,
      {x.dims[0], x.dims[1], x.f32(), x.strides[0], reinterpret_cast<uint16_t*>(y.data),
       y.strides[0]});
}

// Rows of y alternate hi and lo terms.
inline bool run_round_bf16x2(Run& run, const Call&, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1];
  const int64_t rows = x.dims[0], cols = x.dims[1];
  const int64_t turns = ceil_div(cols, static_cast<int64_t>(TRACEA_SPLIT));
  if (!y.is(rows, 2 * TRACEA_SPLIT * turns) || (cols > 1 && x.strides[1] != 1) ||
      (cols > 0 && y.strides[1] != 1))
    return run.error.fail("The views of a rounding do not fit together.");
  return round_rows<tracea_round_tile>(
      run, run.host.isa->round_bf16x2,
      {rows, cols, x.f32(), x.strides[0], reinterpret_cast<uint16_t*>(y.data), y.strides[0]});
}

inline bool run_round_int16(Run& run, const Call&, const TensorView* views) {
  const TensorView &x = views[0], &y = views[1], &scale = views[2];
  const int64_t rows = x.dims[0];
  if (!round_fits(x, y) || !scale.is(rows) || (rows > 1 && scale.strides[0] != 1))
    return run.error.fail("The views of a rounding do not fit together.");
  return round_rows<tracea_round_int16_tile>(
      run, run.host.isa->round_int16,
      {rows, x.dims[1], x.f32(), x.strides[0], reinterpret_cast<int16_t*>(y.data), y.strides[0],
       scale.f32()});
}

inline bool run_round_int8(Run& run, const Call&, const TensorView* views) {
  const TensorView &x = views[0], &factors = views[1], &y = views[2], &scale = views[3];
  const int64_t rows = x.dims[0], cols = x.dims[1];
  const bool dense = cols <= 1 || (x.strides[1] == 1 && y.strides[1] == 1);
  const bool scaled = !factors.data || (factors.is(cols) && (cols <= 1 || factors.strides[0] == 1));
  if (!dense || !scaled || !y.is(rows, cols) || !scale.is(rows) ||
      (rows > 1 && scale.strides[0] != 1))
    return run.error.fail("The views of a rounding do not fit together.");
  return round_rows<tracea_round_int8_tile>(
      run, run.host.isa->round_int8,
      {rows, cols, x.f32(), x.strides[0], factors.data ? factors.f32() : nullptr,
       reinterpret_cast<uint8_t*>(y.data), y.strides[0], scale.f32()});
}

inline bool run_round(Run& run, const Call& call, const TensorView* views) {
  if (call.opcode == kRoundInt16) return run_round_int16(run, call, views);
  if (call.opcode == kRoundInt8) return run_round_int8(run, call, views);
#if defined(__aarch64__)
  if (call.opcode == kRoundF16) return run_round_half(run, run.host.isa->round_f16, views);
#endif
  return call.opcode == kRoundBf16 ? run_round_half(run, run.host.isa->round_bf16, views)
                                   : run_round_bf16x2(run, call, views);
}

}  // namespace tracea
