// Sums of a tile of fp16 products: rows of A times 16 columns of B.  Two steps of k are a lane of 32
// bits in a row of A, and two rows of 16 numbers in B.
//% if isa == "scalar"
INLINE void store_half(uint16_t* p, vf v) {
  const __fp16 half = (__fp16)v;
  __builtin_memcpy(p, &half, sizeof half);
}
//% else
INLINE vf widen_low(vf v) { return vcvt_f32_f16(vget_low_f16((float16x8_t)v)); }
INLINE vf widen_high(vf v) {  // clang would take two instructions
  vf wide;
  __asm__("fcvtl2 %0.4s, %1.8h" : "=w"(wide) : "w"(v));
  return wide;
}
INLINE void store_half(uint16_t* p, vf v) { vst1_u16(p, (uint16x4_t)vcvt_f16_f32(v)); }
//% endif

enum { RUN = 64 };  // steps of k
//% if isa == "scalar"

enum { LANES = 1 };

template <int MR>
struct HalfSums {
  float c[MR][PANEL];

  INLINE_MEMBER explicit HalfSums(float*) {}
  INLINE_MEMBER void start(int i, int j, vf v) { c[i][j] = v; }
  INLINE_MEMBER void begin() {}
  template <class ROW>
  INLINE_MEMBER void add(const ROW& row, const float* b) { add_two(row, b); }
  template <class ROW>
  INLINE_MEMBER void add_two(const ROW& row, const float* b) {
    for (int i = 0; i < MR; i++) {
      __fp16 x[2], w[2 * PANEL];
      __builtin_memcpy(x, row(i), sizeof x);
      __builtin_memcpy(w, b, sizeof w);
      for (int k = 0; k < 2; k++) for (int j = 0; j < PANEL; j++)
        c[i][j] += (float)x[k] * (float)w[k * PANEL + j];
    }
  }
  INLINE_MEMBER void end() {}
  INLINE_MEMBER vf of(int i, int j) const { return c[i][j]; }
};
//% elif isa == "neonfp16"

// With arithmetic in fp16, sums are of RUN steps of k, and these are added up in float32.
enum { LANES = 4 };  // of A that are multiplied at once
typedef float16x8_t vh;

// The factor of all lanes is one lane of x, as in fma_lane; it must be in the first 16 registers.
template <int LANE>
INLINE vh fma_half(vf x, vf b, vh c) {
  __asm__("fmla %0.8h, %1.8h, %2.h[%c3]" : "+w"(c) : "w"(b), "x"(x), "i"(LANE));
  return c;
}

template <int MR>
struct HalfSums {
  vh half[MR][2];
  float* whole;

  // `memory` is for MR x 16 sums in float32, which no registers are left for; clang would try.
  INLINE_MEMBER explicit HalfSums(float* memory) : whole(opaque(memory)) {}
  INLINE_MEMBER void start(int i, int j, vf v) { store(whole + i * PANEL + j * W, v); }
  INLINE_MEMBER void begin() {
    UNROLL for (int i = 0; i < MR; i++) half[i][0] = half[i][1] = vh{};
  }
  template <int LANE>
  INLINE_MEMBER void one(const vf (&x)[MR], const float* b) {
    const vf low = load(b), high = load(b + W);
    UNROLL for (int i = 0; i < MR; i++) {
      half[i][0] = fma_half<LANE>(x[i], low, half[i][0]);
      half[i][1] = fma_half<LANE>(x[i], high, half[i][1]);
    }
  }
  template <class ROW>
  INLINE_MEMBER void add(const ROW& row, const float* b) {
    vf x[MR];
    UNROLL for (int i = 0; i < MR; i++) x[i] = load(row(i));
    one<0>(x, b), one<1>(x, b + 2 * W), one<2>(x, b + 4 * W), one<3>(x, b + 6 * W);
    one<4>(x, b + 8 * W), one<5>(x, b + 10 * W), one<6>(x, b + 12 * W), one<7>(x, b + 14 * W);
  }
  template <class ROW>
  INLINE_MEMBER void add_two(const ROW& row, const float* b) {
    vf x[MR];
    UNROLL for (int i = 0; i < MR; i++) x[i] = set1(*row(i));
    one<0>(x, b), one<1>(x, b + 2 * W);
  }
  INLINE_MEMBER void end() {
    UNROLL for (int i = 0; i < MR; i++) UNROLL for (int h = 0; h < 2; h++) {
      float* to = whole + i * PANEL + 2 * h * W;
      store(to, load(to) + widen_low((vf)half[i][h]));
      store(to + W, load(to + W) + widen_high((vf)half[i][h]));
    }
  }
  INLINE_MEMBER vf of(int i, int j) const { return load(whole + i * PANEL + j * W); }
};
//% else

enum { LANES = 2 };

template <int MR>
struct HalfSums {
  vf c[MR][P];

  INLINE_MEMBER explicit HalfSums(float*) {}
  INLINE_MEMBER void start(int i, int j, vf v) { c[i][j] = v; }
  INLINE_MEMBER void begin() {}
  template <int LANE>
  INLINE_MEMBER void one(const vf (&x)[MR], const float* b) {
    UNROLL for (int h = 0; h < 2; h++) {
      const vf both = load(b + h * W), low = widen_low(both), high = widen_high(both);
      UNROLL for (int i = 0; i < MR; i++) {
        c[i][2 * h] = fma_lane<LANE>(x[i], low, c[i][2 * h]);
        c[i][2 * h + 1] = fma_lane<LANE>(x[i], high, c[i][2 * h + 1]);
      }
    }
  }
  template <class ROW>
  INLINE_MEMBER void add(const ROW& row, const float* b) {
    vf x[MR];
    UNROLL for (int i = 0; i < MR; i++)
      x[i] = vcvt_f32_f16((float16x4_t)vld1_f32(row(i)));
    one<0>(x, b), one<1>(x, b + 2 * W), one<2>(x, b + 4 * W), one<3>(x, b + 6 * W);
  }
  template <class ROW>
  INLINE_MEMBER void add_two(const ROW& row, const float* b) {
    vf x[MR];
    UNROLL for (int i = 0; i < MR; i++) x[i] = widen_low(set1(*row(i)));
    one<0>(x, b), one<1>(x, b + 2 * W);
  }
  INLINE_MEMBER void end() {}
  INLINE_MEMBER vf of(int i, int j) const { return c[i][j]; }
};
//% endif
