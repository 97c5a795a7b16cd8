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

//% if vectors_of | default(isa) == "neon"
template <int I>
struct Lane { enum { LANE = I }; };

// FMLA and its kin take a factor of all lanes from one lane.  To copy it to all (LD1R, DUP) would
// cost a slot of the units that multiply; as intrinsics clang does that, and moves sums about.
template <int LANE = 0, class X>
INLINE vf fma_lane(X x, vf b, vf c) {
  __asm__("fmla %0.4s, %1.4s, %2.s[%c3]" : "+w"(c) : "w"(b), "w"(x), "i"(LANE));
  return c;
}
INLINE float broadcast(const float* p) { return *p; }
INLINE vf fma(float x, vf b, vf c) { return fma_lane(x, b, c); }
//% if "vnni2" in needs and isa == "neonbf16"
template <int LANE = 0, class X>
INLINE vf dot_vnni2_lane(X x, vf b, vf c) {
  __asm__("bfdot %0.4s, %1.8h, %2.2h[%c3]" : "+w"(c) : "w"(b), "w"(x), "i"(LANE));
  return c;
}
INLINE vf dot_vnni2(float x, vf b, vf c) { return dot_vnni2_lane(x, b, c); }
//% endif

// Four steps of k: `x` has the factors of each row, which lie side by side, `b` the first row of B.
// No register is left for more than two vectors of B.
template <class STEP, int MR, int VECTORS, class C, class X>
INLINE void four_steps(C (&c)[MR][VECTORS], const X (&x)[MR], const float* b, int64_t b_row,
                       int64_t panel) {
  const auto one = [&](auto lane, const float* row) __attribute__((always_inline)) {
    UNROLL for (int j = 0; j < VECTORS; j += 2) {
      const vf low = load(row + j / P * panel + j % P * W);
      const vf high = load(row + j / P * panel + j % P * W + W);
      UNROLL for (int i = 0; i < MR; i++) {
        c[i][j] = STEP::add_lane(lane, x[i], low, c[i][j]);
        c[i][j + 1] = STEP::add_lane(lane, x[i], high, c[i][j + 1]);
      }
    }
  };
  one(Lane<0>(), b), one(Lane<1>(), b + b_row);
  one(Lane<2>(), b + 2 * b_row), one(Lane<3>(), b + 3 * b_row);
}

// Loads and multiplications that stay in the order they are written in.
template <int BYTES>
INLINE void load_in_order(vf& v, const float* p) {
  __asm__ volatile("ldr %q0, [%1, %c2]" : "=w"(v) : "r"(p), "i"(BYTES));
}
template <int LANE>
INLINE void fma_in_order(vf x, vf b, vf& c) {
  __asm__ volatile("fmla %0.4s, %1.4s, %2.s[%c3]" : "+w"(c) : "w"(b), "w"(x), "i"(LANE));
}

// A step of k for four rows.  `b` has the row of B; the next, at `row`, comes into `next` meanwhile.
// LAST: so do the next four factors of each row of A, those of row i from `factors(i)` on.
template <int LANE, bool LAST = false, class FACTORS>
INLINE void step_ahead(vf (&c)[4][4], vf (&x)[4], const vf (&b)[4], vf (&next)[4],
                       const float* row, const FACTORS& factors) {
  const auto one = [&](auto place) __attribute__((always_inline)) {
    constexpr int I = decltype(place)::LANE;
    load_in_order<4 * I * W>(next[I], row);
    fma_in_order<LANE>(x[I], b[0], c[I][0]), fma_in_order<LANE>(x[I], b[1], c[I][1]);
    fma_in_order<LANE>(x[I], b[2], c[I][2]), fma_in_order<LANE>(x[I], b[3], c[I][3]);
    if (LAST) load_in_order<0>(x[I], factors(I));
  };
  one(Lane<0>()), one(Lane<1>()), one(Lane<2>()), one(Lane<3>());
}

// Four steps of k for four rows, as cores want it that run instructions in order: a vector is loaded
// seven products and more before its use.  `b` has the row of B at `row`, and gets that at `after`.
template <class FACTORS>
INLINE void four_steps_ahead(vf (&c)[4][4], vf (&x)[4], vf (&b)[4], const float* row,
                             int64_t b_row, const float* after, const FACTORS& factors) {
  vf next[4];
  step_ahead<0>(c, x, b, next, row += b_row, factors);
  step_ahead<1>(c, x, next, b, row += b_row, factors);
  step_ahead<2>(c, x, b, next, row + b_row, factors);
  step_ahead<3, true>(c, x, next, b, after, factors);
}
//% else
INLINE vf broadcast(const float* p) { return set1(*p); }
//% endif

// One step of k: C[MR x 16 NV] += a column of A times a row of B.  Each output is summed in the
// order of k whatever the tile, so results do not depend on it.
template <int MR, int NV>
INLINE void step(vf (&c)[MR][NV * P], const float* a, int64_t lda, const vf (&b)[NV * P]) {
  UNROLL for (int i = 0; i < MR; i++) {
    const auto x = broadcast(a + i * lda);
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
    const auto x = ${"broadcast(a + i * lda)" if isa == "neonbf16" else "set1(a[i * lda])"};
    UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = dot_vnni2(x, b[j], c[i][j]);
  }
}

//% endif
// Row r of B: vector j of panel p lies at b + p * panel + j * W.
template <int NV>
INLINE void load_row(vf (&v)[NV * P], const float* b, int64_t panel) {
  UNROLL for (int j = 0; j < NV * P; j++) v[j] = load(b + j / P * panel + j % P * W);
}
