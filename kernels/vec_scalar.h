// Vectors of one lane in plain C++: the reference, and what runs where nothing better may.
#define UNROLL
typedef float vf;
typedef int32_t vi;
typedef bool vm;
enum { W = 1 };
constexpr float EXP_LOW = -87.33f;  // exp rounds to 2^-126 here, which scale() flushes to 0

INLINE vf set1(float x) { return x; }
INLINE vf load(const float* p) { return *p; }
INLINE vf load(const float* p, vm m) { return m ? *p : 0.0f; }
INLINE void store(float* p, vf v) { *p = v; }
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
  const vf half = a * from_bits((to_int(n) + 126) << 23);
  return half + half;
}
//% if "transpose" in needs

// dst[c][r] = src[r][c], c < cols <= 16, r < 16; rows from `rows` on are zero.
INLINE void transpose(const float* src, int64_t stride, int rows, int cols, float* dst) {
  for (int c = 0; c < cols; c++)
    for (int r = 0; r < 16; r++) dst[c * 16 + r] = r < rows ? src[r * stride + c] : 0.0f;
}
//% endif
