// Products of few rows by a matrix stored [N,K]: vectors run along k, lanes are added at the end.
// Each output is summed in one order whatever the tile, so results do not depend on it.
enum { STREAMS = 4, AHEAD = 256 };

// Columns n, n + gap … of C for all MR rows.  Each of the NR streams goes through neighbouring rows
// of B in turn: long runs of memory, which is what hardware prefetches.
template <int MR, int NR>
INLINE void dot(const tracea_gemm_dot_tile* t, int64_t n, int64_t gap) {
  vf c[MR][NR];
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NR; j++) c[i][j] = set1(0.0f);
  const float* b = t->b + n * t->ldb;
  const int64_t lda = t->lda, stream = gap * t->ldb;
  int64_t k = 0;
  for (; k + W <= t->k; k += W) {
    vf x[MR];
    UNROLL for (int i = 0; i < MR; i++) x[i] = load(t->a + i * lda + k);
    UNROLL for (int j = 0; j < NR; j++) {
      const float* row = b + j * stream + k;
      if (W > 1) __builtin_prefetch(row + AHEAD, 0, 2);
      const vf y = load(row);
      UNROLL for (int i = 0; i < MR; i++) c[i][j] = fma(x[i], y, c[i][j]);
    }
  }
  if (k < t->k) {
    const vm rest = first(t->k - k);
    UNROLL for (int j = 0; j < NR; j++) {
      const vf y = load(b + j * stream + k, rest);
      UNROLL for (int i = 0; i < MR; i++) c[i][j] = fma(load(t->a + i * lda + k, rest), y, c[i][j]);
    }
  }
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NR; j++) {
    const float sum = reduce_add(c[i][j]);
    const int64_t column = n + j * gap;
    t->c[i * t->ldc + column] = t->bias ? sum + t->bias[column] : sum;
  }
}

// Column n of every stream; with no gap the one column n.
template <int MR>
void dot_rows(const tracea_gemm_dot_tile* t, int64_t n, int64_t gap) {
  return gap ? dot<MR, STREAMS>(t, n, gap) : dot<MR, 1>(t, n, 0);
}
