// tracea_f32_gemm_8x48__avx512
// tracea_f32_gemm_dot_8x48__avx512
// tracea_f32_gemm_pack_8x48__avx512
// f32 gemm for avx512, from gemm.cpp.in
// Generated, do not edit.
// One register tile of a matrix product: broadcast a column of A, multiply by a row of B, add.
// Beside it the same product for few rows over a matrix stored [N,K], and the packing of panels.
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
// Transposes and horizontal sums of 16 x 16 blocks.
INLINE vf unpack_pairs(vf a, vf b, int high) {
  const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(x, y) : _mm512_unpacklo_pd(x, y));
}

// Transposes 16 x 16.
INLINE void transpose_block(vf* a) {
  vf b[16];
  UNROLL for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_ps(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_ps(a[r], a[r + 1]);
  }
  // a[r + c]: column c, 4 + c, 8 + c, 12 + c of rows r .. r + 3, one per 128-bit lane.
  UNROLL for (int r = 0; r < 16; r += 4) UNROLL for (int c = 0; c < 4; c++)
    a[r + c] = unpack_pairs(b[r + c / 2], b[r + 2 + c / 2], c % 2);
  UNROLL for (int c = 0; c < 4; c++) {
    const vf low0 = _mm512_shuffle_f32x4(a[c], a[c + 4], 0x44);
    const vf low1 = _mm512_shuffle_f32x4(a[c + 8], a[c + 12], 0x44);
    const vf high0 = _mm512_shuffle_f32x4(a[c], a[c + 4], 0xee);
    const vf high1 = _mm512_shuffle_f32x4(a[c + 8], a[c + 12], 0xee);
    a[c] = _mm512_shuffle_f32x4(low0, low1, 0x88);
    a[c + 4] = _mm512_shuffle_f32x4(low0, low1, 0xdd);
    a[c + 8] = _mm512_shuffle_f32x4(high0, high1, 0x88);
    a[c + 12] = _mm512_shuffle_f32x4(high0, high1, 0xdd);
  }
}
// dst[c][r] = src[r][c], c < cols <= 16, r < 16; rows from `rows` on are zero.
INLINE void transpose(const float* src, int64_t stride, int rows, int cols, float* dst) {
  const vm m = first(cols);
  vf a[16];
  UNROLL for (int r = 0; r < 16; r++) a[r] = r < rows ? load(src + r * stride, m) : set1(0.0f);
  transpose_block(a);
  UNROLL for (int c = 0; c < 16; c++) if (c < cols) store(dst + c * 16, a[c]);
}
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
// The register tile of a product whose operands are read step by step of k.
// A look at the prefetch queue comes every CHUNK steps; the loop over them does two per iteration.

// Lines STEP bytes apart, requested at an even pace over the k loop.
template <int STEP, int LOCALITY>
struct Requests {
  const char* line;
  int64_t due, rate;  // in 1/65536 lines per chunk

  INLINE_MEMBER void advance() {
    for (due += rate; due >= 65536; due -= 65536, line += STEP)
      __builtin_prefetch(line, 0, LOCALITY);
  }
};

// Lines wanted next, and one of each page of those wanted after them.  Where a page is has to be
// looked up: between multiplications that costs nothing, between tiles the processor waits for it.
struct Prefetch {
  Requests<64, 2> lines;
  Requests<4096, 3> pages;
};

INLINE Prefetch spread_prefetch(const tracea_gemm_tile* t, int64_t chunks) {
  if (chunks == 0) return {};
  return {{t->prefetch, 32768, ((int64_t)t->prefetch_lines << 16) / chunks},
          {t->look_up, 32768, ((int64_t)t->look_up_pages << 16) / chunks}};
}

INLINE Prefetch plan_prefetch(const tracea_gemm_tile* t, int64_t chunk) {
  return spread_prefetch(t, t->k / chunk);
}

INLINE void advance(Prefetch& p) {
  p.lines.advance();
  p.pages.advance();
}

// A step of k in float32.
struct Plain {
  enum { CHUNK = 16 };
  template <int MR, int NV>
  static INLINE_MEMBER void run(vf (&c)[MR][NV * P], const float* a, int64_t lda,
                                const vf (&b)[NV * P]) {
    step<MR, NV>(c, a, lda, b);
  }
};

