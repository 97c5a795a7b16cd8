// tracea_f32_conv_14x32__avx512
// tracea_f32_conv_narrow_14x32__avx512
// f32 conv for avx512, from conv.cpp.in
// Generated, do not edit.
// Dense convolutions over blocked values, and over few plain channels.
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
// The sums of four vectors, each in an order of its own.
INLINE void hreduce(const vf (&a)[4], float* to) {
  const vf ab = _mm512_unpacklo_ps(a[0], a[1]) + _mm512_unpackhi_ps(a[0], a[1]);
  const vf cd = _mm512_unpacklo_ps(a[2], a[3]) + _mm512_unpackhi_ps(a[2], a[3]);
  const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
  const vf each = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)) +
                  _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
  const __m256 half = _mm512_castps512_ps256(each) + _mm512_extractf32x8_ps(each, 1);
  _mm_storeu_ps(to, _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1));
}
// The lower eight lanes alone, at half the cost.
typedef __m256 vh;
INLINE vh low_half(vf a) { return _mm512_castps512_ps256(a); }
INLINE vf from_half(vh a) { return _mm512_castps256_ps512(a); }  // the others hold anything
INLINE vh load_half(const float* p) { return _mm256_loadu_ps(p); }
INLINE void store(float* p, vh v) { _mm256_storeu_ps(p, v); }
INLINE vh fma(vh a, vh b, vh c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vh min(vh a, vh b) { return _mm256_min_ps(a, b); }
INLINE vh max(vh a, vh b) { return _mm256_max_ps(a, b); }
// Transposes and horizontal sums of 16 x 16 blocks.
// Lane i: the sum of a[i].
INLINE vf hreduce(vf (&a)[16]) {
  UNROLL for (int i = 0; i < 16; i += 2)
    a[i] = _mm512_unpacklo_ps(a[i], a[i + 1]) + _mm512_unpackhi_ps(a[i], a[i + 1]);
  UNROLL for (int i = 0; i < 16; i += 4) {
    const __m512d x = _mm512_castps_pd(a[i]), y = _mm512_castps_pd(a[i + 2]);
    a[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y)) + _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
  }
  UNROLL for (int i = 0; i < 16; i += 8)
    a[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x44) + _mm512_shuffle_f32x4(a[i], a[i + 4], 0xee);
  return _mm512_shuffle_f32x4(a[0], a[8], 0x88) + _mm512_shuffle_f32x4(a[0], a[8], 0xdd);
}
// Elementwise functions over any vector type.  Bounds are the largest found over dense grids of
// float32 arguments against float64; every function maps NaN to NaN.

// E: poly(x, c0, c1, ...) = c0 + x * (c1 + ...), fused where the instruction set can.
INLINE vf poly(vf, float c) { return set1(c); }
template <typename... Rest>
INLINE vf poly(vf x, float c, Rest... rest) {
  return fma(poly(x, rest...), x, set1(c));
}
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
  __asm__("" : "+v"(x));
  return x;
}

INLINE vf broadcast(const float* p) { return set1(*p); }
// One step of k: C[MR x 16 NV] += a column of A times a row of B.  Each output is summed in the
// order of k whatever the tile, so results do not depend on it.
template <int MR, int NV>
INLINE void step(vf (&c)[MR][NV * P], const float* a, int64_t lda, const vf (&b)[NV * P]) {
  UNROLL for (int i = 0; i < MR; i++) {
    const auto x = broadcast(a + i * lda);
    UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = fma(x, b[j], c[i][j]);
  }
}

// Row r of B: vector j of panel p lies at b + p * panel + j * W.
template <int NV>
INLINE void load_row(vf (&v)[NV * P], const float* b, int64_t panel) {
  UNROLL for (int j = 0; j < NV * P; j++) v[j] = load(b + j / P * panel + j % P * W);
}
// One register tile of a dense convolution: broadcast an input, multiply by 16 NV weights, add.
//
// The outputs of a tile form two runs, A and B: two lines, or two halves of one.  Within a run an
// output lies at a multiple of the step, up to six times; three index registers reach them all.
INLINE vf start_of(const float* bias) { return bias ? load(bias) : set1(0.0f); }

// A step of the sum in float32.
struct Plain {
  enum { TWICE = 0 };  // whether halves of a block meet once more (conv_bf16x2)
  template <class X, class V>
  static INLINE_MEMBER V add(X x, V w, V c) { return fma(x, w, c); }
};

