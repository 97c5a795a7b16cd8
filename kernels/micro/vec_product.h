// The inner product every matrix kernel is built from.
enum { PANEL = TRACEA_PANEL, P = PANEL / W };

// One step of k: C[MR x 16 NV] += a column of A times a row of B.  Each output is summed in the
// order of k whatever the tile, so results do not depend on it.
template <int MR, int NV>
INLINE void step(vf (&c)[MR][NV * P], const float* a, int64_t lda, const vf (&b)[NV * P]) {
  UNROLL for (int i = 0; i < MR; i++) {
    const vf x = set1(a[i * lda]);
    UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = fma(x, b[j], c[i][j]);
  }
}

//% if "pairs" in needs
// The same where a lane holds two bf16: two steps at once.
template <int MR, int NV>
INLINE void step_pairs(vf (&c)[MR][NV * P], const float* a, int64_t lda, const vf (&b)[NV * P]) {
  UNROLL for (int i = 0; i < MR; i++) {
    const vf x = set1(a[i * lda]);
    UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = dot_pairs(x, b[j], c[i][j]);
  }
}

//% endif
// Row r of B: vector j of panel p lies at b + p * panel + j * W.
template <int NV>
INLINE void load_row(vf (&v)[NV * P], const float* b, int64_t panel) {
  UNROLL for (int j = 0; j < NV * P; j++) v[j] = load(b + j / P * panel + j % P * W);
}
