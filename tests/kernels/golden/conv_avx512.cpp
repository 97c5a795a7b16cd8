// tracea_f32_conv_14x32__avx512
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

// Hides a value's origin, so that gcc keeps it in a register instead of one pointer per output.
template <class T>
INLINE T opaque(T x) {
  __asm__("" : "+r"(x));
  return x;
}

// A step of the sum in float32.
struct Plain {
  static INLINE_MEMBER vf add(vf x, vf w, vf c) { return fma(x, w, c); }
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

template <class STEP, int A, int B, int NV>
INLINE void multiply(vf (&c)[A + B][NV * P], const char* a, const char* b, const Steps& s,
                     const float* w, int64_t w_panel) {
  vf row[NV * P];
  load_row<NV>(row, w, w_panel);
  UNROLL for (int i = 0; i < A + B; i++) {
    const vf x = set1(*(i < A ? at(a, s, i) : at(b, s, i - A)));
    UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = STEP::add(x, row[j], c[i][j]);
  }
}

// Output i of a tile, outputs of a run being LANES floats apart and run B `line` behind run A.
template <int A, int LANES, class T>
INLINE T* run_at(T* base, int64_t line, int i) {
  return i < A ? base + i * LANES : base + line + (i - A) * LANES;
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

// The tiles of a run, one after another.
template <class STEP, int A, int B, int NV>
void tile(const tracea_conv_tile* t) {
  constexpr int64_t F = sizeof(float);
  const int64_t y_lanes = t->y_size == 4 ? PANEL : PANEL / 2;
  const int64_t add_lanes = t->add_size == 4 ? PANEL : PANEL / 2;
  const bool two = t->lines == 2;
  Outputs run = {t->y, two ? t->y_line : A * y_lanes, t->y_panel,
                 t->add, two ? t->add_line : A * add_lanes, t->add_panel};
  const bool continues = t->part & TRACEA_CONV_CONTINUES, stops = t->part & TRACEA_CONV_STOPS;
  const float lo = t->lo, hi = t->hi, *bias = t->bias;
  const int64_t step = opaque(t->x_step * F), next = opaque(t->x_depth * F);
  const Steps s = {step, opaque(step * 3), opaque(step * 5)};
  const int64_t second = two ? t->x_line * F : A * step, w_panel = t->w_panel;
  const int64_t ahead = t->x_block * F, lines = t->prefetch_lines * 64;
  const int64_t rows = t->rows, cols = t->cols, w_tap = t->depth * PANEL;
  // From the last column of a row to the next row, from the last row of a block to the next block.
  const int64_t x_col = t->x_col * F, x_row = t->x_row * F - (cols - 1) * x_col;
  const int64_t x_block = ahead - (rows - 1) * t->x_row * F - (cols - 1) * x_col;
  const int64_t w_row = t->w_row - (cols - 1) * w_tap;
  const int64_t w_block = t->w_block - (rows - 1) * t->w_row - (cols - 1) * w_tap;
  const int64_t x_next = t->x_next * F, y_next = t->y_next, add_next = t->add_next;
  const int64_t full = t->depth, last = t->last, blocks = rows ? t->blocks : 0;
  const char *line = t->prefetch, *const line_end = t->prefetch_end, *origin = (const char*)t->x;
  const float* const weights = t->w;

  for (int64_t tiles = t->tiles; tiles > 0; tiles--) {
    const Outputs o = {opaque(run.y), opaque(run.y_line), opaque(run.y_panel),
                       opaque(run.add), opaque(run.add_line), opaque(run.add_panel)};
    const auto y_at = [&](int i, int j) __attribute__((always_inline)) {
      return run_at<A, PANEL>(o.y, o.y_line, i) + j / P * o.y_panel + j % P * W;
    };
    vf c[A + B][NV * P];
    if (continues) {
      UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
        c[i][j] = load(y_at(i, j));
    } else {
      UNROLL for (int j = 0; j < NV * P; j++) {
        const vf start = start_of(bias ? bias + j * W : nullptr);
        UNROLL for (int i = 0; i < A + B; i++) c[i][j] = start;
      }
    }
    if (!continues) expect<A, B, NV, PANEL>(o.y, o.y_line, o.y_panel);
    if (o.add) expect<A, B, NV, PANEL>(o.add, o.add_line, o.add_panel);
    const char* x = origin;
    const float* w = weights;
    int64_t row = rows, col = cols, block = blocks, depth = block == 1 ? last : full;
    while (block) {
      const char *a = x, *b = x + second;
      // Inputs of the next block, or of the next tile: 16 or so lines, two every two steps.
      const char* soon = block > 1 ? x + ahead : origin + x_next;
      const char* const until = line + lines < line_end ? line + lines : line_end;
      for (; line < until; line += 64)
        UNROLL for (int j = 0; j < NV; j++) __builtin_prefetch(line + j * w_panel * F, 0, 2);
      const float* tap = w;
      int64_t k = depth;
      for (; k >= 2; k -= 2) {
        __builtin_prefetch(soon, 0, 3);
        __builtin_prefetch(soon + step, 0, 3);
        soon += 2 * step;
        multiply<STEP, A, B, NV>(c, a, b, s, tap, w_panel);
        a += next, b += next;
        multiply<STEP, A, B, NV>(c, a, b, s, tap + PANEL, w_panel);
        a += next, b += next, tap += 2 * PANEL;
      }
      if (k) multiply<STEP, A, B, NV>(c, a, b, s, tap, w_panel);
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
        UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
          c[i][j] = c[i][j] + load(run_at<A, PANEL>(o.add, o.add_line, i) +
                                   j / P * o.add_panel + j % P * W);
      }
      if (lo > -__builtin_inff())
        UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
          c[i][j] = max(set1(lo), c[i][j]);
      if (hi < __builtin_inff())
        UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
          c[i][j] = min(set1(hi), c[i][j]);
    }
    UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
      store(y_at(i, j), c[i][j]);
    origin += x_next, run.y += y_next;
    if (run.add) run.add += add_next;
  }
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
}  // namespace

TRACEA_API void tracea_f32_conv_14x32__avx512(const tracea_conv_tile* t) {
  TILE[t->pixels * t->lines - 1][t->nv - 1](t);
}
