// Packing: a matrix of any strides into zero-padded panels of 16 columns, and transposition.
#pragma once
#include "runtime_run.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace tracea {

// to[c][r] = from[r][c]
inline void transpose(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows,
                      int64_t cols) {
  int64_t whole_rows = 0, whole_cols = 0;
#if defined(__SSE2__)
  whole_rows = rows & ~int64_t{3}, whole_cols = cols & ~int64_t{3};
  for (int64_t c = 0; c < whole_cols; c += 4)
    for (int64_t r = 0; r < whole_rows; r += 4) {
      __m128 row[4];
      for (int i = 0; i < 4; ++i) row[i] = _mm_loadu_ps(from + (r + i) * from_row + c);
      _MM_TRANSPOSE4_PS(row[0], row[1], row[2], row[3]);
      for (int i = 0; i < 4; ++i) _mm_storeu_ps(to + (c + i) * to_row + r, row[i]);
    }
#endif
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t r = c < whole_cols ? whole_rows : 0; r < rows; ++r)
      to[c * to_row + r] = from[r * from_row + c];
}

// Element (k, n) lies at from + k * row + n * column.
struct PackJob {
  const float* from;
  int64_t row, column, k, n;
  float* panels;
};

inline void pack_task(void* usr, size_t index) {
  const PackJob& job = *static_cast<const PackJob*>(usr);
  const int64_t n0 = static_cast<int64_t>(index) * TRACEA_PANEL;
  const int64_t width = least(TRACEA_PANEL, job.n - n0);
  float* to = job.panels + n0 * job.k;
  const float* from = job.from + n0 * job.column;
  if (width < TRACEA_PANEL)
    memset(to, 0, static_cast<size_t>(job.k) * TRACEA_PANEL * sizeof(float));
  if (job.row == 1) return transpose(from, job.column, to, TRACEA_PANEL, width, job.k);
  for (int64_t k = 0; k < job.k; ++k)
    for (int64_t j = 0; j < width; ++j)
      to[k * TRACEA_PANEL + j] = from[k * job.row + j * job.column];
}

// Packs into scratch; null when there is no memory, with the fault noted.
inline const float* pack(Run& run, Scratch& scratch, PackJob job) {
  const int64_t panels = ceil_div(job.n, TRACEA_PANEL);
  int64_t bytes;
  if (__builtin_mul_overflow(panels * TRACEA_PANEL * int64_t{4}, job.k, &bytes)) bytes = -1;
  job.panels = reinterpret_cast<float*>(scratch.take(bytes));
  if (!job.panels || !run.parallel(panels, pack_task, &job)) return nullptr;
  return job.panels;
}

}  // namespace tracea
