// tracea_f32_norm_layer_4x8__avx2
// tracea_f32_norm_rms_4x8__avx2
// tracea_f32_norm_group_4x8__avx2
// tracea_f32_norm_columns_4x8__avx2
// f32 norm for avx2, from norm.cpp.in
// Generated, do not edit.
// Normalisation over the last axis, 4 rows at a time: one row's reduction is a chain of
// dependent additions, the other rows fill the gaps.  Below, over groups of channels, and over the
// channels at each position.
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
// Vectors of eight lanes: AVX2 and FMA.
#define UNROLL _Pragma("GCC unroll 16")
typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));
typedef uint32_t vu __attribute__((vector_size(32)));  // for shifts that drop bits
typedef __m256i vm;
enum { W = 8 };
constexpr float EXP_LOW = -87.33f;  // exp rounds to 2^-126 here, which scale() flushes to 0

INLINE vf set1(float x) { return _mm256_set1_ps(x); }
INLINE vf load(const float* p) { return _mm256_loadu_ps(p); }
INLINE vf load(const float* p, vm m) { return _mm256_maskload_ps(p, m); }
INLINE void store(float* p, vf v) { _mm256_storeu_ps(p, v); }
INLINE void stream(float* p, vf v) { _mm256_stream_ps(p, v); }  // p is aligned
INLINE void store(float* p, vf v, vm m) { _mm256_maskstore_ps(p, m, v); }
INLINE vm first(int64_t n) {  // the lanes below n
  const int32_t count = n < 0 ? 0 : n > W ? W : (int32_t)n;
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
}

