// tracea_f32_depthwise_7x16__avx2
// f32 depthwise for avx2, from depthwise.cpp.in
// Generated, do not edit.
// Output lines of a depthwise convolution: every lane is a channel.
//
// A line is cut into pieces of one width; the last one overlaps its neighbour.
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
enum { PANEL = TRACEA_PANEL };
enum { LONG_LINE = 64 };  // outputs from which results are not in L2: their lines are asked for
typedef float element;
INLINE vf load_x(const element* p) { return load(p); }
constexpr int64_t STEP_SIZE = sizeof(float) / sizeof(element);  // elements of a step of x
#define UNROLL_ALL _Pragma("GCC unroll 64")  // every column of a piece: sums stay in registers

alignas(64) const element NOTHING[PANEL] = {};  // a column beside the line

// Hides that a value was loaded: gcc would load it again for every use, and a core does no more loads
// of 64 bytes than multiply-adds.  With 16 registers it is the order of the loads that has to stay.
template <int STEP>
INLINE vf once(vf a) {
  if (STEP > 1) __asm__ volatile("" : "+x"(a));
  return a;
}

// Columns of a piece that lie on the line: [first, end).
struct Columns {
  int64_t first, end;
};

// Adds one kernel row to N outputs; every input column is loaded once.  Only the first and the last
// columns of a kernel can lie beside the line.
template <int N, int COLS, int STEP>
INLINE void add_row(vf (&c)[N], const element* x, const float* w, const Columns& on) {
  constexpr int COUNT = (N - 1) * STEP + COLS;
  vf tap[COLS];
  UNROLL for (int k = 0; k < COLS; k++) tap[k] = load(w + k * PANEL);
  UNROLL_ALL for (int i = 0; i < COUNT; i++) {
    const bool beside = (i < COLS - 1 && i < on.first) || (i > COUNT - COLS && i >= on.end);
    const element* from = x + i * PANEL;
    if (i < COLS - 1 || i > COUNT - COLS) {
      from = beside ? NOTHING : from;
      if (STEP == 1) __asm__("" : "+r"(from));  // else gcc moves the loads: registers are few
    }
    const vf v = once<STEP>(load_x(from));
    UNROLL for (int k = 0; k < COLS; k++) {
      const int p = i - k;
      if (p >= 0 && p % STEP == 0 && p / STEP < N) c[p / STEP] = fma(v, tap[k], c[p / STEP]);
    }
  }
}

// The same for any number of columns and any strides.
template <int N>
INLINE void add_row(vf (&c)[N], const tracea_depthwise_tile* t, const element* x,
                    const float* w, const Columns& on) {
  const int64_t col = t->x_col * STEP_SIZE, step = t->x_step * STEP_SIZE;
  const int64_t first = on.first * PANEL, end = on.end * PANEL;
  for (int64_t k = 0; k < t->cols; k++) {
    const vf tap = load(w + k * PANEL);
    UNROLL for (int i = 0; i < N; i++) {
      const int64_t at = k * col + i * step;
      c[i] = fma(load_x(at < first || at >= end ? NOTHING : x + at), tap, c[i]);
    }
  }
}

// Adds, clamps and writes N outputs of a line from `at` on.
template <int N>
INLINE void finish(const tracea_depthwise_tile* t, vf (&c)[N], int64_t line, int64_t at, int h) {
  float* const y = t->y + line * t->y_line;
  const float* const add = t->add ? t->add + line * t->add_line : nullptr;
  if (add) UNROLL for (int i = 0; i < N; i++) c[i] = c[i] + load(add + (at + i) * PANEL + h);
  const vf lo = set1(t->lo), hi = set1(t->hi);
  if (t->lo > -__builtin_inff()) UNROLL for (int i = 0; i < N; i++) c[i] = max(lo, c[i]);
  if (t->hi < __builtin_inff()) UNROLL for (int i = 0; i < N; i++) c[i] = min(hi, c[i]);
  UNROLL for (int i = 0; i < N; i++) store(y + (at + i) * PANEL + h, c[i]);
}

template <int N>
INLINE void expect(const tracea_depthwise_tile* t, int64_t line, int64_t at, int h) {
  const char* y = (const char*)(t->y + line * t->y_line);
  if (t->pixels >= LONG_LINE)
    UNROLL for (int i = 0; i < N; i++)
      __builtin_prefetch(y + ((at + i) * PANEL + h) * t->y_size, 1, 3);
}

// Outputs [at, at + N) of a line, lanes [h, h + W); COLS is 0 for any kernel.
template <int N, int COLS, int STEP>
INLINE void piece(const tracea_depthwise_tile* t, int64_t line, int64_t at, int h) {
  expect<N>(t, line, at, h);
  vf c[N];
  const vf start = t->bias ? load(t->bias + h) : set1(0.0f);
  UNROLL for (int i = 0; i < N; i++) c[i] = start;
  const int64_t begin = at * t->x_step * STEP_SIZE - t->left * PANEL;  // elements from x
  const element* x = (const element*)t->x + line * t->x_line * STEP_SIZE + begin + h;
  const Columns on = {-begin / PANEL, t->width - begin / PANEL};
  const float* w = t->w + h;
  for (int64_t row = 0; row < t->rows; row++, x += t->x_row * STEP_SIZE, w += t->cols * PANEL) {
    if constexpr (COLS > 0) add_row<N, COLS, STEP>(c, x, w, on);
    else add_row<N>(c, t, x, w, on);
  }
  finish<N>(t, c, line, at, h);
}

// Pieces of N outputs, line by line: what a line reads lies in one stretch.
template <int N, int COLS, int STEP>
void pieces(const tracea_depthwise_tile* t) {
  for (int h = 0; h < PANEL; h += W) {
    for (int64_t line = 0; line < t->lines; line++)
      for (int64_t at = 0; at < t->pixels; at += N)
        piece<N, COLS, STEP>(t, line, at + N <= t->pixels ? at : t->pixels - N, h);
  }
}

template <int COLS, int STEP>
void lines(const tracea_depthwise_tile* t) {
  if (t->pixels >= 7) return pieces<7, COLS, STEP>(t);
  if (t->pixels >= 4) return pieces<4, COLS, STEP>(t);
  return pieces<1, COLS, STEP>(t);
}
}  // namespace

TRACEA_API void tracea_f32_depthwise_7x16__avx2(const tracea_depthwise_tile* t) {
  // Windows that reach the line, their columns side by side.
  const int64_t behind = (t->pixels - 1) * (t->x_step * STEP_SIZE / PANEL) - t->left - t->width;
  const bool dense = t->x_col * STEP_SIZE == PANEL && t->left < t->cols && behind < 0;
  if (dense && t->x_step * STEP_SIZE == 1 * PANEL && t->cols == 3) return lines<3, 1>(t);
  if (dense && t->x_step * STEP_SIZE == 1 * PANEL && t->cols == 5) return lines<5, 1>(t);
  if (dense && t->x_step * STEP_SIZE == 1 * PANEL && t->cols == 7) return lines<7, 1>(t);
  if (dense && t->x_step * STEP_SIZE == 2 * PANEL && t->cols == 3) return lines<3, 2>(t);
  if (dense && t->x_step * STEP_SIZE == 2 * PANEL && t->cols == 5) return lines<5, 2>(t);
  if (dense && t->x_step * STEP_SIZE == 2 * PANEL && t->cols == 7) return lines<7, 2>(t);
  lines<0, 0>(t);
}
