// tracea_f32_chain_1dcdf53c7e4a91b9__avx512
// f32 chain for avx512, from chain.cpp.in
// Generated, do not edit.
// Elementwise chain over rows x cols.
#include "tracea_kernels.h"

#ifndef TRACEA_VISIBILITY
#define TRACEA_VISIBILITY "hidden"
#endif
#define TRACEA_API extern "C" __attribute__((visibility(TRACEA_VISIBILITY)))
#define INLINE static inline __attribute__((always_inline, unused))
#define INLINE_MEMBER inline __attribute__((always_inline))
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12 finds fault with the deliberately undefined operands in its own header.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
// Everything below is local to this file: no code built for one instruction set may be merged
// into another's.
namespace {
// Vectors of sixteen lanes: AVX-512 F, DQ, BW and VL.
#define UNROLL _Pragma("GCC unroll 16")
typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));  // for shifts that drop bits
typedef __mmask16 vm;
enum { W = 16 };
constexpr float EXP_LOW = -105.5f;  // exp rounds to 2^-152 here, which is 0

INLINE vf set1(float x) { return _mm512_set1_ps(x); }
INLINE vf load(const float* p) { return _mm512_loadu_ps(p); }
INLINE vf load(const float* p, vm m) { return _mm512_maskz_loadu_ps(m, p); }
INLINE void store(float* p, vf v) { _mm512_storeu_ps(p, v); }
INLINE void stream(float* p, vf v) { _mm512_stream_ps(p, v); }  // p is aligned
INLINE void store(float* p, vf v, vm m) { _mm512_mask_storeu_ps(p, m, v); }
INLINE vm first(int64_t n) {  // the lanes below n
  return (vm)(n <= 0 ? 0u : n >= W ? 0xffffu : (1u << n) - 1u);
}

INLINE vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf min(vf a, vf b) { return _mm512_min_ps(a, b); }  // b if either is NaN
INLINE vf max(vf a, vf b) { return _mm512_max_ps(a, b); }  // b if either is NaN
INLINE vf abs(vf a) { return _mm512_abs_ps(a); }
INLINE vf sqrt(vf a) { return _mm512_sqrt_ps(a); }
INLINE vm less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE vm is_nan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
INLINE vf select(vm m, vf a, vf b) { return _mm512_mask_mov_ps(b, m, a); }
INLINE float reduce_add(vf a) { return _mm512_reduce_add_ps(a); }
INLINE float reduce_max(vf a) { return _mm512_reduce_max_ps(a); }

INLINE vi bits(vf a) { return (vi)a; }
INLINE vf from_bits(vi i) { return (vf)i; }
INLINE vf to_float(vi i) { return _mm512_cvtepi32_ps((__m512i)i); }

// a * 2^n for whole n; gradual underflow.
INLINE vf scale(vf a, vf n) { return _mm512_scalef_ps(a, n); }
// Elementwise functions over any vector type.  Bounds are the largest found over dense grids of
// float32 arguments against float64; every function maps NaN to NaN.

// E: poly(x, c0, c1, ...) = c0 + x * (c1 + ...), fused where the instruction set can.
INLINE vf poly(vf, float c) { return set1(c); }
template <typename... Rest>
INLINE vf poly(vf x, float c, Rest... rest) {
  return fma(poly(x, rest...), x, set1(c));
}
// x Phi(x), Phi(x) = 1/2 + x P(x^2) / Q(x^2) up to 5.5437, where it rounds to 0 or 1:
// 2.4 ulp for x > 0, 7e-7 absolute for x < 0 (without fused multiply-add 2.8 and 9e-7);
// exactly 0 below -5.5437; NaN at -inf, as 0 * inf is.
INLINE vf v_gelu(vf x) {
  const vf z = max(set1(-5.5437f), min(set1(5.5437f), x));
  const vf t = z * z;
  const vf p = poly(t, 0.521693528f, 0.0459935926f, 0.00622725859f, 0.000239073415f,
                    8.49572552e-06f, 2.87702981e-08f);
  const vf q = poly(t, 1.30769229f, 0.333234727f, 0.0384608172f, 0.00256698509f,
                    0.000102527018f, 1.55153327e-06f);
  return x * max(set1(0.0f), z * p / q + set1(0.5f));
}
// full,row,full|add(0,1);gelu(3);add(4,2)|5
INLINE void apply(
    const vf x0,
    const vf x1,
    const vf x2,
    vf& y0) {
  const vf v0 = x0 + x1;
  const vf v1 = v_gelu(v0);
  const vf v2 = v1 + x2;
  y0 = v2;
}
}  // namespace
TRACEA_API void tracea_f32_chain_1dcdf53c7e4a91b9__avx512(const tracea_chain_tile* t) {
  const float* p0 = (const float*)t->in[0];
  const float* p1 = (const float*)t->in[1];
  const float* p2 = (const float*)t->in[2];
  float* q0 = (float*)t->out[0];
  for (int64_t r = 0; r < t->rows; r++) {
    int64_t c = 0;
    for (; c + 3 * W <= t->cols; c += 3 * W) {
      vf y0[3];
      apply(
          load(p0 + c + 0 * W),
          load(p1 + c + 0 * W),
          load(p2 + c + 0 * W),
          y0[0]);
      apply(
          load(p0 + c + 1 * W),
          load(p1 + c + 1 * W),
          load(p2 + c + 1 * W),
          y0[1]);
      apply(
          load(p0 + c + 2 * W),
          load(p1 + c + 2 * W),
          load(p2 + c + 2 * W),
          y0[2]);
      store(q0 + c + 0 * W, y0[0]);
      store(q0 + c + 1 * W, y0[1]);
      store(q0 + c + 2 * W, y0[2]);
    }
    for (; c + W <= t->cols; c += W) {
      vf y0[1];
      apply(
          load(p0 + c + 0 * W),
          load(p1 + c + 0 * W),
          load(p2 + c + 0 * W),
          y0[0]);
      store(q0 + c + 0 * W, y0[0]);
    }
    if (c < t->cols) {
      const int64_t n = t->cols - c;
      vf y0[1];
      apply(
          load(p0 + c + 0 * W, first(n)),
          load(p1 + c + 0 * W, first(n)),
          load(p2 + c + 0 * W, first(n)),
          y0[0]);
      store(q0 + c + 0 * W, y0[0], first(n));
    }
    p0 += t->in_stride[0];
    p2 += t->in_stride[2];
    q0 += t->out_stride[0];
  }
}
