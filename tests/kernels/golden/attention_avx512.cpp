// tracea_f32_attention_24x256__avx512
// tracea_f32_attention_scratch_24x256__avx512
// tracea_f32_attention_ranges_24x256__avx512
// f32 attention for avx512, from attention.cpp.in
// Generated, do not edit.
// Scaled dot-product attention of heads that share keys: blocks of 24 queries by 256 keys, softmax
// kept running from block to block.  K is transposed and V copied into scratch first, unless there
// are few queries.
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
// 2^(i/16), i the low bits of `shifted`, by a table of the sixteenths of an octave.
INLINE vf power_of_sixteenths(vf shifted) {
  // 2^(j/16), less what i << 19 adds to it.
  const __m512i roots = _mm512_setr_epi32(
      0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532, 0x3f75fed7,
      0x3f75583f, 0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf,
      0x3f7ac0c7, 0x3f7d257d);
  const __m512i i = _mm512_castps_si512(shifted);
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_permutexvar_epi32(i, roots), _mm512_slli_epi32(i, 19)));
}
constexpr float SIXTEENTHS = 23.0831207f;    // of an octave: 16 / ln 2
constexpr float NO_POWER = -88.0296898f;     // -127 * 16 of them, whose power is 0
// e^x for x < 88: 6e-7 of the result, 0 from -88.03 on.  x = (i / 16) ln 2 + r; half of the steps
// are no multiplications.
INLINE vf v_exp_fast(vf x) {
  const vf magic = set1(12582912.0f), sixteenths = set1(SIXTEENTHS);
  x = max(set1(NO_POWER), x);
  const vf shifted = fma(x, sixteenths, magic);  // its low bits are i
  const vf r = fma(x, sixteenths, magic - shifted), power = power_of_sixteenths(shifted);
  return fma(power * r, fma(r, set1(9.38384503e-4f), set1(0.0433242321f)), power);
}
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
// e^x for x <= 0 with fewer steps: 1.5e-7 absolute; of the result 2.4e-7 for x > -20 (without
// fused multiply-add 1.3e-6); 0 for -inf.
INLINE vf v_exp_neg(vf x) {
  x = max(set1(EXP_LOW), x);
  const vf magic = set1(12582912.0f);
  const vf n = fma(x, set1(1.44269504f), magic) - magic;
  const vf r = fma(n, set1(-0.69314718f), x);
  return scale(poly(r, 1.0f, 1.0f, 0.49999148f, 0.16666457f, 0.041898314f, 0.0083746463f), n);
}
struct Ratio {  // several of them share a division
  vf top, under;
};
// tanh x = E / (E + 2), E = e^2x - 1 = 2^n (e^2h - 1) + (2^n - 1) with h = x - n ln 2 / 2: no
// digit cancels near zero, where n is 0.
INLINE Ratio tanh_ratio(vf x) {
  x = max(set1(-10.0f), min(set1(10.0f), x));
  const vf magic = set1(12582912.0f), one = set1(1.0f);
  const vf shifted = fma(x, set1(2.88539008f), magic);  // its low bits are n
  const vf h = fma(shifted - magic, set1(-0.346573590f), x);
  const vf p = poly(h, 1.99999988f, 1.33332193f, 0.666676581f, 0.267812312f, 0.0888449401f);
  const vf power = from_bits((vi)(((vu)bits(shifted) << 23) + 0x3f800000));
  const vf e = fma(power, fma(h * h, p, h + h), power - one);
  return {e, e + set1(2.0f)};
}
INLINE vf v_tanh(vf x) {
  const Ratio r = tanh_ratio(x);
  return r.top / r.under;
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
enum { QB = 24, KB = 256, QB_PADDED = 32 };
static_assert(QB == TRACEA_QUERIES, "ranges are by query block");
// Floats from one row of weights to the next.
enum { WEIGHTS = KB };
constexpr float INF = __builtin_inff(), LOWEST = -3.40282347e38f;
constexpr float NOTHING = 110.0f;  // e^-110 is 0 beside 1

#define OUTLINED
// What an attention tile reads: its scratch, and one head's keys and values packed where that pays.

INLINE int64_t padded(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Rows of values, and of weights along them: keys.
INLINE int64_t value_rows(int64_t keys) { return keys; }
INLINE int64_t value_row(int64_t key) { return key; }
INLINE int64_t stored_rows(int64_t keys) { return value_rows(keys); }
// Scratch, every part a multiple of 64 bytes: keys [panels][head][16], values
// [stored rows][padded v], scores [QB][KB], weights [QB][WEIGHTS], output sums [QB][padded v], a
// mask block [QB][KB].
struct Scratch {
  float *keys, *values, *scores, *weights, *sums, *mask;
};

INLINE Scratch layout(void* memory, int64_t keys, int64_t head, int64_t head_v) {
  Scratch s;
  s.keys = (float*)memory;
  s.values = s.keys + padded(keys) * head;
  s.scores = s.values + stored_rows(keys) * padded(head_v);
  s.weights = s.scores + QB * KB;
  s.sums = s.weights + QB * WEIGHTS;
  s.mask = s.sums + QB * padded(head_v);
  return s;
}

// One head: its keys and values ready to use.  `skips`: whether values of dropped keys may be left
// out (0 times infinity is not 0); `size`: a bound of |k|, infinite or NaN if there is none.
struct Head {
  const tracea_attention_tile* t;
  const float* q;
  const char* mask;
  char* y;
  const float* keys;    // packed, null if they are read in place
  const float* values;  // row r at r * width
  int64_t width;
  bool skips;
  float size;
};

// Asks for rows [first, end) of `bytes` bytes each, `step` bytes apart: short runs of memory, which
// hardware does not prefetch.
template <int WRITES = 0>
INLINE void ask_for(const void* from, int64_t first, int64_t end, int64_t step, int64_t bytes) {
  for (int64_t i = first; i < end; i++)
    for (int64_t at = 0; at < bytes; at += 64)
      __builtin_prefetch((const char*)from + i * step + at, WRITES, 3);
}

enum { AHEAD = 2 * PANEL };  // rows of keys and values asked for before they are packed

void pack_keys(const tracea_attention_tile* t, float* to) {
  const auto ask = [&](int64_t first) {
    ask_for(t->k, first, least(first + PANEL, t->keys), t->k_stride * 4, t->head * 4);
  };
  for (int64_t k = 0; k < AHEAD && t->k_col == 1; k += PANEL) ask(k);
  for (int64_t k = 0; k < t->keys; k += PANEL) {
    const int rows = (int)least(PANEL, t->keys - k);
    if (t->k_col == 1) ask(k + AHEAD);
    if (t->k_col != 1) {
      for (int64_t d = 0; d < t->head; d++)
        for (int j = 0; j < PANEL; j += W)
          store(to + k * t->head + d * PANEL + j, load(t->k + d * t->k_col + k + j, first(rows - j)));
      continue;
    }
    for (int64_t d = 0; d < t->head; d += PANEL) {
      const int cols = (int)least(PANEL, t->head - d);
      transpose(t->k + k * t->k_stride + d, t->k_stride, rows, cols, to + k * t->head + d * PANEL);
    }
  }
}

void pack_values(const tracea_attention_tile* t, float* to) {
  const int64_t width = padded(t->head_v);
  for (int64_t k = 0; k < t->keys; k++)
    for (int64_t d = 0; d < width; d += W)
      store(to + k * width + d, load(t->v + k * t->v_stride + d, first(t->head_v - d)));
}

INLINE vf size_of(vf x) { return abs(x); }
INLINE vf value_of(vf x, int64_t) { return x; }
// The sum of |x| over rows: NaN or infinite if any element is.
float total_size(const float* x, int64_t rows, int64_t cols, int64_t stride) {
  if (stride == cols) cols *= rows, rows = 1;
  vf total[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  for (int64_t i = 0; i < rows; i++, x += stride) {
    int64_t j = 0;
    for (; j + 4 * W <= cols; j += 4 * W)
      UNROLL for (int v = 0; v < 4; v++) total[v] = total[v] + size_of(load(x + j + v * W));
    for (; j < cols; j += W) total[0] = total[0] + size_of(load(x + j, first(cols - j)));
  }
  return reduce_add((total[0] + total[1]) + (total[2] + total[3]));
}

// Keys and values of the tile, packed where that pays.
Head prepare(const tracea_attention_tile* t, const Scratch& s) {
  Head h = {t, t->q, (const char*)t->mask, (char*)t->y, s.keys, s.values, padded(t->head_v), false, 0.0f};
  const bool direct = t->direct && t->k_col == 1;
  if (direct)
    h.keys = nullptr;
  else
    pack_keys(t, s.keys);
  const bool in_place = t->head_v % PANEL == 0 && (direct || t->v_stride == t->head_v);
  if (in_place) h.values = t->v, h.width = t->v_stride;
  else pack_values(t, s.values);
  if (!direct && (t->causal || t->mask_kind || t->window_left >= 0 || t->spans)) {
    h.skips = total_size(h.values, value_rows(t->keys), padded(t->head_v), h.width) < INF;
    if (t->mask_kind == 1) h.size = total_size(s.keys, padded(t->keys) / PANEL, t->head * PANEL, t->head * PANEL);
  }
  return h;
}
// Blocks of scores: scale * q k^T, capped, masked and cut by the order of keys.

// The mask of the current block: row i, key k at data + i * row + k.  DROP keeps the scores
// where it is +inf and takes their place elsewhere; ADD is added.
enum MaskKind { NONE, ADD, DROP };
struct Mask {
  MaskKind kind;
  const float* data;
  int64_t row;
};

INLINE Mask block_mask(const Head& h, const Scratch& s, int64_t q, int64_t queries, int64_t k,
                       int64_t keys) {
  const tracea_attention_tile* t = h.t;
  if (t->mask_kind == 0) return {NONE, s.mask, 0};
  if (t->mask_kind == 1 && t->mask_col == 1)
    return {ADD, (const float*)h.mask + q * t->mask_row + k, t->mask_row};
  const int64_t rows = t->mask_row ? queries : 1;
  const float fill = t->fill;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t at = (q + i) * t->mask_row + k * t->mask_col;
    const float* add = (const float*)h.mask + at;
    const uint8_t* keep = (const uint8_t*)h.mask + at;
    float* to = s.mask + i * KB;
    for (int64_t j = 0; j < keys; j++)
      to[j] = t->mask_kind == 1 ? add[0] : keep[j * t->mask_col] ? INF : fill;
  }
  return {t->mask_kind == 1 ? ADD : DROP, s.mask, t->mask_row ? KB : 0};
}

// What becomes of raw scores: row i of the block sees `seen + i * step` keys from its first column
// on, others score `fill` (before the mask is added); -inf from column `cols` on.
struct Masking {
  Mask mask;
  float fill;
  int64_t seen, step, cols;
};

INLINE Masking part_of(const Masking& m, int64_t row, int64_t col) {
  const Mask mask = {m.mask.kind, m.mask.data + row * m.mask.row + col, m.mask.row};
  const int64_t seen = m.seen == INT64_MAX ? m.seen : m.seen + row * m.step - col;
  return {mask, m.fill, seen, m.step, m.cols - col};
}

INLINE bool sees_all(const Masking& m, int64_t cols) { return least(m.seen, m.cols) >= cols; }

// scores[MR x 16 NV] = scale * q k^T, masked.  top[i] collects each row's maximum, lane by lane.
struct ScoreBlock {
  int64_t head;
  const float* q;
  int64_t q_stride;
  const float* keys;
  float scale;
  Masking m;
  float* scores;
  vf* top;
};

// Scaled scores [rows x cols] that lie there already, capped first if there is a cap.
void mask_scores(const Masking& m, float softcap, int64_t rows, int64_t cols, float* scores,
                 vf* top) {
  const bool cuts = m.seen < cols;
  for (int64_t i = 0; i < rows; i++) {
    vf high = top[i];
    for (int64_t k = 0; k < cols; k += W) {
      const vm inside = first(m.cols - k);
      vf v = load(scores + i * KB + k), other = set1(m.fill);
      if (softcap != 0.0f) v = set1(softcap) * v_tanh(v / set1(softcap));
      if (m.mask.kind != NONE) {
        const vf add = load(m.mask.data + i * m.mask.row + k, inside);
        other = m.mask.kind == ADD ? other + add : min(other, add);
        v = m.mask.kind == ADD ? v + add : select(less(add, set1(INF)), add, v);
      }
      if (cuts) v = select(first(m.seen + i * m.step - k), v, other);
      v = select(inside, v, set1(-INF));
      store(scores + i * KB + k, v);
      high = max(v, high);
    }
    top[i] = high;
  }
}

// c = q k^T of one tile.
template <int MR, int NV>
INLINE void multiply(const ScoreBlock& s, vf (&c)[MR][NV * P]) {
  vf b[NV * P];
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = set1(0.0f);
  for (int64_t d = 0; d < s.head; d++) {
    load_row<NV>(b, s.keys + d * PANEL, s.head * PANEL);
    step<MR, NV>(c, s.q + d, s.q_stride, b);
  }
}

// Makes scores of products: in registers where every key of the tile is seen, else (false) where
// the block's scores lie.
template <int MR, int NV>
INLINE bool mask_tile(const ScoreBlock& s, vf (&c)[MR][NV * P]) {
  const vf scale = set1(s.scale);
  const Mask mask = s.m.mask;
  const bool all = sees_all(s.m, NV * PANEL);
  if (all && mask.kind == ADD) {
    UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
      c[i][j] = fma(c[i][j], scale, load(mask.data + i * mask.row + j * W));
    return true;
  }
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
    c[i][j] = c[i][j] * scale;
  if (all && mask.kind == NONE) return true;
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
    store(s.scores + i * KB + j * W, c[i][j]);
  mask_scores(s.m, 0.0f, MR, NV * PANEL, s.scores, s.top);
  return false;
}

template <int MR, int NV>
OUTLINED void score(const ScoreBlock& s) {
  vf c[MR][NV * P];
  multiply<MR, NV>(s, c);
  if (!mask_tile<MR, NV>(s, c)) return;
  UNROLL for (int i = 0; i < MR; i++) {
    vf high = s.top[i];
    UNROLL for (int j = 0; j < NV * P; j++) {
      store(s.scores + i * KB + j * W, c[i][j]);
      high = max(c[i][j], high);
    }
    s.top[i] = high;
  }
}
// Windows: a query sees the keys near its own place, and those everybody sees.
struct Span {
  int64_t low, high;
};

// The place of row i of the tile among the keys.
INLINE int64_t place_of(const tracea_attention_tile* t, int64_t i) {
  return t->seen - 1 + i * t->seen_step;
}

// Does a row at this place see a key?
INLINE bool is_near(const tracea_attention_tile* t, int64_t place, int64_t key) {
  return t->window_left < 0 || place < t->global_keys || key < t->global_keys ||
         (key >= place - t->window_left && key <= place + t->window_right);
}

// Keys that rows [q, q + rows) see beside those everybody sees, in whole panels.
Span window_span(const tracea_attention_tile* t, int64_t q, int64_t rows) {
  const int64_t first = place_of(t, q), last = place_of(t, q + rows - 1);
  if (t->window_left < 0 || first < t->global_keys) return {0, t->keys};
  const int64_t high = least(t->keys, padded(most(0, last + t->window_right + 1)));
  return {least(high, most(0, first - t->window_left) / PANEL * PANEL), high};
}

// The mask of a block with -inf outside the window; as it was if all is inside.
Mask window_mask(const Head& h, const Scratch& s, int64_t q, int64_t rows, int64_t k, int64_t keys,
                 Mask mask) {
  const tracea_attention_tile* t = h.t;
  if (t->window_left < 0) return mask;
  const bool inside = place_of(t, q) + t->window_right >= k + keys - 1 &&
                      place_of(t, q + rows - 1) - t->window_left <= k;
  if (inside) return mask;
  for (int64_t i = rows; i-- > 0;) {  // the first row last: others may be read from it
    const int64_t place = place_of(t, q + i);
    const float* from = mask.data + i * mask.row;
    float* to = s.mask + i * KB;
    for (int64_t j = 0; j < keys; j++) {
      to[j] = !is_near(t, place, k + j) ? -INF : mask.kind == NONE ? INF : from[j];
    }
  }
  return {mask.kind == NONE ? DROP : mask.kind, s.mask, KB};
}

// The spans of keys that row `row` of the tile sees; none if there are no tiles.
struct Spans {
  const tracea_attention_span *first, *end;
};

INLINE Spans spans_of(const tracea_attention_tile* t, int64_t row) {
  if (!t->spans) return {nullptr, nullptr};
  const int64_t* start = t->starts + (t->first_query + row * t->seen_step) / t->tile_rows;
  return {t->spans + start[0], t->spans + start[1]};
}

// Rows from `q` on that are in one row of tiles, at most `rows`.
INLINE int64_t rows_together(const tracea_attention_tile* t, int64_t q, int64_t rows) {
  if (!t->spans || !t->seen_step) return rows;
  return least(rows, t->tile_rows - (t->first_query + q) % t->tile_rows);
}

// Is a key in an active tile of a row?
INLINE bool in_tiles(const tracea_attention_tile* t, int64_t row, int64_t key) {
  if (!t->tiles_mask) return true;
  const Spans s = spans_of(t, row);
  for (const tracea_attention_span* at = s.first; at < s.end; at++)
    if (key >= at->low && key < at->high) return true;
  return false;
}

// The mask of a block with -inf outside the active tiles; as it was if all is inside.
Mask tile_mask(const Head& h, const Scratch& s, int64_t q, int64_t rows, int64_t k, int64_t keys,
               Mask mask) {
  const tracea_attention_tile* t = h.t;
  if (!t->tiles_mask) return mask;
  const Spans spans = spans_of(t, q);  // the same for all rows of a block
  for (const tracea_attention_span* at = spans.first; at < spans.end; at++)
    if (k >= at->low && k + keys <= at->high) return mask;
  for (int64_t i = rows; i-- > 0;) {  // the first row last: others may be read from it
    const float* from = mask.data + i * mask.row;
    float* to = s.mask + i * KB;
    int64_t j = 0;
    const auto drop_until = [&](int64_t end) {
      for (; j < end; j++) to[j] = -INF;
    };
    for (const tracea_attention_span* at = spans.first; at < spans.end; at++) {
      drop_until(least(at->low - k, keys));
      for (; j < least(at->high - k, keys); j++) to[j] = mask.kind == NONE ? INF : from[j];
    }
    drop_until(keys);
  }
  return {mask.kind == NONE ? DROP : mask.kind, s.mask, KB};
}

// What becomes of the block's scores.
Masking block_masking(const Head& h, const Scratch& s, int64_t q, int64_t rows, int64_t k,
                      int64_t keys) {
  const tracea_attention_tile* t = h.t;
  const Mask near = window_mask(h, s, q, rows, k, keys, block_mask(h, s, q, rows, k, keys));
  const Mask mask = tile_mask(h, s, q, rows, k, keys, near);
  const int64_t seen = t->seen + q * t->seen_step - k;
  return {mask, t->fill, t->causal ? seen : INT64_MAX, t->causal ? t->seen_step : 0, keys};
}
// Which keys a block of queries has to look at.
constexpr float ABSORBING = -1e30f;  // a mask that swallows any score below CALM
constexpr float CALM = 1e20f;

// Keys [low, high) may matter to these rows, and of them only those in tiles, if `tiles`; what the
// others of their span score is at most `bound`.
struct Range {
  int64_t low, high;
  float bound;
  bool tiles;
};

// Does the mask drop all of `keys` keys from element `at` on, with bytes of 0, or by adding `limit`
// or less?  A NaN drops nothing.
INLINE bool drops(const Head& h, int64_t at, int64_t keys, float limit = ABSORBING) {
  if (h.t->mask_kind != 1) {
    const uint8_t* keep = (const uint8_t*)h.mask + at;
    uint8_t any = 0;
    for (int64_t j = 0; j < keys; j++) any |= keep[j];
    return !any;
  }
  const float* add = (const float*)h.mask + at;
  vf high = set1(-INF);
  for (int64_t j = 0; j < keys; j += W) {
    const vf v = select(first(keys - j), load(add + j, first(keys - j)), set1(-INF));
    high = select(is_nan(v), set1(INF), max(v, high));
  }
  return reduce_max(high) <= limit;
}

enum { STRETCH = 256 };  // keys looked at together: masks are read row by row, as they lie

// The first key of [low, high) that any row may see, down to a whole panel.
int64_t first_seen(const Head& h, int64_t q, int64_t rows, int64_t low, int64_t high) {
  for (int64_t i = 0; i < (h.t->mask_row ? rows : 1); i++) {
    const int64_t row = (q + i) * h.t->mask_row;
    int64_t k = low;
    while (k < high && drops(h, row + k, least(STRETCH, high - k))) k += STRETCH;
    while (k < high && drops(h, row + k, least(PANEL, high - k))) k += PANEL;
    high = least(k, high);
  }
  return high;
}

// The end of the last panel of [low, high) of which any row may see a key.
int64_t last_seen(const Head& h, int64_t q, int64_t rows, int64_t low, int64_t high) {
  const auto shrink = [&](int64_t row, int64_t k, int64_t step) {
    while (k > low) {
      const int64_t start = most(low, (k - 1) / step * step);
      if (!drops(h, row + start, k - start)) break;
      k = start;
    }
    return k;
  };
  for (int64_t i = 0; i < (h.t->mask_row ? rows : 1); i++) {
    const int64_t row = (q + i) * h.t->mask_row;
    low = shrink(row, shrink(row, high, STRETCH), PANEL);
  }
  return low;
}

// The largest element of an additive mask over rows x keys.
float largest(const Head& h, int64_t q, int64_t rows, int64_t k, int64_t keys) {
  const tracea_attention_tile* t = h.t;
  vf high = set1(-INF);
  for (int64_t i = 0; i < (t->mask_row ? rows : 1); i++)
    for (int64_t j = 0; j < keys; j += W) {
      const int64_t at = (q + i) * t->mask_row + (k + j) * t->mask_col;
      const vm m = first(t->mask_col ? keys - j : 1);
      high = max(select(m, load((const float*)h.mask + at, m), set1(-INF)), high);
    }
  return reduce_max(high);
}

// The end of the keys in order for the last of these rows.
INLINE int64_t order_end(const tracea_attention_tile* t, int64_t q, int64_t rows, Span span) {
  const int64_t seen = t->seen + (q + rows - 1) * t->seen_step;
  return t->causal ? most(span.low, least(padded(most(seen, 0)), span.high)) : span.high;
}

// What the mask alone says about these rows.
tracea_attention_range mask_range(const Head& h, int64_t q, int64_t rows, Span span) {
  const tracea_attention_tile* t = h.t;
  tracea_attention_range r = {span.low, order_end(t, q, rows, span), -INF};
  if (t->mask_kind == 1 && r.high < span.high)
    r.beyond = largest(h, q, rows, r.high, span.high - r.high);
  if (t->mask_kind == 0 || t->mask_col == 0) return r;
  r.low = first_seen(h, q, rows, r.low, r.high);
  r.high = last_seen(h, q, rows, r.low, r.high);
  return r;
}

// A bound of the size of these rows' scores: infinite or NaN if there is none.
INLINE float score_bound(const Head& h, int64_t q, int64_t rows) {
  const tracea_attention_tile* t = h.t;
  const float size = total_size(h.q + q * t->q_stride, rows, t->head, t->q_stride);
  return size * h.size * (t->scale < 0.0f ? -t->scale : t->scale);
}

Range range_of(const Head& h, int64_t q, int64_t rows, Span span) {
  const tracea_attention_tile* t = h.t;
  Range r = {span.low, span.high, -INF, h.skips && t->tiles_mask};
  if (!h.skips) return r;
  if (t->spans && !t->tiles_mask) {  // without an order or windows
    const float size = t->mask_kind == 1 ? score_bound(h, q, rows) : 0.0f;
    r.tiles = size < CALM;
    r.bound = r.tiles ? (t->mask_kind == 1 ? t->beyond + size : t->fill) : -INF;
    if (r.tiles) return r;
  }
  r.high = order_end(t, q, rows, span);
  const tracea_attention_range seen = t->ranges ? t->ranges[q / QB] : mask_range(h, q, rows, span);
  if (t->mask_kind == 2 || (t->causal && t->mask_kind == 0)) r.bound = t->fill;
  if (t->mask_kind == 1 && r.high < span.high) r.bound = t->fill + seen.beyond;
  if (t->mask_kind == 0 || t->mask_col == 0) return r;
  if (t->mask_kind == 1) {
    if (!(score_bound(h, q, rows) < CALM)) return r;
  }
  const int64_t high = r.high;
  r.low = seen.low, r.high = seen.high;
  if (t->mask_kind == 1 && (r.low > span.low || r.high < high) && !(r.bound > ABSORBING + CALM))
    r.bound = ABSORBING + CALM;
  return r;
}
// Stores N vectors of weights side by side.
template <int N>
INLINE void store_weights(float* row, const vf (&e)[N]) {
  UNROLL for (int j = 0; j < N; j++) store(row + j * W, e[j]);
}

// Softmax in one sweep: scores become weights e^(score - base) while they are still in registers,
// where a row's base is its largest score among the first panel of keys.  Softmax is the same for
// any base; that weights grow too large for this one shows in their sum.
constexpr float SCARCE = -1e29f;            // of a base: the first panel is masked
constexpr float HIGHEST = 41.5888308f;      // 60 ln 2: differences beyond it are cut
constexpr float ABUNDANT = 5.76460752e17f;  // 2^59: of a sum: differences may have been cut

// A tile of weights, one a lane.
struct WeightBlock {
  ScoreBlock scores;  // its `top` is not used
  float* weights;     // a row every WEIGHTS
  bool first;         // the tile begins with the first panel: bases come of it
  float* base;        // of each row
  vf* total;          // of each row's weights so far, lane by lane
};

template <int MR, int NV>
OUTLINED void weigh_at_once(const WeightBlock& s) {
  vf c[MR][NV * P];
  multiply<MR, NV>(s.scores, c);
  if (!mask_tile<MR, NV>(s.scores, c))
    UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
      c[i][j] = load(s.scores.scores + i * KB + j * W);
  if (s.first)
    UNROLL for (int i = 0; i < MR; i++) {
      vf high = c[i][0];
      UNROLL for (int j = 1; j < P; j++) high = max(c[i][j], high);
      s.base[i] = reduce_max(high);
    }
  UNROLL for (int i = 0; i < MR; i++) {
    const vf base = set1(s.base[i]);
    vf total = s.total[i];
    UNROLL for (int j = 0; j < NV * P; j++) {
      c[i][j] = v_exp_fast(min(set1(HIGHEST), c[i][j] - base));
      total = total + c[i][j];
    }
    store_weights(s.weights + i * WEIGHTS, c[i]);
    s.total[i] = total;
  }
}
// sums[MR x 16 NV] = sums * decay + weights[MR x keys] values[keys x 16 NV]; decay null: sums = 0.
struct SumBlock {
  int64_t rows;          // of values
  const float* weights;
  int64_t weights_row;
  const float* values;
  int64_t values_width;
  float* sums;
  int64_t width;
  const float* decay;
};

template <int MR, int NV>
INLINE void begin_sums(const SumBlock& s, vf (&c)[MR][NV * P]) {
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
    c[i][j] = s.decay ? load(s.sums + i * s.width + j * W) * set1(s.decay[i]) : set1(0.0f);
}

template <int MR, int NV>
INLINE void end_sums(const SumBlock& s, const vf (&c)[MR][NV * P]) {
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
    store(s.sums + i * s.width + j * W, c[i][j]);
}

// One step of k at row `k` of the values.
template <int MR, int NV>
INLINE void add_row(const SumBlock& s, int64_t k, vf (&c)[MR][NV * P]) {
  vf b[NV * P];
  load_row<NV>(b, s.values + k * s.values_width, PANEL);
  step<MR, NV>(c, s.weights + k, s.weights_row, b);
}

template <int MR, int NV>
OUTLINED void accumulate(const SumBlock& s) {
  vf c[MR][NV * P];
  begin_sums<MR, NV>(s, c);
  for (int64_t k = 0; k < s.rows; k++) add_row<MR, NV>(s, k, c);
  end_sums<MR, NV>(s, c);
}

// Register tiles, largest first; any block is covered by some of each.
constexpr int ROWS[] = {6, 4, 2, 1}, PANELS[] = {4, 2, 1};
constexpr void (*SCORE[][3])(const ScoreBlock&) = {
    {
        score<6, 4>,
        score<6, 2>,
        score<6, 1>,
    },
    {
        score<4, 4>,
        score<4, 2>,
        score<4, 1>,
    },
    {
        score<2, 4>,
        score<2, 2>,
        score<2, 1>,
    },
    {
        score<1, 4>,
        score<1, 2>,
        score<1, 1>,
    },
};
constexpr void (*WEIGH_AT_ONCE[][3])(const WeightBlock&) = {
    {
        weigh_at_once<6, 4>,
        weigh_at_once<6, 2>,
        weigh_at_once<6, 1>,
    },
    {
        weigh_at_once<4, 4>,
        weigh_at_once<4, 2>,
        weigh_at_once<4, 1>,
    },
    {
        weigh_at_once<2, 4>,
        weigh_at_once<2, 2>,
        weigh_at_once<2, 1>,
    },
    {
        weigh_at_once<1, 4>,
        weigh_at_once<1, 2>,
        weigh_at_once<1, 1>,
    },
};
constexpr void (*ACCUMULATE[][3])(const SumBlock&) = {
    {
        accumulate<6, 4>,
        accumulate<6, 2>,
        accumulate<6, 1>,
    },
    {
        accumulate<4, 4>,
        accumulate<4, 2>,
        accumulate<4, 1>,
    },
    {
        accumulate<2, 4>,
        accumulate<2, 2>,
        accumulate<2, 1>,
    },
    {
        accumulate<1, 4>,
        accumulate<1, 2>,
        accumulate<1, 1>,
    },
};
// Calls body(i, row tile, j, panel tile) for register tiles that cover rows x panels.
template <typename Body>
INLINE void cover(int64_t rows, int64_t panels, Body body) {
  for (int64_t j = 0; j < panels;) {
    int n = 0;
    while (PANELS[n] > panels - j) n++;
    for (int64_t i = 0; i < rows;) {
      int m = 0;
      while (ROWS[m] > rows - i) m++;
      body(i, m, j, n);
      i += ROWS[m];
    }
    j += PANELS[n];
  }
}
// Keys and values that a few queries read where they lie: row after row, whole rows where registers
// hold enough sums.  Memory read in order arrives about twice as fast as that of many rows at once.

// sums[i][0] = lanes of the products of R queries with a key.
template <int R>
INLINE void multiply_key(const tracea_attention_tile* t, const float* key, const float* q,
                         vf (*sums)[W]) {
  vf a[R];
  UNROLL for (int i = 0; i < R; i++) a[i] = set1(0.0f);
  int64_t d = 0;
  for (; d + W <= t->head; d += W) {
    const vf x = load(key + d);
    UNROLL for (int i = 0; i < R; i++) a[i] = fma(x, load(q + i * t->q_stride + d), a[i]);
  }
  if (d < t->head) {
    const vm m = first(t->head - d);
    const vf x = load(key + d, m);
    UNROLL for (int i = 0; i < R; i++) a[i] = fma(x, load(q + i * t->q_stride + d, m), a[i]);
  }
  UNROLL for (int i = 0; i < R; i++) sums[i][0] = a[i];
}

// scores[rows x keys] = scale * q k^T, zeros up to a whole panel.
void score_in_place(const tracea_attention_tile* t, const float* q, int64_t rows, int64_t k,
                    int64_t keys, float* scores) {
  vf sums[QB][W];
  for (int64_t j = 0; j < padded(keys); j += W) {
    for (int64_t w = 0; w < W; w++) {
      const float* key = t->k + (k + j + w) * t->k_stride;
      const auto at = [&](int64_t i) { return (vf(*)[W])&sums[i][w]; };
      int64_t i = 0;
      if (j + w >= keys)
        for (; i < rows; i++) sums[i][w] = set1(0.0f);
      for (; i + 4 <= rows; i += 4) multiply_key<4>(t, key, q + i * t->q_stride, at(i));
      for (; i + 2 <= rows; i += 2) multiply_key<2>(t, key, q + i * t->q_stride, at(i));
      for (; i < rows; i++) multiply_key<1>(t, key, q + i * t->q_stride, at(i));
    }
    for (int64_t i = 0; i < rows; i++)
      store(scores + i * KB + j, hreduce(sums[i]) * set1(t->scale));
  }
}

// Adds values, weighted by scores, to the sums of `rows` rows and `panels` panels.
void add_in_place(const SumBlock& s, int64_t rows, int64_t panels) {
  const auto part = [&](int64_t i, int64_t j) {
    return SumBlock{s.rows, s.weights + i * s.weights_row, s.weights_row, s.values + j * PANEL,
                    s.values_width, s.sums + i * s.width + j * PANEL, s.width,
                    s.decay ? s.decay + i : nullptr};
  };
  int64_t j = 0;
  for (; j + 8 <= panels; j += 8) {
    int64_t i = 0;
    for (; i + 2 <= rows; i += 2) accumulate<2, 8>(part(i, j));
    for (; i + 1 <= rows; i += 1) accumulate<1, 8>(part(i, j));
  }
  cover(rows, panels - j, [&](int64_t i, int m, int64_t column, int n) {
    ACCUMULATE[m][n](part(i, j + column));
  });
}
// What a query block remembers between key blocks: each row's maximum and sum of exponentials.
struct Running {
  float top[QB_PADDED], total[QB_PADDED], decay[QB_PADDED];
};

// Takes up a block's maxima: what was summed before shrinks by `decay`.
void raise(const vf* top, int64_t rows, Running& run) {
  float before[QB_PADDED];
  for (int64_t i = 0; i < QB_PADDED; i++) before[i] = run.top[i];
  for (int64_t i = 0; i < rows; i++) {
    const float high = reduce_max(top[i]);
    if (high > run.top[i]) run.top[i] = high;
  }
  for (int64_t i = 0; i < rows; i += W)
    store(run.decay + i, v_exp_fast(load(before + i) - load(run.top + i)));
}

// Scores [rows x keys], `scale` times what lies there, become weights.
void weigh_rows(int64_t rows, int64_t keys, float scale, float* scores, Running& run, bool fresh) {
  const vf factor = set1(scale);
  for (int64_t i = 0; i < rows; i++) {
    float* row = scores + i * KB;
    const vf top = set1(-run.top[i]);
    const auto weight = [&](int64_t k) __attribute__((always_inline)) {
      return v_exp_fast(fma(load(row + k), factor, top));
    };
    vf total = set1(0.0f);
    for (int64_t k = 0; k < padded(keys); k += 2 * W) {
      const vf e[2] = {weight(k), k + W < padded(keys) ? weight(k + W) : set1(0.0f)};
      store_weights(row + k * WEIGHTS / KB, e);
      total = total + e[0] + e[1];
    }
    run.total[i] = run.total[i] * (fresh ? 0.0f : run.decay[i]) + reduce_add(total);
  }
}

// What a query's row of y is, from what its softmax came to.
// A tile's `zero_rows`.
enum ZeroRows { ZERO_NONE, ZERO_GUARDED, ZERO_MASKED, ZERO_LOWEST, ZERO_INFINITE };
enum Outcome { WEIGHED, ZEROS, NOT_A_NUMBER };

// Is every key of a row out of the window or the tiles, or has it `limit` or less added or in its score's place?
bool all_masked(const Head& h, int64_t row, float limit) {
  const tracea_attention_tile* t = h.t;
  const bool fills = t->fill <= limit;
  if (t->window_left < 0 && !t->tiles_mask) {
    const int64_t seen = t->seen + row * t->seen_step;
    const int64_t keys = fills && t->causal ? most(0, least(seen, t->keys)) : t->keys;
    const bool masks = t->mask_kind == 1 || (t->mask_kind == 2 && fills);
    return !keys || (masks && drops(h, row * t->mask_row, t->mask_col ? keys : 1, limit));
  }
  for (int64_t k = 0; k < t->keys; k++) {
    const int64_t at = row * t->mask_row + k * t->mask_col;
    bool masked = !is_near(t, place_of(t, row), k) || !in_tiles(t, row, k);
    masked |= fills && t->causal && k >= t->seen + row * t->seen_step;
    masked |= fills && t->mask_kind == 2 && !h.mask[at];
    masked |= t->mask_kind == 1 && ((const float*)h.mask)[at] <= limit;
    if (!masked) return false;
  }
  return true;
}

// A row with a score above LOWEST and without a NaN is weighed; all others are looked at here.
INLINE Outcome outcome(const Head& h, int64_t row, float top, float total) {
  const tracea_attention_tile* t = h.t;
  if (top > LOWEST && total < INF) return WEIGHED;
  if (!t->keys) return ZEROS;
  if (t->zero_rows == ZERO_MASKED && all_masked(h, row, LOWEST)) return ZEROS;
  if (t->zero_rows == ZERO_INFINITE && all_masked(h, row, -INF)) return ZEROS;
  if (t->zero_rows == ZERO_LOWEST && total < INF && t->keys > 1) return ZEROS;
  if (total > 0.0f) return WEIGHED;
  return t->zero_rows == ZERO_GUARDED ? ZEROS : NOT_A_NUMBER;
}

// Sums of 0 times the values of all keys a row has in its window: NaN where one is not finite.
vf zeros_of(const Head& h, int64_t row, int64_t d, vm m) {
  const int64_t place = place_of(h.t, row);
  vf sum = set1(0.0f);
  for (int64_t k = 0; k < h.t->keys; k++)
    if (is_near(h.t, place, k))
      sum = fma(value_of(load(h.values + value_row(k) * h.width + d, m), k), set1(0.0f), sum);
  return sum;
}

// The rows of y that are `due`: y = sums / total where scores were weighed.
void finish(const Head& h, const Scratch& s, int64_t q, int64_t rows, const Running& run,
            const bool* due) {
  const tracea_attention_tile* t = h.t;
  const int64_t width = padded(t->head_v);
  for (int64_t i = 0; i < rows; i++) {
    if (!due[i]) continue;
    const Outcome is = outcome(h, q + i, run.top[i], run.total[i]);
    const vf factor = set1(1.0f / run.total[i]);
    for (int64_t d = 0; d < t->head_v; d += W) {
      const vm m = first(t->head_v - d);
      vf y = load(s.sums + i * width + d) * factor;
      if (is == NOT_A_NUMBER) y = set1(__builtin_nanf(""));
      if (is == ZEROS) y = h.skips ? set1(0.0f) : zeros_of(h, q + i, d, m);
      const int64_t at = (q + i) * t->y_stride + d;
      store((float*)h.y + at, y, m);
    }
  }
}

// One block of scores and what it adds to the sums.
void key_block(const Head& h, const Scratch& s, int64_t q, int64_t rows, int64_t k, int64_t keys,
               bool fresh, Running& run) {
  const tracea_attention_tile* t = h.t;
  const float* from = h.q + q * t->q_stride;
  const int64_t width = padded(t->head_v);
  const Masking masking = block_masking(h, s, q, rows, k, keys);
  const bool later = !h.keys || t->softcap != 0.0f;
  const Masking bare = {{NONE, s.mask, 0}, 0.0f, INT64_MAX, 0, keys};
  vf top[QB], unused[QB];
  for (int64_t i = 0; i < QB; i++) top[i] = unused[i] = set1(-INF);
  if (!h.keys) score_in_place(t, from, rows, k, keys, s.scores);
  else
    cover(rows, padded(keys) / PANEL, [&](int64_t i, int m, int64_t j, int n) {
      const int64_t col = j * PANEL;
      SCORE[m][n]({t->head, from + i * t->q_stride, t->q_stride, h.keys + (k + col) * t->head,
                   t->scale, part_of(later ? bare : masking, i, col), s.scores + i * KB + col,
                   (later ? unused : top) + i});
    });
  if (later) mask_scores(masking, t->softcap, rows, padded(keys), s.scores, top);
  raise(top, rows, run);
  weigh_rows(rows, keys, 1.0f, s.scores, run, fresh);
  if (!h.keys)
    return add_in_place({keys, s.scores, KB, h.values + k * h.width, h.width, s.sums, width,
                         fresh ? nullptr : run.decay}, rows, width / PANEL);
  cover(rows, width / PANEL, [&](int64_t i, int m, int64_t j, int n) {
    ACCUMULATE[m][n]({value_rows(keys), s.scores + i * KB, KB,
                      h.values + value_rows(k) * h.width + j * PANEL, h.width,
                      s.sums + i * width + j * PANEL, width, fresh ? nullptr : run.decay + i});
  });
}

// The same for scores that become weights at once; `run.top` holds the rows' bases.
void key_block_at_once(const Head& h, const Scratch& s, int64_t q, int64_t rows, int64_t k,
                       int64_t keys, bool fresh, vf* total, Running& run) {
  const tracea_attention_tile* t = h.t;
  const float* from = h.q + q * t->q_stride;
  const int64_t width = padded(t->head_v);
  const Masking masking = block_masking(h, s, q, rows, k, keys);
  vf unused[QB];
  for (vf& top : unused) top = set1(-INF);
  cover(rows, padded(keys) / PANEL, [&](int64_t i, int m, int64_t j, int n) {
    const int64_t col = j * PANEL;
    WEIGH_AT_ONCE[m][n]({{t->head, from + i * t->q_stride, t->q_stride, h.keys + (k + col) * t->head,
                          t->scale, part_of(masking, i, col), s.scores + i * KB + col, unused},
                         s.weights + i * WEIGHTS + col * WEIGHTS / KB, k + col == 0, run.top + i,
                         total + i});
  });
  cover(rows, width / PANEL, [&](int64_t i, int m, int64_t j, int n) {
    ACCUMULATE[m][n]({value_rows(keys), s.weights + i * WEIGHTS, WEIGHTS,
                      h.values + value_rows(k) * h.width + j * PANEL, h.width,
                      s.sums + i * width + j * PANEL, width, fresh ? nullptr : run.decay + i});
  });
}
// Calls body(k, keys, fresh) for the blocks of keys that matter to these rows.  Blocks begin at
// multiples of KB whatever is left out, so that sums do not depend on it.
template <typename Body>
INLINE bool key_blocks(const Head& h, const Range& r, Span span, int64_t q, int64_t rows,
                       const Running& run, Body body) {
  bool fresh = true;
  const auto together = [&](int64_t from, int64_t to) {
    for (int64_t k = from; k < to;) {
      const int64_t end = least(k / KB * KB + KB, to);
      body(k, end - k, fresh);
      fresh = false;
      k = end;
    }
  };
  const Spans tiles = spans_of(h.t, q);
  // Keys in tiles, in whole panels; or all those between them.
  const auto keys_between = [&](int64_t from, int64_t to, bool others = false) {
    if (!r.tiles) return together(from, to);
    for (const tracea_attention_span* at = tiles.first; at < tiles.end; at++) {
      const int64_t low = at->low / PANEL * PANEL, high = least(to, padded(at->high));
      if (others) together(from, least(low, to));
      else together(most(from, low), high);
      from = most(from, high);
    }
    if (others) together(from, to);
  };
  keys_between(0, least(h.t->window_left < 0 ? 0 : padded(h.t->global_keys), span.low));
  keys_between(r.low, r.high);
  bool lost = false;  // a row for which the others matter
  for (int64_t i = 0; i < rows; i++) lost |= !(run.top[i] > r.bound + NOTHING);
  if (lost && r.bound != -INF) {
    keys_between(span.low, r.low);
    keys_between(r.high, span.high);
    if (r.tiles && !h.t->tiles_mask) keys_between(r.low, r.high, true);
  }
  return fresh;
}

// Is the first key in the tiles of a row?
INLINE bool begins_at_first_key(const Head& h, int64_t q) {
  const Spans tiles = spans_of(h.t, q);
  return tiles.first < tiles.end && tiles.first->low == 0;
}

// Rows for which weights at once do are no longer `due` afterwards; says whether any are left.
// Which do depends on the row alone.
bool query_block_at_once(const Head& h, const Scratch& s, int64_t q, int64_t rows, const Range& r,
                         Span span, bool* due) {
  if (!h.keys || h.t->softcap != 0.0f || h.t->window_left >= 0 || r.low > 0) return true;
  if (r.tiles && !begins_at_first_key(h, q)) return true;
  Running run;
  vf total[QB];
  bool done[QB], left = false;
  for (int64_t i = 0; i < QB; i++) total[i] = set1(0.0f), run.top[i] = -INF, run.decay[i] = 1.0f;
  key_blocks(h, r, span, q, rows, run, [&](int64_t k, int64_t keys, bool fresh) {
    key_block_at_once(h, s, q, rows, k, keys, fresh, total, run);
  });
  for (int64_t i = 0; i < rows; i++) {
    run.total[i] = reduce_add(total[i]);
    done[i] = run.top[i] > SCARCE && run.total[i] < ABUNDANT;
    due[i] = !done[i];
    left |= due[i];
  }
  finish(h, s, q, rows, run, done);
  return left;
}
void query_block(const Head& h, const Scratch& s, int64_t q, int64_t rows) {
  const Span span = h.skips ? window_span(h.t, q, rows) : Span{0, h.t->keys};
  const Range r = range_of(h, q, rows, span);
  bool due[QB];
  for (bool& row : due) row = true;
  const int64_t next = least(q + rows + QB, h.t->queries);
  ask_for(h.q, q + rows, next, h.t->q_stride * 4, h.t->head * 4);
  ask_for<1>(h.y, q, q + rows, h.t->y_stride * h.t->y_size, h.t->head_v * h.t->y_size);
  if (!query_block_at_once(h, s, q, rows, r, span, due)) return;
  Running run;
  for (int i = 0; i < QB_PADDED; i++) {
    run.top[i] = LOWEST;
    run.total[i] = 0.0f;
  }
  const bool none = key_blocks(h, r, span, q, rows, run, [&](int64_t k, int64_t keys, bool fresh) {
    key_block(h, s, q, rows, k, keys, fresh, run);
  });
  if (none)
    for (int64_t i = 0; i < rows * padded(h.t->head_v); i++) s.sums[i] = 0.0f;
  finish(h, s, q, rows, run, due);
}

}  // namespace

TRACEA_API void tracea_f32_attention_24x256__avx512(const tracea_attention_tile* t) {
  const Scratch s = layout(t->scratch, t->keys, t->head, t->head_v);
  Head h = prepare(t, s);
  for (int64_t head = 0; head < t->heads; head++) {
    for (int64_t q = 0, rows; q < t->queries; q += rows) {
      rows = rows_together(t, q, least(QB, t->queries - q));  // QB fill the largest register tiles
      query_block(h, s, q, rows);
    }
    h.q += t->q_head;
    h.y += t->y_head * t->y_size;
    h.mask += t->mask_head * (t->mask_kind == 1 ? (int64_t)sizeof(float) : 1);
  }
}

TRACEA_API int64_t tracea_f32_attention_scratch_24x256__avx512(int64_t keys, int64_t head, int64_t head_v) {
  const int64_t blocks = 2 * QB * KB + QB * WEIGHTS + QB * padded(head_v);
  return (padded(keys) * head + stored_rows(keys) * padded(head_v) + blocks) * (int64_t)sizeof(float);
}

TRACEA_API void tracea_f32_attention_ranges_24x256__avx512(const tracea_attention_tile* t, tracea_attention_range* ranges) {
  Head h = {};
  h.t = t, h.mask = (const char*)t->mask;
  for (int64_t q = 0; q < t->queries; q += QB) {
    const int64_t rows = least(QB, t->queries - q);
    ranges[q / QB] = mask_range(h, q, rows, window_span(t, q, rows));
  }
}
