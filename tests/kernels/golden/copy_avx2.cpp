// tracea_f32_copy_8x8__avx2
// f32 copy for avx2, from copy.cpp.in
// Generated, do not edit.
// Data movement: a matrix of elements of 1, 2, 4 or 8 bytes from one layout into another.
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
// Transposes 8 x 8.
INLINE void transpose_block(vf* a) {
  vf b[8];
  UNROLL for (int r = 0; r < 8; r += 2) {
    b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
    b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
  }
  UNROLL for (int r = 0; r < 8; r += 4) UNROLL for (int h = 0; h < 2; h++) {
    a[r + 2 * h] = _mm256_shuffle_ps(b[r + h], b[r + 2 + h], 0x44);
    a[r + 2 * h + 1] = _mm256_shuffle_ps(b[r + h], b[r + 2 + h], 0xee);
  }
  UNROLL for (int c = 0; c < 4; c++) {
    const vf left = a[c], right = a[c + 4];
    a[c] = _mm256_permute2f128_ps(left, right, 0x20);
    a[c + 4] = _mm256_permute2f128_ps(left, right, 0x31);
  }
}
// dst[c][r] = src[r][c], r < rows, c < cols; of either at most W count.
INLINE void transpose_tile(const float* src, int64_t stride, int64_t rows, int64_t cols, float* dst,
                 int64_t dst_stride) {
  vf a[8];
  if (rows >= 8 && cols >= 8) {
    UNROLL for (int r = 0; r < 8; r++) a[r] = load(src + r * stride);
    transpose_block(a);
    UNROLL for (int c = 0; c < 8; c++) store(dst + c * dst_stride, a[c]);
    return;
  }
  const vm in = first(cols), out = first(rows);
  UNROLL for (int r = 0; r < 8; r++) a[r] = r < rows ? load(src + r * stride, in) : set1(0.0f);
  transpose_block(a);
  UNROLL for (int c = 0; c < 8; c++) if (c < cols) store(dst + c * dst_stride, a[c], out);
}
// Elementwise functions over any vector type.  Bounds are the largest found over dense grids of
// float32 arguments against float64; every function maps NaN to NaN.

// E: poly(x, c0, c1, ...) = c0 + x * (c1 + ...), fused where the instruction set can.
INLINE vf poly(vf, float c) { return set1(c); }
template <typename... Rest>
INLINE vf poly(vf x, float c, Rest... rest) {
  return fma(poly(x, rest...), x, set1(c));
}
struct Strides {
  int64_t x_row, x_col, y_row, y_col;
};

// Column strides known while compiling, so that neighbours move together; 0: as told.
template <class T, int XC, int YC>
INLINE void move(const T* x, T* y, int64_t rows, int64_t cols, const Strides& s) {
  const int64_t x_col = XC ? XC : s.x_col, y_col = YC ? YC : s.y_col;
  for (int64_t r = 0; r < rows; r++, x += s.x_row, y += s.y_row)
    for (int64_t c = 0; c < cols; c++) y[c * y_col] = x[c * x_col];
}

template <class T>
INLINE void fill(const T* x, T* y, int64_t rows, int64_t cols, const Strides& s) {
  for (int64_t r = 0; r < rows; r++, x += s.x_row, y += s.y_row) {
    const T value = *x;
    for (int64_t c = 0; c < cols; c++) y[c] = value;
  }
}

template <class T>
void move_any(const T* x, T* y, int64_t rows, int64_t cols, const Strides& s) {
  if (s.x_col == 1 && s.y_col == 1) {
    for (int64_t r = 0; r < rows; r++)
      __builtin_memcpy(y + r * s.y_row, x + r * s.x_row, (uint64_t)cols * sizeof(T));
  } else if (s.x_col == 0 && s.y_col == 1) fill(x, y, rows, cols, s);
  else if (s.x_col == 2 && s.y_col == 1) move<T, 2, 1>(x, y, rows, cols, s);
  else if (s.x_col == 1 && s.y_col == 2) move<T, 1, 2>(x, y, rows, cols, s);
  else if (s.x_col == -1 && s.y_col == 1) move<T, -1, 1>(x, y, rows, cols, s);
  else move<T, 0, 0>(x, y, rows, cols, s);
}

enum { LONG = 1024 };  // floats from which memcpy knows best

// Rows of floats: too short, often, for a call of memcpy.
INLINE void move_rows(const float* x, float* y, int64_t rows, int64_t cols, const Strides& s) {
  if (cols >= LONG) return move_any(x, y, rows, cols, s);
  for (int64_t r = 0; r < rows; r++, x += s.x_row, y += s.y_row) {
    int64_t c = 0;
    for (; c + W <= cols; c += W) store(y + c, load(x + c));
    if (c < cols) {
      const vm m = first(cols - c);
      store(y + c, load(x + c, m), m);
    }
  }
}

