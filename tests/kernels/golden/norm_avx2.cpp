// tracea_f32_norm_layer_4x8__avx2
// tracea_f32_norm_rms_4x8__avx2
// f32 norm for avx2, from norm.cpp.in
// Generated, do not edit.
// Normalisation over the last axis, 4 rows at a time: one row's reduction is a chain of
// dependent additions, the other rows fill the gaps.
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
typedef __m256i vm;
enum { W = 8 };
constexpr float EXP_LOW = -87.33f;  // exp rounds to 2^-126 here, which scale() flushes to 0

INLINE vf set1(float x) { return _mm256_set1_ps(x); }
INLINE vf load(const float* p) { return _mm256_loadu_ps(p); }
INLINE vf load(const float* p, vm m) { return _mm256_maskload_ps(p, m); }
INLINE void store(float* p, vf v) { _mm256_storeu_ps(p, v); }
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
  const vf half = a * from_bits((to_int(n) + 126) << 23);
  return half + half;
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
  float* y = t->y + row * t->y_stride;
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
      store(y + i * t->y_stride + c, fma(d, gamma, beta), m);
    }
  }
}

template <bool LAYER>
void rows(const tracea_norm_tile* t) {
  int64_t r = 0;
  for (; r + 4 <= t->rows; r += 4) normalise<4, LAYER>(t, r);
  for (; r < t->rows; r++) normalise<1, LAYER>(t, r);
}
}  // namespace

TRACEA_API void tracea_f32_norm_layer_4x8__avx2(const tracea_norm_tile* t) { rows<true>(t); }

TRACEA_API void tracea_f32_norm_rms_4x8__avx2(const tracea_norm_tile* t) { rows<false>(t); }
