// tracea_f32_gather_1x1__scalar
// f32 gather for scalar, from gather.cpp.in
// Generated, do not edit.
// Sum of up to four table rows per output row: embeddings.
#include "tracea_kernels.h"

#ifndef TRACEA_VISIBILITY
#define TRACEA_VISIBILITY "hidden"
#endif
#define TRACEA_API extern "C" __attribute__((visibility(TRACEA_VISIBILITY)))
#define INLINE static inline __attribute__((always_inline, unused))
#define INLINE_MEMBER inline __attribute__((always_inline))
// Everything below is local to this file: no code built for one instruction set may be merged
// into another's.
namespace {
// Vectors of one lane in plain C++: the reference, and what runs where nothing better may.
#define UNROLL
typedef float vf;
typedef int32_t vi;
typedef uint32_t vu;  // for shifts that drop bits
typedef bool vm;
enum { W = 1 };
constexpr float EXP_LOW = -87.33f;  // exp rounds to 2^-126 here, which scale() flushes to 0

INLINE vf set1(float x) { return x; }
INLINE vf load(const float* p) { return *p; }
INLINE vf load(const float* p, vm m) { return m ? *p : 0.0f; }
INLINE void store(float* p, vf v) { *p = v; }
INLINE void stream(float* p, vf v) { *p = v; }
INLINE void store(float* p, vf v, vm m) {
  if (m) *p = v;
}
INLINE vm first(int64_t n) { return n > 0; }  // the lanes below n

INLINE vf fma(vf a, vf b, vf c) { return a * b + c; }
INLINE vf min(vf a, vf b) { return a < b ? a : b; }  // b if either is NaN
INLINE vf max(vf a, vf b) { return a > b ? a : b; }  // b if either is NaN
INLINE vf abs(vf a) { return __builtin_fabsf(a); }
INLINE vf sqrt(vf a) { return __builtin_sqrtf(a); }
INLINE vm less(vf a, vf b) { return a < b; }
INLINE vm is_nan(vf a) { return a != a; }
INLINE vf select(vm m, vf a, vf b) { return m ? a : b; }
INLINE float reduce_add(vf a) { return a; }
INLINE float reduce_max(vf a) { return a; }

INLINE vi bits(vf a) {
  vi i;
  __builtin_memcpy(&i, &a, sizeof i);
  return i;
}
INLINE vf from_bits(vi i) {
  vf a;
  __builtin_memcpy(&a, &i, sizeof a);
  return a;
}
INLINE vf to_float(vi i) { return (float)i; }
INLINE vi to_int(vf a) { return (vi)a; }

// a * 2^n for whole n in [-126, 128]; 0 at n = -126.
INLINE vf scale(vf a, vf n) {
  const vf half = a * from_bits((vi)((vu)(to_int(n) + 126) << 23));
  return half + half;
}
enum { AHEAD = 6, LINE = 16 };  // rows to prefetch ahead; floats of one cache line

// y = row[0] + row[1] + ..., in that order; `next` are rows to prefetch meanwhile, or null.
template <int TABLES>
INLINE void sum_row(const float* const* row, const float* const* next, int64_t cols, float* y) {
  for (int64_t c = 0; c < cols; c += LINE) {
    if (next) UNROLL for (int t = 0; t < TABLES; t++) __builtin_prefetch(next[t] + c);
    const int64_t end = c + LINE < cols ? c + LINE : cols;
    int64_t i = c;
    for (; i + W <= end; i += W) {
      vf s = load(row[0] + i);
      UNROLL for (int t = 1; t < TABLES; t++) s = s + load(row[t] + i);
      store(y + i, s);
    }
    if (i < end) {
      const vm m = first(end - i);
      vf s = load(row[0] + i, m);
      UNROLL for (int t = 1; t < TABLES; t++) s = s + load(row[t] + i, m);
      store(y + i, s, m);
    }
  }
}

template <int TABLES>
void sum_rows(const tracea_gather_tile* t) {
  for (int64_t r = 0; r < t->rows; r++) {
    const float *row[TABLES], *next[TABLES];
    const bool more = r + AHEAD < t->rows;
    UNROLL for (int i = 0; i < TABLES; i++) {
      row[i] = t->row[i][r];
      next[i] = more ? t->row[i][r + AHEAD] : nullptr;
    }
    sum_row<TABLES>(row, more ? next : nullptr, t->cols, t->y + r * t->y_stride);
  }
}

constexpr tracea_gather_fn SUM[TRACEA_MAX_TABLES] = {sum_rows<1>, sum_rows<2>, sum_rows<3>,
                                                      sum_rows<4>};
}  // namespace

TRACEA_API void tracea_f32_gather_1x1__scalar(const tracea_gather_tile* t) { SUM[t->tables - 1](t); }