// x at stride 1 along the rows, y along the columns: blocks transposed in registers.
INLINE void turn_rows(const float* x, float* y, int64_t rows, int64_t cols, const Strides& s) {
  for (int64_t c = 0; c < cols; c += W)
    for (int64_t r = 0; r < rows; r += W)
      transpose_tile(x + c * s.x_col + r, s.x_col, cols - c, rows - r, y + r * s.y_row + c, s.y_row);
}

void move_floats(const float* x, float* y, int64_t rows, int64_t cols, const Strides& s) {
  if (s.x_col == 1 && s.y_col == 1) move_rows(x, y, rows, cols, s);
  else if (s.x_row == 1 && s.y_col == 1) turn_rows(x, y, rows, cols, s);
  else if (s.x_col == 1 && s.y_row == 1)
    turn_rows(x, y, cols, rows, {s.x_col, s.x_row, s.y_col, s.y_row});
  else move_any(x, y, rows, cols, s);
}

typedef uint8_t sixteen __attribute__((vector_size(16)));

// Of 16 pixels of three colors, the bytes 16 * PART + (0 .. 15): those of one color, else 0.
template <int COLOR, int PART>
INLINE sixteen spread_color(sixteen bytes) {
  sixteen from;
  UNROLL for (int i = 0; i < 16; i++)
    from[i] = (16 * PART + i) % 3 == COLOR ? (16 * PART + i) / 3 : 255;
  return (sixteen)_mm_shuffle_epi8((__m128i)bytes, (__m128i)from);
}

template <int PART>
INLINE void store_colors(sixteen red, sixteen green, sixteen blue, uint8_t* y) {
  const sixteen all = spread_color<0, PART>(red) | spread_color<1, PART>(green) |
                      spread_color<2, PART>(blue);
  __builtin_memcpy(y + 16 * PART, &all, sizeof all);
}

// Three planes of bytes as pixels of three.
INLINE void join_colors(const uint8_t* x, uint8_t* y, int64_t cols, int64_t plane) {
  int64_t c = 0;
  for (; c + 16 <= cols; c += 16, y += 48) {
    sixteen red, green, blue;
    __builtin_memcpy(&red, x + c, sizeof red);
    __builtin_memcpy(&green, x + plane + c, sizeof green);
    __builtin_memcpy(&blue, x + 2 * plane + c, sizeof blue);
    store_colors<0>(red, green, blue, y);
    store_colors<1>(red, green, blue, y);
    store_colors<2>(red, green, blue, y);
  }
  for (; c < cols; c++) for (int p = 0; p < 3; p++) *y++ = x[p * plane + c];
}

INLINE bool joins_colors(const Strides& s, int64_t rows) {
  return rows == 3 && s.x_col == 1 && s.y_row == 1 && s.y_col == 3;
}
// Numbers of 16 bits in rows of whole pairs, each of which begins where a float may: as many floats.
INLINE bool as_floats(const tracea_copy_tile* t) {
  const uint64_t places = (uint64_t)t->x | (uint64_t)t->y;
  const int64_t counts = t->cols | (t->rows > 1 ? t->x_row | t->y_row : 0);
  return t->x_col == 1 && t->y_col == 1 && places % sizeof(float) == 0 && counts % 2 == 0;
}
}  // namespace

TRACEA_API void tracea_f32_copy_8x8__avx2(const tracea_copy_tile* t) {
  const Strides s = {t->x_row, t->x_col, t->y_row, t->y_col};
  if (t->size == 1 && joins_colors(s, t->rows))
    return join_colors((const uint8_t*)t->x, (uint8_t*)t->y, t->cols, s.x_row);
  if (t->size == 1) move_any((const uint8_t*)t->x, (uint8_t*)t->y, t->rows, t->cols, s);
  if (t->size == 2 && as_floats(t))
    move_rows((const float*)t->x, (float*)t->y, t->rows, t->cols / 2,
              {s.x_row / 2, 1, s.y_row / 2, 1});
  else if (t->size == 2) move_any((const uint16_t*)t->x, (uint16_t*)t->y, t->rows, t->cols, s);
  if (t->size == 4) move_floats((const float*)t->x, (float*)t->y, t->rows, t->cols, s);
  if (t->size == 8) move_any((const uint64_t*)t->x, (uint64_t*)t->y, t->rows, t->cols, s);
}