INLINE vf fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf min(vf a, vf b) { return _mm256_min_ps(a, b); }  // b if either is NaN
INLINE vf max(vf a, vf b) { return _mm256_max_ps(a, b); }  // b if either is NaN
INLINE vf abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE vf sqrt(vf a) { return _mm256_sqrt_ps(a); }
INLINE vm less(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
INLINE vm is_nan(vf a) { return _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
INLINE vf select(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(m)); }
INLINE float reduce_add(vf a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE float reduce_max(vf a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

INLINE vi bits(vf a) { return (vi)a; }
INLINE vf from_bits(vi i) { return (vf)i; }
INLINE vf to_float(vi i) { return _mm256_cvtepi32_ps((__m256i)i); }
INLINE vi to_int(vf a) { return (vi)_mm256_cvtps_epi32(a); }

// a * 2^n for whole n in [-126, 128]; 0 at n = -126.
INLINE vf scale(vf a, vf n) {
  const vf half = a * from_bits((vi)((vu)(to_int(n) + 126) << 23));
  return half + half;
}
// The nearest bf16, ties to even; a NaN stays one.
INLINE void store_bf16(uint16_t* p, vf v, int64_t n) {
  uint32_t u[W];
  __builtin_memcpy(u, &v, sizeof u);
  for (int i = 0; i < W && i < n; i++) {
    const uint32_t near = (u[i] + 0x7fff + (u[i] >> 16 & 1)) >> 16;
    p[i] = (uint16_t)((u[i] & 0x7fffffff) > 0x7f800000 ? u[i] >> 16 | 0x40 : near);
  }
}
INLINE void store_bf16(uint16_t* p, vf v) { store_bf16(p, v, W); }
INLINE vf load_bf16(const uint16_t* p) {
  const __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return (vf)_mm256_slli_epi32(u, 16);
}

// Lanes of the bf16 at p (first) and q (second).
INLINE vf join_bf16(const uint16_t* p, const uint16_t* q, int64_t n) {
  uint32_t u[W] = {};
  for (int i = 0; i < W && i < n; i++) u[i] = (uint32_t)p[i] | (uint32_t)q[i] << 16;
  vf v;
  __builtin_memcpy(&v, u, sizeof v);
  return v;
}
// Elementwise functions over any vector type.  Bounds are the largest found over dense grids of
// float32 arguments against float64; every function maps NaN to NaN.

// E: poly(x, c0, c1, ...) = c0 + x * (c1 + ...), fused where the instruction set can.
INLINE vf poly(vf, float c) { return set1(c); }
template <typename... Rest>
INLINE vf poly(vf x, float c, Rest... rest) {
  return fma(poly(x, rest...), x, set1(c));
}
// mean[i] of x over row i or, with SQUARES, of (x - center[i])^2.  A row is always summed in two
// parts, in the same order, so its result does not depend on R.
template <int R, bool SQUARES>
INLINE void means(const float* x, int64_t stride, int64_t cols, const float* center, float* mean) {
  vf sum[R][2], mid[R];
  UNROLL for (int i = 0; i < R; i++) {
    sum[i][0] = sum[i][1] = set1(0.0f);
    mid[i] = set1(SQUARES ? center[i] : 0.0f);
  }
  const auto add = [&](vf& to, vf v) __attribute__((always_inline)) {
    to = SQUARES ? fma(v, v, to) : to + v;
  };
  int64_t c = 0;
  for (; c + 2 * W <= cols; c += 2 * W) {
    UNROLL for (int i = 0; i < R; i++) UNROLL for (int h = 0; h < 2; h++)
      add(sum[i][h], load(x + i * stride + c + h * W) - mid[i]);
  }
  for (; c < cols; c += W) {
    const vm m = first(cols - c);
    UNROLL for (int i = 0; i < R; i++)
      add(sum[i][0], select(m, load(x + i * stride + c, m) - mid[i], set1(0.0f)));
  }
  UNROLL for (int i = 0; i < R; i++) mean[i] = reduce_add(sum[i][0] + sum[i][1]) / (float)cols;
}

template <int R, bool LAYER>
void normalise(const tracea_norm_tile* t, int64_t row) {
  const float* x = t->x + row * t->x_stride;
  float* y = t->y ? t->y + row * t->y_stride : nullptr;
  float mean[R] = {}, var[R];
  if (LAYER) means<R, false>(x, t->x_stride, t->cols, mean, mean);
  means<R, true>(x, t->x_stride, t->cols, mean, var);
  vf mid[R], factor[R];
  UNROLL for (int i = 0; i < R; i++) {
    mid[i] = set1(mean[i]);
    factor[i] = set1(1.0f / __builtin_sqrtf(var[i] + t->eps));
  }
  for (int64_t c = 0; c < t->cols; c += W) {
    const vm m = first(t->cols - c);
    const vf gamma = t->gamma ? load(t->gamma + c, m) : set1(1.0f);
    const vf beta = t->beta ? load(t->beta + c, m) : set1(0.0f);
    UNROLL for (int i = 0; i < R; i++) {
      const vf d = (load(x + i * t->x_stride + c, m) - mid[i]) * factor[i];
      const vf out = fma(d, gamma, beta);
      if (y) store(y + i * t->y_stride + c, out, m);
      if (t->rounded)
        store_bf16(t->rounded + (row + i) * t->rounded_stride + c, out, t->cols - c);
    }
  }
}

template <bool LAYER>
void rows(const tracea_norm_tile* t) {
  int64_t r = 0;
  for (; r + 4 <= t->rows; r += 4) normalise<4, LAYER>(t, r);
  for (; r < t->rows; r++) normalise<1, LAYER>(t, r);
}

// The sum of x - center over n values, or with SQUARES of its square; blocks are added in double.
template <bool SQUARES>
double total(const float* x, int64_t n, float center) {
  double sum = 0;
  for (; n > 0; n -= 4096, x += 4096) {
    const int64_t some = n < 4096 ? n : 4096;
    vf part[4];
    UNROLL for (int h = 0; h < 4; h++) part[h] = set1(0.0f);
    const auto add = [&](vf& to, vf d) __attribute__((always_inline)) {
      to = SQUARES ? fma(d, d, to) : to + d;
    };
    const vf mid = set1(center);
    int64_t c = 0;
    for (; c + 4 * W <= some; c += 4 * W) {
      UNROLL for (int h = 0; h < 4; h++) add(part[h], load(x + c + h * W) - mid);
    }
    for (; c < some; c += W) {
      const vm m = first(some - c);
      add(part[0], select(m, load(x + c, m) - mid, set1(0.0f)));
    }
    sum += (double)reduce_add((part[0] + part[1]) + (part[2] + part[3]));
  }
  return sum;
}

// One group: `rows` channels of `cols` elements, all in one piece.
template <bool LAYER>
void group(const tracea_norm_tile* t) {
  const int64_t n = t->rows * t->cols;
  const float mean = LAYER ? (float)(total<false>(t->x, n, 0.0f) / (double)n) : 0.0f;
  const float var = (float)(total<true>(t->x, n, mean) / (double)n);
  const float factor = 1.0f / __builtin_sqrtf(var + t->eps);
  const vf mid = set1(mean);
  for (int64_t r = 0; r < t->rows; r++) {
    const vf scale = set1(t->gamma ? t->gamma[r] * factor : factor);
    const vf shift = set1(t->beta ? t->beta[r] : 0.0f);
    const float* x = t->x + r * t->cols;
    float* y = t->y + r * t->cols;
    int64_t c = 0;
    for (; c + W <= t->cols; c += W) store(y + c, fma(load(x + c) - mid, scale, shift));
    if (c < t->cols) {
      const vm m = first(t->cols - c);
      store(y + c, fma(load(x + c, m) - mid, scale, shift), m);
    }
  }
}

// V vectors of columns; each is normalised over its rows.
template <bool LAYER, int V>
INLINE void some_columns(const tracea_norm_tile* t, int64_t at, vm m) {
  const auto take = [&](const float* p, int v) __attribute__((always_inline)) {
    return v + 1 < V ? load(p + v * W) : load(p + v * W, m);
  };
  const vf count = set1((float)t->rows), zero = set1(0.0f);
  vf mean[V], factor[V];
  UNROLL for (int v = 0; v < V; v++) mean[v] = factor[v] = zero;
  const float* x = t->x + at;
  if (LAYER) {
    for (int64_t r = 0; r < t->rows; r++, x += t->x_stride)
      UNROLL for (int v = 0; v < V; v++) mean[v] = mean[v] + take(x, v);
    UNROLL for (int v = 0; v < V; v++) mean[v] = mean[v] / count;
    x = t->x + at;
  }
  for (int64_t r = 0; r < t->rows; r++, x += t->x_stride)
    UNROLL for (int v = 0; v < V; v++) {
      const vf d = take(x, v) - mean[v];
      factor[v] = fma(d, d, factor[v]);
    }
  UNROLL for (int v = 0; v < V; v++)
    factor[v] = set1(1.0f) / sqrt(factor[v] / count + set1(t->eps));
  x = t->x + at;
  float* y = t->y + at;
  for (int64_t r = 0; r < t->rows; r++, x += t->x_stride, y += t->y_stride) {
    const vf gamma = set1(t->gamma ? t->gamma[r] : 1.0f), beta = set1(t->beta ? t->beta[r] : 0.0f);
    UNROLL for (int v = 0; v < V; v++) {
      const vf out = fma((take(x, v) - mean[v]) * factor[v], gamma, beta);
      if (v + 1 < V) store(y + v * W, out);
      else store(y + v * W, out, m);
    }
  }
}

template <bool LAYER>
void columns(const tracea_norm_tile* t) {
  int64_t c = 0;
  for (; c + 2 * W <= t->cols; c += 2 * W) some_columns<LAYER, 2>(t, c, first(W));
  for (; c < t->cols; c += W) some_columns<LAYER, 1>(t, c, first(t->cols - c));
}
}  // namespace

TRACEA_API void tracea_f32_norm_layer_4x8__avx2(const tracea_norm_tile* t) { rows<true>(t); }

TRACEA_API void tracea_f32_norm_rms_4x8__avx2(const tracea_norm_tile* t) { rows<false>(t); }

TRACEA_API void tracea_f32_norm_group_4x8__avx2(const tracea_norm_tile* t) {
  if (t->layer) group<true>(t);
  else group<false>(t);
}

TRACEA_API void tracea_f32_norm_columns_4x8__avx2(const tracea_norm_tile* t) {
  if (t->layer) columns<true>(t);
  else columns<false>(t);
}