// EXACT: the one panel's columns past `last` may not be read.
template <int MR, int NV, bool EXACT, class STEP>
void tile(const tracea_gemm_tile* t) {
  vf c[MR][NV * P], b[NV * P];
  vm edge[P];
  UNROLL for (int j = 0; j < P; j++) edge[j] = first(t->last - j * W);
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    const float* from = t->init + i * t->init_stride + j * W;
    if (!t->init) c[i][j] = set1(0.0f);
    else c[i][j] = j / P == NV - 1 ? load(from, edge[j % P]) : load(from);
  }

  const float* a = t->a;
  const float* row = t->b;
  const int64_t lda = t->lda, step_a = t->a_step, panel = t->b_panel, stride = t->b_row;
  const auto next = [&]() __attribute__((always_inline)) {
    if (EXACT) {
      UNROLL for (int j = 0; j < P; j++) b[j] = load(row + j * W, edge[j]);
    } else {
      load_row<NV>(b, row, panel);
    }
    STEP::template run<MR, NV>(c, a, lda, b);
    a += step_a;
    row += stride;
  };
  // the lines of the results, long before they are written
  if (!t->streams) UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV; j++)
    __builtin_prefetch(t->c + i * t->ldc + j * PANEL, 1, 3);
  Prefetch prefetch = plan_prefetch(t, STEP::CHUNK);
  int64_t k = 0;
  for (; k + STEP::CHUNK <= t->k; k += STEP::CHUNK) {
    advance(prefetch);
    _Pragma("GCC unroll 2") for (int s = 0; s < STEP::CHUNK; s++) next();
  }
  for (; k < t->k; k++) next();

  const tracea_gemm_tile* end = opaque(t);  // edges made anew: the sums take all registers
  if (!EXACT) UNROLL for (int j = 0; j < P; j++) edge[j] = first(end->last - j * W);
  const bool whole = t->last == PANEL, streams = t->streams;
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    float* to = t->c + i * t->ldc + j * W;
    if (j / P < NV - 1 || whole)
      streams ? stream(to, c[i][j]) : store(to, c[i][j]);
    else
      store(to, c[i][j], edge[j % P]);
  }
}
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Products of few rows by a matrix stored [N,K]: vectors run along k, lanes are added at the end.
// Each output is summed in one order whatever the tile, so results do not depend on it.
enum { STREAMS = 4, NEAR = 4096 };  // floats

// Columns n, n + gap … of C for MR rows from `row` on.  Each of the NR streams goes through
// neighbouring rows of B in alternation: long runs of memory, which is what hardware prefetches.
template <int MR, int NR>
INLINE void dot(const tracea_gemm_dot_tile* t, int64_t row, int64_t n, int64_t gap) {
  vf c[MR][NR];
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NR; j++) c[i][j] = set1(0.0f);
  constexpr int64_t ahead = MR > 2 ? 1024 : 256;  // floats: memory's latency, at this pace
  const float *a = t->a + row * t->lda, *b = t->b + n * t->ldb;
  float* to = t->c + row * t->ldc + n;
  const int64_t lda = t->lda, stream = gap * t->ldb;
  int64_t k = 0;
  for (; k + W <= t->k; k += W) {
    vf x[MR];
    UNROLL for (int i = 0; i < MR; i++) x[i] = load(a + i * lda + k);
    UNROLL for (int j = 0; j < NR; j++) {
      const float* from = b + j * stream + k;
      if (W > 1) __builtin_prefetch(from + ahead, 0, 2);
      const vf y = load(from);
      UNROLL for (int i = 0; i < MR; i++) c[i][j] = fma(x[i], y, c[i][j]);
    }
  }
  if (k < t->k) {
    const vm rest = first(t->k - k);
    UNROLL for (int j = 0; j < NR; j++) {
      const vf y = load(b + j * stream + k, rest);
      UNROLL for (int i = 0; i < MR; i++) c[i][j] = fma(load(a + i * lda + k, rest), y, c[i][j]);
    }
  }
  UNROLL for (int i = 0; i < MR; i++) {
    vf four[STREAMS];
    float sum[STREAMS];
    UNROLL for (int j = 0; j < STREAMS; j++) four[j] = j < NR ? c[i][j % NR] : set1(0.0f);
    hreduce(four, sum);
    UNROLL for (int j = 0; j < NR; j++)
      to[i * t->ldc + j * gap] = t->bias ? sum[j] + t->bias[n + j * gap] : sum[j];
  }
}

// Columns [first, last) of every stream; with no gap these columns alone.
template <int MR>
void dot_rows(const tracea_gemm_dot_tile* t, int64_t row, int64_t first, int64_t last,
              int64_t gap) {
  constexpr int NR = MR > STREAMS ? STREAMS / 2 : STREAMS;  // all sums stay in registers
  for (int64_t n = first; n < last; n++) {
    if (!gap) dot<MR, 1>(t, row, n, 0);
    else
      for (int j = 0; j < STREAMS; j += NR) dot<MR, NR>(t, row, n + j * gap, gap);
  }
}
// Packing: a matrix of any strides into zero-padded panels of 16 columns.
enum { ROWS_AHEAD = 8 };