// Accumulators of a last output block with at most eight channels: none, or a vector of eight lanes
// beside the full vectors of each output.
struct NoHalfTile {
  enum { COUNT = 0 };
  INLINE_MEMBER void start(const float*) {}
  INLINE_MEMBER void resume(const float*) {}
  INLINE_MEMBER void add(const float*) {}
  INLINE_MEMBER void at_least(float) {}
  INLINE_MEMBER void at_most(float) {}
  INLINE_MEMBER void write(float*) const {}
  template <class STEP, class X>
  INLINE_MEMBER void step(X, const float*) {}
};
struct HalfTile {
  enum { COUNT = 1 };
  vh sum;
  INLINE_MEMBER void start(const float* bias) { sum = low_half(bias ? load(bias) : set1(0.0f)); }
  INLINE_MEMBER void resume(const float* y) { sum = load_half(y); }
  INLINE_MEMBER void add(const float* from) { sum = sum + load_half(from); }
  INLINE_MEMBER void at_least(float lo) { sum = max(low_half(set1(lo)), sum); }
  INLINE_MEMBER void at_most(float hi) { sum = min(low_half(set1(hi)), sum); }
  INLINE_MEMBER void write(float* y) const { store(y, sum); }
  template <class STEP>
  INLINE_MEMBER void step(vf x, const float* w) {
    sum = keep_in_register(STEP::add(low_half(x), load_half(w), sum));
  }
};
struct Steps {  // in bytes
  int64_t one, three, five;
};

INLINE const float* at(const char* base, const Steps& s, int i) {
  switch (i) {
    case 0: return (const float*)base;
    case 1: return (const float*)(base + s.one);
    case 2: return (const float*)(base + s.one * 2);
    case 3: return (const float*)(base + s.three);
    case 4: return (const float*)(base + s.one * 4);
    case 5: return (const float*)(base + s.five);
    default: return (const float*)(base + s.three * 2);
  }
}

template <class STEP, int A, int B, int NV, class TAIL>
INLINE void multiply(vf (&c)[A + B][NV * P], TAIL (&e)[A + B], const char* a,
                     const char* b, const Steps& s, const float* w, int64_t w_panel) {
  vf row[NV * P];
  load_row<NV>(row, w, w_panel);
  UNROLL for (int i = 0; i < A + B; i++) {
    const float* const from = i < A ? at(a, s, i) : at(b, s, i - A);
    const vf x = set1(*from);
    UNROLL for (int j = 0; j < NV * P; j++) {
      c[i][j] = STEP::add(x, row[j], c[i][j]);
      if (TAIL::COUNT) c[i][j] = keep_in_register(c[i][j]);
    }
    e[i].template step<STEP>(x, w + NV * w_panel);
  }
}

// Output i of a tile, outputs of a run being LANES floats apart and run B `line` behind run A.
template <int A, int LANES, class T>
INLINE T* run_at(T* base, int64_t line, int i) {
  return i < A ? base + i * LANES : base + line + (i - A) * LANES;
}

// The same, outputs being so many steps of 32 bits apart.
template <int A, class T>
INLINE T* run_at(T* base, int64_t line, int i, int64_t lanes) {
  return i < A ? base + i * lanes : base + line + (i - A) * lanes;
}

// Where a tile's results go, and what is added to them; each tile of a run has its own.
struct Outputs {
  float* y;
  int64_t y_line, y_panel;  // y_line: to the first output of run B
  const float* add;
  int64_t add_line, add_panel;
};
// Asks for the lines of outputs, or of what is added to them, long before they are needed.
template <int A, int B, int NV, int LANES>
INLINE void expect(const float* base, int64_t line, int64_t panel) {
  UNROLL for (int i = 0; i < A + B; i += PANEL / LANES) UNROLL for (int j = 0; j < NV; j++)
    __builtin_prefetch(run_at<A, LANES>(base, line, i) + j * panel, 1, 3);
}

