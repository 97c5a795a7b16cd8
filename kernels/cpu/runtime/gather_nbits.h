// The host loop of gather_nbits: rows of a table whose codes lie in panels, as a product's do.  A row
// of the table is a column of the matrix: four neighbouring bytes in every 64.
#pragma once
#include "runtime/check.h"
#include "runtime/gemm_nbits.h"

namespace tracea {

constexpr int64_t kGatheredCodes = 16 * 1024;  // numbers that are a task

struct GatherNBitsJob {
  NBitsMatrix w;
  const TensorView *ids, *y;
  bool wide;  // 64-bit ids
  int64_t rows, columns, chunk, bad;
  bool outside;  // an id outside the table, kept in `bad`
};

inline void gather_codes(const NBitsMatrix& w, int64_t column, int64_t count, float* to) {
  const int64_t p = column / TRACEA_PANEL, lane = column % TRACEA_PANEL;
  const int32_t per_lane = 32 / w.bits, mask = (1 << w.bits) - 1;
  const uint8_t* from = w.codes + p * w.panel + 4 * lane;
  const uint8_t* zeros = w.zeros ? w.zeros + p * w.panel + lane : nullptr;
  const float* scales = w.scales + p * w.blocks * w.scale_rows * TRACEA_PANEL + lane;
  for (int64_t k = 0; k < count; from += 4 * TRACEA_PANEL) {
    const int64_t block = k / w.block, end = min(count, k + per_lane);
    const float* beside = scales + block * w.scale_rows * TRACEA_PANEL;
    float zero = static_cast<float>(w.zero);
    if (zeros) zero = static_cast<float>(zeros[block * TRACEA_PANEL]);
    else if (w.scale_rows > 1) zero = beside[TRACEA_PANEL];
    for (int32_t i = 0; k < end; ++i, ++k)
      to[k] = (static_cast<float>(from[i % 4] >> (w.bits * (i / 4)) & mask) - zero) * beside[0];
  }
}

inline void gather_nbits_task(void* usr, size_t index) {
  GatherNBitsJob& job = *static_cast<GatherNBitsJob*>(usr);
  const int64_t first = static_cast<int64_t>(index) * job.chunk, step = job.ids->strides[0];
  for (int64_t r = first; r < min(job.rows, first + job.chunk); ++r) {
    int64_t id = job.wide ? reinterpret_cast<const int64_t*>(job.ids->data)[r * step]
                          : reinterpret_cast<const int32_t*>(job.ids->data)[r * step];
    if (id < 0) id += job.columns;
    if (id < 0 || id >= job.columns) {
      __atomic_store_n(&job.bad, id, __ATOMIC_RELAXED);
      __atomic_store_n(&job.outside, true, __ATOMIC_RELAXED);
      return;
    }
    gather_codes(job.w, id, job.y->dims[1], job.y->f32() + r * job.y->strides[0]);
  }
}

inline bool run_gather_nbits(Run& run, const Call& call, const TensorView* views) {
  const TensorView &ids = views[2], &y = views[3];
  GatherNBitsJob job = {};
  job.ids = &ids, job.y = &y, job.rows = ids.dims[0];
  job.wide = call.views[2].type == ORT_I64;
  job.columns = call.ints[gather_nbits_call::kColumns];
  const bool fits = nbits_matrix(views[0], views[1], job.columns, y.dims[1],
                                 call.ints[gather_nbits_call::kBits], call.ints[gather_nbits_call::kBlock],
                                 call.ints[gather_nbits_call::kZeros], job.w);
  if (!fits || y.dims[0] != job.rows || (y.dims[1] > 1 && y.strides[1] != 1))
    return run.error.fail("The views of a gather_nbits do not fit together.");
  job.chunk = max(1, kGatheredCodes / max(y.dims[1], 1));
  if (!run.parallel(ceil_div(job.rows, job.chunk), gather_nbits_task, &job)) return false;
  return !job.outside || run.error.fail("The id %lld is outside a table of %lld rows.",
                                        static_cast<long long>(job.bad), static_cast<long long>(job.columns));
}

}  // namespace tracea