// Rows of B lie together: short runs of memory, which hardware does not prefetch.
void pack_rows(const tracea_gemm_pack_tile* t) {
  const int64_t whole = t->columns / PANEL * PANEL;
  for (int64_t k = 0; k < t->k; k++) {
    const float* from = t->from + k * t->row;
    float* to = t->to + k * PANEL;
    int64_t c = 0;
    if (W > 1)
      for (; c < t->columns; c += 16) __builtin_prefetch(from + ROWS_AHEAD * t->row + c, 0, 2);
    for (c = 0; c < whole; c += PANEL, to += t->panel)
      UNROLL for (int j = 0; j < P; j++) store(to + j * W, load(from + c + j * W));
    if (c < t->columns)
      UNROLL for (int j = 0; j < P; j++)
        store(to + j * W, load(from + c + j * W, first(t->columns - c - j * W)));
  }
}

// Columns of B lie together.
void pack_columns(const tracea_gemm_pack_tile* t) {
  for (int64_t c = 0; c < t->columns; c += PANEL) {
    const int wide = (int)least(PANEL, t->columns - c);
    float* to = t->to + c / PANEL * t->panel;
    for (int64_t k = 0; k < t->k; k += PANEL)
      transpose(t->from + c * t->column + k, t->column, wide, (int)least(PANEL, t->k - k),
                to + k * PANEL);
  }
}

void pack_any(const tracea_gemm_pack_tile* t) {
  for (int64_t c = 0; c < (t->columns + PANEL - 1) / PANEL * PANEL; c++) {
    float* to = t->to + c / PANEL * t->panel + c % PANEL;
    for (int64_t k = 0; k < t->k; k++)
      to[k * PANEL] = c < t->columns ? t->from[k * t->row + c * t->column] : 0.0f;
  }
}
constexpr tracea_gemm_fn TILE[8][3] = {
    {
        tile<1, 1, false, Plain>,
        tile<1, 2, false, Plain>,
        tile<1, 3, false, Plain>,
    },
    {
        tile<2, 1, false, Plain>,
        tile<2, 2, false, Plain>,
        tile<2, 3, false, Plain>,
    },
    {
        tile<3, 1, false, Plain>,
        tile<3, 2, false, Plain>,
        tile<3, 3, false, Plain>,
    },
    {
        tile<4, 1, false, Plain>,
        tile<4, 2, false, Plain>,
        tile<4, 3, false, Plain>,
    },
    {
        tile<5, 1, false, Plain>,
        tile<5, 2, false, Plain>,
        tile<5, 3, false, Plain>,
    },
    {
        tile<6, 1, false, Plain>,
        tile<6, 2, false, Plain>,
        tile<6, 3, false, Plain>,
    },
    {
        tile<7, 1, false, Plain>,
        tile<7, 2, false, Plain>,
        tile<7, 3, false, Plain>,
    },
    {
        tile<8, 1, false, Plain>,
        tile<8, 2, false, Plain>,
        tile<8, 3, false, Plain>,
    },
};
constexpr tracea_gemm_fn EXACT_TILE[8] = {
    tile<1, 1, true, Plain>,
    tile<2, 1, true, Plain>,
    tile<3, 1, true, Plain>,
    tile<4, 1, true, Plain>,
    tile<5, 1, true, Plain>,
    tile<6, 1, true, Plain>,
    tile<7, 1, true, Plain>,
    tile<8, 1, true, Plain>,
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
  if (t->init) part.init += whole * PANEL;
  if (whole > 0) part.prefetch_lines = part.look_up_pages = 0;
  EXACT_TILE[t->mr - 1](&part);
}

TRACEA_API void tracea_f32_gemm_dot_8x48__avx512(const tracea_gemm_dot_tile* t) {
  constexpr void (*ROWS[])(const tracea_gemm_dot_tile*, int64_t, int64_t, int64_t, int64_t) = {
      dot_rows<1>,
      dot_rows<2>,
      dot_rows<3>,
      dot_rows<4>,
  };
  const int64_t most = 4, blocks = (t->m + most - 1) / most, gap = t->n / STREAMS;
  // As many columns as stay in L1 for all rows, then the next: B comes from memory once.
  const int64_t together = NEAR / (STREAMS * t->k + 1) + 1;
  for (int64_t n = 0; n < t->n;) {
    const bool streams = n < gap;
    const int64_t end = streams ? least(gap, n + together) : t->n;
    for (int64_t b = 0, m = 0; b < blocks; b++) {
      const int64_t rows = t->m / blocks + (b < t->m % blocks);
      ROWS[rows - 1](t, m, n, end, streams ? gap : 0);
      m += rows;
    }
    n = streams && end == gap ? gap * STREAMS : end;
  }
}

TRACEA_API void tracea_f32_gemm_pack_8x48__avx512(const tracea_gemm_pack_tile* t) {
  if (t->column == 1) return pack_rows(t);
  if (t->row == 1) return pack_columns(t);
  pack_any(t);
}
