// Products of few rows by a matrix stored [N,K]: vectors run along k, lanes are added at the end.
// Each output is summed in one order whatever the tile, so results do not depend on it.
enum { STREAMS = 4, NEAR = 4096 };  // floats

// Columns n, n + gap … of C for MR rows from `row` on.  Each of the NR streams goes through
// neighbouring rows of B in alternation: long runs of memory, which is what hardware prefetches.
template <int MR, int NR>
INLINE void dot(const tracea_gemm_dot_tile* t, int64_t row, int64_t n, int64_t gap) {
  vf c[MR][NR];
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NR; j++) c[i][j] = set1(0.0f);
  constexpr int64_t ahead = MR > 2 ? 1024 : 256;  // floats: memory's latency, at this pace
  const float *a = t->a + row * t->lda, *b = t->b + n * t->ldb;
  float* to = t->c + row * t->ldc + n;
  const int64_t lda = t->lda, stream = gap * t->ldb;
  int64_t k = 0;
  for (; k + W <= t->k; k += W) {
    vf x[MR];
    UNROLL for (int i = 0; i < MR; i++) x[i] = load(a + i * lda + k);
    UNROLL for (int j = 0; j < NR; j++) {
      const float* from = b + j * stream + k;
      if (W > 1) __builtin_prefetch(from + ahead, 0, 2);
      const vf y = load(from);
      UNROLL for (int i = 0; i < MR; i++) c[i][j] = fma(x[i], y, c[i][j]);
    }
  }
  if (k < t->k) {
    const vm rest = first(t->k - k);
    UNROLL for (int j = 0; j < NR; j++) {
      const vf y = load(b + j * stream + k, rest);
      UNROLL for (int i = 0; i < MR; i++) c[i][j] = fma(load(a + i * lda + k, rest), y, c[i][j]);
    }
  }
  UNROLL for (int i = 0; i < MR; i++) {
    vf four[STREAMS];
    float sum[STREAMS];
    UNROLL for (int j = 0; j < STREAMS; j++) four[j] = j < NR ? c[i][j % NR] : set1(0.0f);
    hreduce(four, sum);
    UNROLL for (int j = 0; j < NR; j++)
      to[i * t->ldc + j * gap] = t->bias ? sum[j] + t->bias[n + j * gap] : sum[j];
  }
}

// Columns [first, last) of every stream; with no gap these columns alone.
template <int MR>
void dot_rows(const tracea_gemm_dot_tile* t, int64_t row, int64_t first, int64_t last,
              int64_t gap) {
  constexpr int NR = MR > STREAMS ? STREAMS / 2 : STREAMS;  // all sums stay in registers
  for (int64_t n = first; n < last; n++) {
    if (!gap) dot<MR, 1>(t, row, n, 0);
    else
      for (int j = 0; j < STREAMS; j += NR) dot<MR, NR>(t, row, n + j * gap, gap);
  }
}
