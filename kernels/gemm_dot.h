// Products of few rows by a matrix stored [N,K]: vectors run along k, lanes are added at the end.
// Each output is summed in one order whatever the tile, so results do not depend on it.
enum { DOT_COLUMNS = 4 };

// Columns [n, n + NR) of C for all MR rows; the next rows of B are requested meanwhile.
template <int MR, int NR>
INLINE void dot(const tracea_gemm_dot_tile* t, int64_t n) {
  vf c[MR][NR];
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NR; j++) c[i][j] = set1(0.0f);
  const float* b = t->b + n * t->ldb;
  const int64_t lda = t->lda, ldb = t->ldb, ahead = DOT_COLUMNS * ldb;
  int64_t k = 0;
  for (; k + W <= t->k; k += W) {
    vf x[MR];
    UNROLL for (int i = 0; i < MR; i++) x[i] = load(t->a + i * lda + k);
    UNROLL for (int j = 0; j < NR; j++) {
      const float* row = b + j * ldb + k;
      if (W > 1) __builtin_prefetch(row + ahead, 0, 2);
      const vf y = load(row);
      UNROLL for (int i = 0; i < MR; i++) c[i][j] = fma(x[i], y, c[i][j]);
    }
  }
  if (k < t->k) {
    const vm rest = first(t->k - k);
    UNROLL for (int j = 0; j < NR; j++) {
      const vf y = load(b + j * ldb + k, rest);
      UNROLL for (int i = 0; i < MR; i++) c[i][j] = fma(load(t->a + i * lda + k, rest), y, c[i][j]);
    }
  }
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NR; j++) {
    const float sum = reduce_add(c[i][j]);
    t->c[i * t->ldc + n + j] = t->bias ? sum + t->bias[n + j] : sum;
  }
}

template <int MR>
void dot_rows(const tracea_gemm_dot_tile* t, int64_t n) {
  if (n + DOT_COLUMNS <= t->n) return dot<MR, DOT_COLUMNS>(t, n);
  for (; n < t->n; n++) dot<MR, 1>(t, n);
}