// The tiles of a run, one after another: NV whole blocks of outputs, and perhaps half of one.
template <class STEP, int A, int B, int NV, class TAIL = NoHalfTile>
void tile(const tracea_conv_tile* t) {
  constexpr int64_t F = sizeof(float);
  constexpr int ALL = NV + TAIL::COUNT;  // blocks
  const int64_t y_lanes = t->y_step, add_lanes = t->add_step;
  const bool two = t->lines == 2;
  Outputs run = {t->y, two ? t->y_line : A * y_lanes, t->y_panel,
                 t->add, two ? t->add_line : A * add_lanes, t->add_panel};
  const bool continues = t->part & TRACEA_CONV_CONTINUES, stops = t->part & TRACEA_CONV_STOPS;
  const float* const bias = t->bias;
  const int64_t step = opaque(t->x_step * F), next = opaque(t->x_depth * F);
  const Steps s = {step, opaque(step * 3), opaque(step * 5)};
  const int64_t second = two ? t->x_line * F : A * step, w_panel = t->w_panel;
  const int64_t ahead = t->x_block * F, lines = t->prefetch_lines * 64;
  const int64_t rows = t->rows, cols = t->cols, w_tap = t->depth * PANEL;
  // From the last column of a row to the next row, from the last row of a block to the next block.
  const int64_t x_col = t->x_col * F, x_row = t->x_row * F - (cols - 1) * x_col;
  const int64_t x_block = ahead - (rows - 1) * t->x_row * F - (cols - 1) * x_col;
  const int64_t pace = step < 64 ? 64 : step;  // a line holds two inputs in bf16
  const int64_t w_row = t->w_row - (cols - 1) * w_tap;
  const int64_t w_block = t->w_block - (rows - 1) * t->w_row - (cols - 1) * w_tap;
  const int64_t x_next = t->x_next * F, y_next = t->y_next, add_next = t->add_next;
  const int64_t full = t->depth, last = t->last, blocks = rows ? t->blocks : 0;
  const char *line = t->prefetch, *const line_end = t->prefetch_end, *origin = (const char*)t->x;
  const char *far = t->far, *const far_end = t->far_end;
  const int64_t far_lines = t->far_lines * 64;
  const float* const weights = t->w;

  for (int64_t tiles = t->tiles; tiles > 0; tiles--) {
    const Outputs o = {opaque(run.y), opaque(run.y_line), opaque(run.y_panel),
                       opaque(run.add), opaque(run.add_line), opaque(run.add_panel)};
    const auto y_at = [&](int i, int j) __attribute__((always_inline)) {
      return run_at<A, PANEL>(o.y, o.y_line, i) + j / P * o.y_panel + j % P * W;
    };
    vf c[A + B][NV * P];
    TAIL e[A + B];
    if (continues) {
      UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
        c[i][j] = load(y_at(i, j));
      UNROLL for (int i = 0; i < A + B; i++) e[i].resume(y_at(i, NV * P));
    } else {
      UNROLL for (int j = 0; j < NV * P; j++) {
        const vf start = start_of(bias ? bias + j * W : nullptr);
        UNROLL for (int i = 0; i < A + B; i++) c[i][j] = start;
      }
      UNROLL for (int i = 0; i < A + B; i++) e[i].start(bias ? bias + NV * PANEL : nullptr);
    }
    if (!continues) expect<A, B, ALL, PANEL>(o.y, o.y_line, o.y_panel);
    if (o.add) expect<A, B, ALL, PANEL>(o.add, o.add_line, o.add_panel);
    const char* x = origin;
    const float* w = weights;
    int64_t row = rows, col = cols, block = blocks, depth = block == 1 ? last : full;
    while (block) {
      const char *a = x, *b = x + second;
      // Inputs of the next block, or of the next tile: 16 or so lines, two every two steps.
      const char* soon = block > 1 ? x + ahead : origin + x_next;
      const char* const until = line + lines < line_end ? line + lines : line_end;
      for (; line < until; line += 64)
        UNROLL for (int j = 0; j < ALL; j++) __builtin_prefetch(line + j * w_panel * F, 0, 2);
      const char* const far_until = far + far_lines < far_end ? far + far_lines : far_end;
      for (; far < far_until; far += 64) __builtin_prefetch(far, 0, 2);
      const float* tap = w;
      int64_t k = depth;
      for (; k >= 2; k -= 2) {
        __builtin_prefetch(soon, 0, 3);
        __builtin_prefetch(soon + pace, 0, 3);
        soon += 2 * pace;
        multiply<STEP, A, B, NV>(c, e, a, b, s, tap, w_panel);
        a += next, b += next;
        multiply<STEP, A, B, NV>(c, e, a, b, s, tap + PANEL, w_panel);
        a += next, b += next, tap += 2 * PANEL;
      }
      if (k) multiply<STEP, A, B, NV>(c, e, a, b, s, tap, w_panel);
      if (STEP::TWICE) {
        a -= PANEL * next, b -= PANEL * next, tap -= PANEL / 2 * PANEL;
        for (k = PANEL / 2; k; k--, a += next, b += next, tap += PANEL)
          multiply<STEP, A, B, NV>(c, e, a, b, s, tap, w_panel);
      }
      if (--col) {
        x += x_col, w += w_tap;
      } else if (col = cols, --row) {
        x += x_row, w += w_row;
      } else {
        row = rows, x += x_block, w += w_block;
        if (--block == 1) depth = last;
      }
    }

    if (!stops) {
      if (o.add) {
        UNROLL for (int i = 0; i < A + B; i++) {
          const float* from = run_at<A, PANEL>(o.add, o.add_line, i);
          UNROLL for (int j = 0; j < NV * P; j++)
            c[i][j] = c[i][j] + load(from + j / P * o.add_panel + j % P * W);
          e[i].add(from + NV * o.add_panel);
        }
      }
      // Read only here: over the sums no register is left for them.
      const float lo = opaque(t)->lo, hi = opaque(t)->hi;
      if (lo > -__builtin_inff())
        UNROLL for (int i = 0; i < A + B; i++) {
          UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = max(set1(lo), c[i][j]);
          e[i].at_least(lo);
        }
      if (hi < __builtin_inff())
        UNROLL for (int i = 0; i < A + B; i++) {
          UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = min(set1(hi), c[i][j]);
          e[i].at_most(hi);
        }
    }
    UNROLL for (int i = 0; i < A + B; i++) {
      UNROLL for (int j = 0; j < NV * P; j++) store(y_at(i, j), c[i][j]);
      e[i].write(y_at(i, NV * P));
    }
    origin += x_next, run.y += y_next;
    if (run.add) run.add += add_next;
  }
}
// A line of a convolution with few output channels: lanes are input channels, which are multiplied
// by those of each filter and summed at the end, so that no lane stands for a missing output.
// An output is summed in one order wherever its line is cut.

