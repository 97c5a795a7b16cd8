// The inner product of all dense kernels.
enum { PANEL = TRACEA_PANEL, P = PANEL / W };

// Hides a value's origin, so that gcc keeps it in a register instead of recomputing it.
template <class T>
INLINE T opaque(T x) {
  __asm__("" : "+r"(x));
  return x;
}

// Pins an accumulator to its register; otherwise gcc moves some of them and spills others.
template <class T>
INLINE T keep_in_register(T x) {
  //% if vectors_of | default(isa) == "neon"
  __asm__("" : "+w"(x));
  //% elif isa != "scalar"
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

//% if "vnni2" in needs
// dot_vnni2 with the pair at `a` broadcast to all lanes.
INLINE vf dot_vnni2_at(const float* a, vf b, vf c) {
  //% if isa == "avx512bf16"
  // gcc would load the pair by an instruction of its own, which takes 1.4 cycles instead of 1.
  __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
  return c;
  //% else
  return dot_vnni2(set1(*a), b, c);
  //% endif
}

// step() on lanes of two bf16: two steps of k at once.
template <int MR, int NV>
INLINE void step_vnni2(vf (&c)[MR][NV * P], const float* a, int64_t lda, const vf (&b)[NV * P]) {
  UNROLL for (int i = 0; i < MR; i++) {
    const vf x = set1(a[i * lda]);
    UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = dot_vnni2(x, b[j], c[i][j]);
  }
}

//% endif
// Row r of B: vector j of panel p lies at b + p * panel + j * W.
template <int NV>
INLINE void load_row(vf (&v)[NV * P], const float* b, int64_t panel) {
  UNROLL for (int j = 0; j < NV * P; j++) v[j] = load(b + j / P * panel + j % P * W);
}
