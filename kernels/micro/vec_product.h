// The inner product every matrix kernel is built from.
enum { PANEL = TRACEA_PANEL, P = PANEL / W };

// Hides a value's origin, so that gcc keeps it in a register instead of what it is made of.
template <class T>
INLINE T opaque(T x) {
  __asm__("" : "+r"(x));
  return x;
}

// A sum stays in the register it is in; left alone, gcc moves some, and has none for others.
template <class T>
INLINE T settled(T x) {
  //% if isa != "scalar"
  __asm__("" : "+v"(x));
  //% endif
  return x;
}

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