// Adds one tap of a block of input channels, of the lanes of `m`.
template <int F, int N>
INLINE void add_tap(vf (&c)[N][F], const float* x, int64_t step, const float* w,
                    const vm (&m)[P]) {
  UNROLL for (int p = 0; p < P; p++) {
    vf filter[F];
    UNROLL for (int f = 0; f < F; f++) filter[f] = load(w + f * PANEL + p * W);
    UNROLL for (int i = 0; i < N; i++) {
      const vf v = load(x + i * step + p * W, m[p]);
      UNROLL for (int f = 0; f < F; f++) c[i][f] = fma(v, filter[f], c[i][f]);
    }
  }
}

// y = clamp(sums + bias + add) for the 16 lanes of N outputs, of which F count.
template <int F, int N>
INLINE void end_narrow(const vf (&c)[N][F], const tracea_conv_tile* t, int64_t at) {
  float each[N * F + PANEL];
  UNROLL for (int g = 0; g < N * F; g += 4) {
    vf four[4];
    UNROLL for (int j = 0; j < 4; j++) {
      const int sum = g + j < N * F ? g + j : g;
      four[j] = c[sum / F][sum % F];
    }
    hreduce(four, each + g);
  }
  const vf lo = set1(t->lo), hi = set1(t->hi);
  float* y = t->y + at * PANEL;
  UNROLL for (int i = 0; i < N; i++) UNROLL for (int p = 0; p < P; p++) {
    const int lane = i * PANEL + p * W, left = F - p * W;
    vf v = load(each + i * F + p * W, first(left < 0 ? 0 : left < W ? left : W));
    if (t->bias) v = v + load(t->bias + p * W);
    if (t->add) v = v + load(t->add + at * PANEL + lane);
    if (t->lo > -__builtin_inff()) v = max(lo, v);
    if (t->hi < __builtin_inff()) v = min(hi, v);
    store(y + lane, v);
  }
}

// Outputs [at, at + N) of the line.
template <int F, int N>
INLINE void narrow_piece(const tracea_conv_tile* t, int64_t at) {
  vf c[N][F];
  UNROLL for (int i = 0; i < N; i++) UNROLL for (int f = 0; f < F; f++) c[i][f] = set1(0.0f);
  const float *x = t->x + at * t->x_step, *w = t->w;
  for (int64_t block = t->blocks; block--; x += t->x_block) {
    vm m[P];
    UNROLL for (int p = 0; p < P; p++) {
      const int64_t depth = block ? t->depth : t->last, left = depth - p * W;
      m[p] = first(left < 0 ? 0 : left < W ? left : (int64_t)W);
    }
    for (int64_t row = 0; row < t->rows; row++)
      for (int64_t col = 0; col < t->cols; col++, w += F * PANEL)
        add_tap<F, N>(c, x + row * t->x_row + col * t->x_col, t->x_step, w, m);
  }
  end_narrow<F, N>(c, t, at);
}

