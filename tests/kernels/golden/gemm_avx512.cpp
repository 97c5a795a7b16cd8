// tracea_f32_gemm_8x48__avx512
// f32 gemm for avx512, from gemm.cpp.in
// Generated, do not edit.
// One register tile of a matrix product: broadcast a column of A, multiply by a row of B, add.
#include "tracea_kernels.h"

#ifndef TRACEA_VISIBILITY
#define TRACEA_VISIBILITY "hidden"
#endif
#define TRACEA_API extern "C" __attribute__((visibility(TRACEA_VISIBILITY)))
#define INLINE static inline __attribute__((always_inline, unused))
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
// Steps of k between two looks at the prefetch queue; with four, gcc runs out of registers.
enum { CHUNK = 2 };

// Lines wanted next, requested at an even pace over the k loop.
struct Prefetch {
  const char* line;
  int64_t due, rate;  // in 1/65536 lines per chunk
};

INLINE Prefetch plan_prefetch(const tracea_gemm_tile* t) {
  const int64_t chunks = t->k / CHUNK;
  if (!t->prefetch || chunks == 0) return {nullptr, 0, 0};
  return {t->prefetch, 32768, ((int64_t)t->prefetch_lines << 16) / chunks};
}

INLINE void advance(Prefetch& p) {
  for (p.due += p.rate; p.due >= 65536; p.due -= 65536, p.line += 64)
    __builtin_prefetch(p.line, 0, 2);
}

// EXACT: the one panel's columns past `last` may not be read.
template <int MR, int NV, bool EXACT>
void tile(const tracea_gemm_tile* t) {
  vf c[MR][NV * P], b[NV * P];
  vm edge[P];
  UNROLL for (int j = 0; j < P; j++) edge[j] = first(t->last - j * W);
  UNROLL for (int j = 0; j < NV * P; j++) {
    b[j] = set1(0.0f);
    if (t->bias) {
      const float* bias = t->bias + j * W;
      b[j] = j / P == NV - 1 ? load(bias, edge[j % P]) : load(bias);
    }
    UNROLL for (int i = 0; i < MR; i++) c[i][j] = b[j];
  }

  const float* a = t->a;
  const float* row = t->b;
  const int64_t lda = t->lda, panel = t->b_panel, stride = t->b_row;
  const auto next = [&]() __attribute__((always_inline)) {
    if (EXACT) {
      UNROLL for (int j = 0; j < P; j++) b[j] = load(row + j * W, edge[j]);
    } else {
      load_row<NV>(b, row, panel);
    }
    step<MR, NV>(c, a, lda, b);
    a++;
    row += stride;
  };
  Prefetch prefetch = plan_prefetch(t);
  int64_t k = 0;
  for (; k + CHUNK <= t->k; k += CHUNK) {
    advance(prefetch);
    UNROLL for (int s = 0; s < CHUNK; s++) next();
  }
  for (; k < t->k; k++) next();

  const bool whole = t->last == PANEL;
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    float* to = t->c + i * t->ldc + j * W;
    if (j / P < NV - 1 || whole)
      store(to, c[i][j]);
    else
      store(to, c[i][j], edge[j % P]);
  }
}

constexpr tracea_gemm_fn TILE[8][3] = {
    {
        tile<1, 1, false>,
        tile<1, 2, false>,
        tile<1, 3, false>,
    },
    {
        tile<2, 1, false>,
        tile<2, 2, false>,
        tile<2, 3, false>,
    },
    {
        tile<3, 1, false>,
        tile<3, 2, false>,
        tile<3, 3, false>,
    },
    {
        tile<4, 1, false>,
        tile<4, 2, false>,
        tile<4, 3, false>,
    },
    {
        tile<5, 1, false>,
        tile<5, 2, false>,
        tile<5, 3, false>,
    },
    {
        tile<6, 1, false>,
        tile<6, 2, false>,
        tile<6, 3, false>,
    },
    {
        tile<7, 1, false>,
        tile<7, 2, false>,
        tile<7, 3, false>,
    },
    {
        tile<8, 1, false>,
        tile<8, 2, false>,
        tile<8, 3, false>,
    },
};
constexpr tracea_gemm_fn EXACT_TILE[8] = {
    tile<1, 1, true>,
    tile<2, 1, true>,
    tile<3, 1, true>,
    tile<4, 1, true>,
    tile<5, 1, true>,
    tile<6, 1, true>,
    tile<7, 1, true>,
    tile<8, 1, true>,
};
}  // namespace

TRACEA_API void tracea_f32_gemm_8x48__avx512(const tracea_gemm_tile* t) {
  if (!t->b_exact || t->last == PANEL) return TILE[t->mr - 1][t->nv - 1](t);
  const int32_t whole = t->nv - 1;
  tracea_gemm_tile part = *t;
  part.last = PANEL;
  part.nv = whole;
  if (whole > 0) TILE[t->mr - 1][whole - 1](&part);
  part.last = t->last;
  part.b += whole * t->b_panel;
  part.c += whole * PANEL;
  if (t->bias) part.bias += whole * PANEL;
  if (whole > 0) part.prefetch = nullptr;
  EXACT_TILE[t->mr - 1](&part);
}
