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
//% if "hreduce" in needs

INLINE void hreduce(const vf (&a)[4], float* to) {
  for (int i = 0; i < 4; i++) to[i] = a[i];
}
//% endif
//% if "round" in needs

// Below 2^23 the sum with 2^23 has no fraction; the sign is kept, also of zero.
INLINE vf round_even(vf a) {
  const vf big = __builtin_copysignf(8388608.0f, a);
  return abs(a) < 8388608.0f ? __builtin_copysignf((a + big) - big, a) : a;
}
INLINE vf floor(vf a) {
  const vf r = round_even(a);
  return __builtin_copysignf(r > a ? r - 1.0f : r, a);
}
INLINE vf trunc(vf a) {
  const vf r = floor(abs(a));
  return __builtin_copysignf(r, a);
}
INLINE vf ceil(vf a) {
  const vf r = round_even(a);
  return __builtin_copysignf(r < a ? r + 1.0f : r, a);
}
//% endif
//% if "gate_fast" in needs

// a * 2^floor(t) and t - floor(t) for t in range; 1 / a.
INLINE vf times_power(vf a, vf t) { return scale(a, floor(t)); }
INLINE vf fraction(vf t) { return t - floor(t); }
INLINE vf in_range(vf t) { return max(set1(-126.0f), min(set1(127.0f), t)); }
INLINE vf reciprocal_fast(vf a) { return 1.0f / a; }
//% endif
//% if "expand" in needs

// a where m has a bit; else zero.
INLINE vf expand(vf a, uint32_t m) { return m ? a : 0.0f; }
INLINE int count_lanes(uint32_t m) { return (int)m; }
//% endif
//% if "mask" in needs

INLINE vm set_mask(bool a) { return a; }
INLINE vm both(vm a, vm b) { return a && b; }
INLINE vm either(vm a, vm b) { return a || b; }
INLINE vm differ(vm a, vm b) { return a != b; }
INLINE vm invert(vm a) { return !a; }
INLINE vm equal(vf a, vf b) { return a == b; }
INLINE vm at_most(vf a, vf b) { return a <= b; }
//% endif
//% if "any" in needs

INLINE bool any(vm m) { return m; }
//% endif
//% if "bytes" in needs

INLINE vm load_mask(const uint8_t* p) { return *p != 0; }
INLINE void store_mask(uint8_t* p, vm m) { *p = m; }
//% endif
//% if "ints" in needs

template <typename T>
INLINE vf load_int(const T* p) { return (float)*p; }
template <typename T>
INLINE void store_int(T* p, vf v) { *p = (T)(int64_t)v; }
INLINE void store_int(int32_t* p, vf v) { *p = (int32_t)v; }
//% endif
//% if "double" in needs

// A vector as two halves in double precision; with one lane the second half repeats the first.
typedef double vd;
INLINE vd set1d(double x) { return x; }
INLINE vd low(vf a) { return a; }
INLINE vd high(vf a) { return a; }
INLINE vf join(vd a, vd) { return (vf)a; }
//% endif
//% if "turns" in needs

// x - n pi/2; pi/2 in two parts, products with the first are exact.
INLINE vf minus_turns(vf x, vf n) {
  return (vf)((x - n * 0x1.921fb54p+0) - n * 0x1.10b4611a62633p-30);
}
//% endif
//% if "transpose_tile" in needs

// dst[0][0] = src[0][0]: a block of one.
INLINE void transpose_tile(const float* src, int64_t, int64_t, int64_t, float* dst, int64_t) { *dst = *src; }
//% endif
//% if "vnni2" in needs

// A lane holds two bf16, the first in its lower half; each half as a float.
INLINE vf lower(vf a) { return from_bits((vi)((uint32_t)bits(a) << 16)); }
INLINE vf upper(vf a) { return from_bits(bits(a) & (vi)0xffff0000); }
INLINE vf dot_vnni2(vf a, vf b, vf c) { return fma(upper(a), upper(b), fma(lower(a), lower(b), c)); }
//% endif
//% if "int16" in needs

// A lane holds two 16-bit integers; c + the sum of their products.
INLINE vi dot_int16(vf a, vf b, vi c) {
  const vu p = (vu)bits(a), q = (vu)bits(b);
  const vu low = (vu)((int16_t)p * (int16_t)q), high = (vu)((int16_t)(p >> 16) * (int16_t)(q >> 16));
  return (vi)((vu)c + low + high);
}

// The nearest whole number below 2^22, ties to even: the sum with 1.5 * 2^23 ends in it.
INLINE void store_int16(int16_t* p, vf v, int64_t = 1) {
  *p = (int16_t)(uint16_t)bits(v + 12582912.0f);
}
//% endif
//% if "int8" in needs