// Outputs from `at` on, N at a time; a last few are computed with some of those before them.
template <int F, int N>
INLINE void narrow_pieces(const tracea_conv_tile* t, int64_t at) {
  for (; at + N <= t->pixels; at += N) narrow_piece<F, N>(t, at);
  if constexpr (N > 1) {
    if (t->pixels >= N && t->pixels - at > (N + 1) / 2) return narrow_piece<F, N>(t, t->pixels - N);
    narrow_pieces<F, (N + 1) / 2>(t, at);
  }
}

template <int F>
void narrow_line(const tracea_conv_tile* t) {
  constexpr int ROOM = 22 / F;
  narrow_pieces<F, ROOM < 1 ? 1 : ROOM>(t, 0);
}
constexpr tracea_conv_fn TILE[14][2] = {
    {
        tile<Plain, 1, 0, 1>,
        tile<Plain, 1, 0, 2>,
    },
    {
        tile<Plain, 1, 1, 1>,
        tile<Plain, 1, 1, 2>,
    },
    {
        tile<Plain, 2, 1, 1>,
        tile<Plain, 2, 1, 2>,
    },
    {
        tile<Plain, 2, 2, 1>,
        tile<Plain, 2, 2, 2>,
    },
    {
        tile<Plain, 3, 2, 1>,
        tile<Plain, 3, 2, 2>,
    },
    {
        tile<Plain, 3, 3, 1>,
        tile<Plain, 3, 3, 2>,
    },
    {
        tile<Plain, 4, 3, 1>,
        tile<Plain, 4, 3, 2>,
    },
    {
        tile<Plain, 4, 4, 1>,
        tile<Plain, 4, 4, 2>,
    },
    {
        tile<Plain, 5, 4, 1>,
        tile<Plain, 5, 4, 2>,
    },
    {
        tile<Plain, 5, 5, 1>,
        tile<Plain, 5, 5, 2>,
    },
    {
        tile<Plain, 6, 5, 1>,
        tile<Plain, 6, 5, 2>,
    },
    {
        tile<Plain, 6, 6, 1>,
        tile<Plain, 6, 6, 2>,
    },
    {
        tile<Plain, 7, 6, 1>,
        tile<Plain, 7, 6, 2>,
    },
    {
        tile<Plain, 7, 7, 1>,
        tile<Plain, 7, 7, 2>,
    },
};

constexpr tracea_conv_fn HALF_TILES[14] = {
    tile<Plain, 1, 0, 1, HalfTile>,
    tile<Plain, 1, 1, 1, HalfTile>,
    tile<Plain, 2, 1, 1, HalfTile>,
    tile<Plain, 2, 2, 1, HalfTile>,
    tile<Plain, 3, 2, 1, HalfTile>,
    tile<Plain, 3, 3, 1, HalfTile>,
    tile<Plain, 4, 3, 1, HalfTile>,
    tile<Plain, 4, 4, 1, HalfTile>,
    tile<Plain, 5, 4, 1, HalfTile>,
    tile<Plain, 5, 5, 1, HalfTile>,
    tile<Plain, 6, 5, 1, HalfTile>,
    tile<Plain, 6, 6, 1, HalfTile>,
    tile<Plain, 7, 6, 1, HalfTile>,
    tile<Plain, 7, 7, 1, HalfTile>,
};

constexpr tracea_conv_fn NARROW[TRACEA_NARROW] = {
    narrow_line<1>, narrow_line<2>, narrow_line<3>, narrow_line<4>,
    narrow_line<5>, narrow_line<6>, narrow_line<7>, narrow_line<8>,
};
}  // namespace

TRACEA_API void tracea_f32_conv_14x32__avx512(const tracea_conv_tile* t) {
  if (t->half_tile && t->nv == 2) return HALF_TILES[t->pixels * t->lines - 1](t);
  TILE[t->pixels * t->lines - 1][t->nv - 1](t);
}
TRACEA_API void tracea_f32_conv_narrow_14x32__avx512(const tracea_conv_tile* t) { NARROW[t->nv - 1](t); }