// A lane holds four bytes, unsigned on the left and signed on the right; c + the sum of their
// products.  `flip` inverts bits of the left operand.
typedef vu left_bytes;
typedef vu right_bytes;
INLINE left_bytes broadcast_bytes(const float* p, vi flip) {
  vu x;
  __builtin_memcpy(&x, p, sizeof x);
  return x ^ (vu)flip;
}
INLINE left_bytes left_of(vi x, vi flip) { return (vu)x ^ (vu)flip; }
// Byte i of lane j is that at address t[i] for channel `at` + j; n lanes are used.
INLINE vi four_taps(const uint8_t* const* t, int64_t at, int64_t n) {
  uint32_t lanes[W] = {};
  for (int64_t j = 0; j < W && j < n; j++)
    for (int i = 0; i < 4; i++) lanes[j] |= (uint32_t)t[i][at + j] << 8 * i;
  vi made;
  __builtin_memcpy(&made, lanes, sizeof made);
  return made;
}
INLINE vi one_tap(const uint8_t* p, int64_t n) {
  uint32_t lanes[W] = {};
  for (int64_t j = 0; j < W && j < n; j++) lanes[j] = p[j];
  vi made;
  __builtin_memcpy(&made, lanes, sizeof made);
  return made;
}
INLINE right_bytes load_bytes(const float* p) { return broadcast_bytes(p, 0); }
INLINE vi dot_bytes(left_bytes a, right_bytes b, vi c) {
  for (int i = 0; i < 32; i += 8) c += (int32_t)(uint8_t)(a >> i) * (int8_t)(uint8_t)(b >> i);
  return c;
}
INLINE vi set1_int(int32_t x) { return x; }
INLINE vi load_ints(const float* p) { return (vi)broadcast_bytes(p, 0); }
//% endif
//% if "nbits" in needs

// Four codes a lane, unsigned and of BITS bits, times four signed bytes; c + the sum of products.
template <int BITS>
INLINE vi dot_codes(vi codes, vi x, vi c) {
  for (int i = 0; i < 32; i += 8)
    c += (int32_t)(uint8_t)((vu)codes >> i) * (int8_t)(uint8_t)((vu)x >> i);
  return c;
}
INLINE vi load_codes(const uint8_t* p) {
  vi x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
INLINE vi widen_bytes(const uint8_t* p) { return *p; }
//% endif
//% if "f16" in needs

// A number in fp16; stored is the nearest, ties to even.
INLINE vf load_f16(const uint16_t* p) {
  const uint32_t sign = (uint32_t)(*p & 0x8000) << 16, size = *p & 0x7fff;
  const float small = (float)size * 0x1p-24f;  // below 2^-14, steps are those of integers
  const uint32_t special = size >= 0x7c00 ? 0x7f800000u : 0u;
  const uint32_t wide = size < 0x400 ? (uint32_t)bits(small) : ((size << 13) + 0x38000000u) | special;
  return from_bits((vi)(wide | sign));
}
INLINE vf load_f16(const uint16_t* p, int64_t n) { return n > 0 ? load_f16(p) : 0.0f; }
INLINE void store_f16(uint16_t* p, vf v, int64_t) {
  const uint32_t u = (uint32_t)bits(v), size = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
  const uint32_t near = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
  const uint32_t tiny = (uint32_t)bits(abs(v) + 0.5f) - 0x3f000000u;  // steps of 2^-24
  uint32_t half = size < 0x38800000u ? tiny : size < 0x477ff000u ? near : 0x7c00u;
  if (size > 0x7f800000u) half = 0x7e00u | (size >> 13 & 0x3ffu);
  *p = (uint16_t)(sign | half);
}
//% endif
//% if "bf16" in needs

// The nearest bf16, ties to even; a NaN stays one.
INLINE void store_bf16(uint16_t* p, vf v, int64_t = 1) {
  const uint32_t u = (uint32_t)bits(v);
  *p = (uint16_t)(v != v ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}
INLINE vf load_bf16(const uint16_t* p) { return from_bits((vi)((uint32_t)*p << 16)); }

// Lanes of the bf16 at p (first) and q (second).
INLINE vf join_bf16(const uint16_t* p, const uint16_t* q, int64_t n) {
  return n <= 0 ? 0.0f : from_bits((vi)((uint32_t)*p | (uint32_t)*q << 16));
}
//% endif
//% if "transpose" in needs

// dst[c][r] = src[r][c], c < cols <= 16, r < 16; rows from `rows` on are zero.
INLINE void transpose(const float* src, int64_t stride, int rows, int cols, float* dst) {
  for (int c = 0; c < cols; c++)
    for (int r = 0; r < 16; r++) dst[c * 16 + r] = r < rows ? src[r * stride + c] : 0.0f;
}
//% endif
//% if "hreduce" in needs

INLINE vf hreduce(vf (&a)[1]) { return a[0]; }
//% endif
//% if "permute" in needs

INLINE vf permute(vf a, vi) { return a; }
INLINE vi load_lanes(const int32_t* p) { return *p; }
INLINE vm mask_of(const bool* p) { return *p; }
//% endif
//% if "lane_index" in needs

// Vectors of indices.
INLINE vi splat(int32_t n) { return n; }
INLINE vi lanes() { return 0; }
INLINE vi load_indices(const int32_t* p, vm m) { return m ? *p : 0; }
INLINE void store_indices(int32_t* p, vi v, vm m) {
  if (m) *p = v;
}
INLINE vm less(vi a, vi b) { return a < b; }
//% endif
