// Vectors of four lanes: Advanced SIMD (NEON) of Armv8-A.
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
typedef float32x4_t vf;
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));  // for shifts that drop bits
typedef uint32x4_t vm;
enum { W = 4 };
constexpr float EXP_LOW = -87.33f;  // exp rounds to 2^-126 here, which scale() flushes to 0

INLINE vf set1(float x) { return vdupq_n_f32(x); }
INLINE vf load(const float* p) { return vld1q_f32(p); }
INLINE void store(float* p, vf v) { vst1q_f32(p, v); }
INLINE void stream(float* p, vf v) { vst1q_f32(p, v); }

// Sixteen bits of a word per lane, all of them set where m is: no load or store takes a mask.
INLINE uint64_t lanes_of(vm m) { return vget_lane_u64(vreinterpret_u64_u16(vmovn_u32(m)), 0); }
INLINE bool has_lane(uint64_t lanes, int i) { return lanes >> 16 * i & 1; }
INLINE vf load(const float* p, vm m) {
  const uint64_t lanes = lanes_of(m);
  if (lanes == ~uint64_t(0)) return load(p);
  vf v = set1(0.0f);
  if (has_lane(lanes, 0)) v = vld1q_lane_f32(p, v, 0);
  if (has_lane(lanes, 1)) v = vld1q_lane_f32(p + 1, v, 1);
  if (has_lane(lanes, 2)) v = vld1q_lane_f32(p + 2, v, 2);
  if (has_lane(lanes, 3)) v = vld1q_lane_f32(p + 3, v, 3);
  return v;
}
INLINE void store(float* p, vf v, vm m) {
  const uint64_t lanes = lanes_of(m);
  if (lanes == ~uint64_t(0)) return store(p, v);
  if (has_lane(lanes, 0)) vst1q_lane_f32(p, v, 0);
  if (has_lane(lanes, 1)) vst1q_lane_f32(p + 1, v, 1);
  if (has_lane(lanes, 2)) vst1q_lane_f32(p + 2, v, 2);
  if (has_lane(lanes, 3)) vst1q_lane_f32(p + 3, v, 3);
}
INLINE vi lane_numbers() { return vi{0, 1, 2, 3}; }
INLINE vm first(int64_t n) {  // the lanes below n
  const int32_t count = n < 0 ? 0 : n > W ? W : (int32_t)n;
  return vcgtq_s32(vdupq_n_s32(count), (int32x4_t)lane_numbers());
}

INLINE vf fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
// FMIN and FMAX are NaN where either operand is; these are b there, as on other processors.
INLINE vf min(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
INLINE vf max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
INLINE vf abs(vf a) { return vabsq_f32(a); }
INLINE vf sqrt(vf a) { return vsqrtq_f32(a); }
INLINE vm less(vf a, vf b) { return vcltq_f32(a, b); }
INLINE vm is_nan(vf a) { return vmvnq_u32(vceqq_f32(a, a)); }
INLINE vf select(vm m, vf a, vf b) { return vbslq_f32(m, a, b); }
INLINE float reduce_add(vf a) { return vaddvq_f32(a); }
INLINE float reduce_max(vf a) {
  const vf b = max(a, vextq_f32(a, a, 2));
  return vgetq_lane_f32(max(b, vextq_f32(b, b, 1)), 0);
}

INLINE vi bits(vf a) { return (vi)a; }
INLINE vf from_bits(vi i) { return (vf)i; }
INLINE vf to_float(vi i) { return vcvtq_f32_s32((int32x4_t)i); }
INLINE vi to_int(vf a) { return (vi)vcvtnq_s32_f32(a); }  // the nearest, ties to even

// a * 2^n for whole n in [-126, 128]; 0 at n = -126.
INLINE vf scale(vf a, vf n) {
  const vf half = a * from_bits((vi)((vu)(to_int(n) + 126) << 23));
  return half + half;
}
//% if "hreduce" in needs

// The sums of four vectors, each in an order of its own.
INLINE vf sums_of(vf a, vf b, vf c, vf d) { return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)); }
INLINE void hreduce(const vf (&a)[4], float* to) { store(to, sums_of(a[0], a[1], a[2], a[3])); }

// Lane i: the sum of a[i].
INLINE vf hreduce(vf (&a)[4]) { return sums_of(a[0], a[1], a[2], a[3]); }
//% endif
//% if "round" in needs

INLINE vf round_even(vf a) { return vrndnq_f32(a); }
INLINE vf floor(vf a) { return vrndmq_f32(a); }
INLINE vf ceil(vf a) { return vrndpq_f32(a); }
INLINE vf trunc(vf a) { return vrndq_f32(a); }
//% endif
//% if "gate_fast" in needs

// a * 2^floor(t) and t - floor(t) for t in range; 1 / a within 2^-15 of it.
INLINE vf times_power(vf a, vf t) { return scale(a, vrndmq_f32(t)); }
INLINE vf fraction(vf t) { return t - vrndmq_f32(t); }
INLINE vf in_range(vf t) { return max(set1(-126.0f), min(set1(127.0f), t)); }
INLINE vf reciprocal_fast(vf a) {
  const vf near = vrecpeq_f32(a);  // within 2^-8
  return near * vrecpsq_f32(a, near);
}
//% endif
//% if "expand" in needs

// By mask: which byte comes to each place, and one past the end where none does.
struct Places {
  uint8_t of[16][16];
  constexpr Places() : of() {
    for (int mask = 0; mask < 16; mask++)
      for (int i = 0, next = 0; i < 4; i++) {
        const bool there = mask >> i & 1;
        for (int b = 0; b < 4; b++) of[mask][4 * i + b] = (uint8_t)(there ? 4 * next + b : 255);
        next += there;
      }
  }
};
alignas(64) constexpr Places PLACES;

// The first lanes of a, in order, where m has bits; zero elsewhere.
INLINE vf expand(vf a, uint32_t m) {
  return (vf)vqtbl1q_u8((uint8x16_t)a, vld1q_u8(PLACES.of[m & 15]));
}
INLINE int count_lanes(uint32_t m) { return __builtin_popcount(m); }
//% endif
//% if "mask" in needs

INLINE vm set_mask(bool a) { return vdupq_n_u32((uint32_t)-(int)a); }
INLINE vm both(vm a, vm b) { return vandq_u32(a, b); }
INLINE vm either(vm a, vm b) { return vorrq_u32(a, b); }
INLINE vm differ(vm a, vm b) { return veorq_u32(a, b); }
INLINE vm invert(vm a) { return vmvnq_u32(a); }
INLINE vm equal(vf a, vf b) { return vceqq_f32(a, b); }
INLINE vm at_most(vf a, vf b) { return vcleq_f32(a, b); }
//% endif
//% if "any" in needs

INLINE bool any(vm m) { return lanes_of(m) != 0; }
//% endif
//% if "bytes" in needs or "ints" in needs

// Four bytes, or as many as n, in the lower lanes of a vector of eight; zeros elsewhere.
INLINE uint8x8_t some_bytes(const void* p, int64_t n = W) {
  uint32_t word = 0;
  if (n >= W) __builtin_memcpy(&word, p, sizeof word);
  else
    for (int64_t i = 0; i < n; i++) word |= (uint32_t)((const uint8_t*)p)[i] << 8 * i;
  return vreinterpret_u8_u32(vdup_n_u32(word));
}
INLINE void put_bytes(void* p, uint8x8_t bytes, int64_t n = W) {
  const uint32_t word = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
  if (n >= W) __builtin_memcpy(p, &word, sizeof word);
  else
    for (int64_t i = 0; i < n; i++) ((uint8_t*)p)[i] = (uint8_t)(word >> 8 * i);
}
INLINE uint32x4_t widen_bytes(uint8x8_t bytes) {
  return vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
}
//% endif
//% if "bytes" in needs

INLINE vm spread_bytes(uint8x8_t bytes) {
  const uint32x4_t each = widen_bytes(bytes);
  return vtstq_u32(each, each);
}
INLINE uint8x8_t gather_bytes(vm m) {
  const uint16x4_t words = vmovn_u32(m);
  return vand_u8(vmovn_u16(vcombine_u16(words, words)), vdup_n_u8(1));
}
INLINE vm load_mask(const uint8_t* p) { return spread_bytes(some_bytes(p)); }
INLINE vm load_mask(const uint8_t* p, int64_t n) { return spread_bytes(some_bytes(p, n)); }
INLINE void store_mask(uint8_t* p, vm m) { put_bytes(p, gather_bytes(m)); }
INLINE void store_mask(uint8_t* p, vm m, int64_t n) { put_bytes(p, gather_bytes(m), n); }
//% endif
//% if "ints" in needs

INLINE vf load_int(const int32_t* p) { return vcvtq_f32_s32(vld1q_s32(p)); }
INLINE vf load_int(const int32_t* p, int64_t n) {
  int32_t some[W] = {};
  for (int64_t i = 0; i < n; i++) some[i] = p[i];
  return load_int(some);
}
INLINE vf load_int(const int64_t* p, int64_t n) {  // rounded once: not by way of double
  float some[W] = {};
  for (int64_t i = 0; i < n; i++) some[i] = (float)p[i];
  return load(some);
}
INLINE vf load_int(const int64_t* p) { return load_int(p, W); }
INLINE vf widen(uint8x8_t bytes, uint8_t) { return vcvtq_f32_u32(widen_bytes(bytes)); }
INLINE vf widen(uint8x8_t bytes, int8_t) {
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(bytes)))));
}
template <typename T>
INLINE vf load_int(const T* p) { return widen(some_bytes(p), T()); }
template <typename T>
INLINE vf load_int(const T* p, int64_t n) { return widen(some_bytes(p, n), T()); }

// Whole numbers within the type's range.
INLINE void store_int(int32_t* p, vf v) { vst1q_s32(p, vcvtq_s32_f32(v)); }
INLINE void store_int(int32_t* p, vf v, int64_t n) {
  int32_t each[W];
  store_int(each, v);
  for (int64_t i = 0; i < n; i++) p[i] = each[i];
}
INLINE void store_int(int64_t* p, vf v, int64_t n) {
  float each[W];
  store(each, v);
  for (int64_t i = 0; i < n; i++) p[i] = (int64_t)each[i];
}
INLINE void store_int(int64_t* p, vf v) { store_int(p, v, W); }
INLINE uint8x8_t narrow(vf v, bool is_signed) {
  const int16x4_t words = vqmovn_s32(vcvtq_s32_f32(v));
  const int16x8_t wide = vcombine_s16(words, words);
  return is_signed ? vreinterpret_u8_s8(vqmovn_s16(wide)) : vqmovun_s16(wide);
}
template <typename T>
INLINE void store_int(T* p, vf v) { put_bytes(p, narrow(v, T(-1) < T(0))); }
template <typename T>
INLINE void store_int(T* p, vf v, int64_t n) { put_bytes(p, narrow(v, T(-1) < T(0)), n); }
//% endif
//% if "double" in needs

// A vector as two halves in double precision.
typedef double vd __attribute__((vector_size(16)));
INLINE vd set1d(double x) { return vd{x, x}; }
INLINE vd low(vf a) { return (vd)vcvt_f64_f32(vget_low_f32(a)); }
INLINE vd high(vf a) { return (vd)vcvt_high_f64_f32(a); }
INLINE vf join(vd a, vd b) {
  return vcvt_high_f32_f64(vcvt_f32_f64((float64x2_t)a), (float64x2_t)b);
}
//% endif
//% if "turns" in needs

// x - n pi/2; pi/2 in three parts.
INLINE vf minus_turns(vf x, vf n) {
  x = fma(n, set1(-0x1.921fb6p+0f), x);
  return fma(n, set1(0x1.ee59dap-50f), fma(n, set1(0x1.777a5cp-25f), x));
}
//% endif
//% if "vnni2" in needs

// A lane holds two bf16, the first in its lower half; each half as a float.
INLINE vf lower(vf a) { return from_bits(bits(a) << 16); }
INLINE vf upper(vf a) { return (vf)((vu)a & 0xffff0000u); }
//% if isa == "neonbf16"
INLINE vf dot_vnni2(vf a, vf b, vf c) {
  return vbfdotq_f32(c, (bfloat16x8_t)a, (bfloat16x8_t)b);
}
//% else
INLINE vf dot_vnni2(vf a, vf b, vf c) { return fma(upper(a), upper(b), fma(lower(a), lower(b), c)); }
//% endif
//% endif
//% if "int16" in needs

// A lane holds two 16-bit integers; c + the sum of their products.
INLINE vi dot_int16(vf a, vf b, vi c) {
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y)), high = vmull_high_s16(x, y);
  return c + (vi)vpaddq_s32(low, high);
}

// The nearest whole numbers, ties to even.
INLINE void store_int16(int16_t* p, vf v, int64_t n = W) {
  const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(v));
  if (n >= W) return vst1_s16(p, words);
  int16_t each[W];
  vst1_s16(each, words);
  for (int64_t i = 0; i < n; i++) p[i] = each[i];
}
//% endif
//% if "int8" in needs

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

// A lane holds four bytes, unsigned on the left and signed on the right; c + the sum of their
// products.  `flip` inverts bits of the left operand.
//% if isa in ("neoni8mm", "neonbf16")
typedef uint8x16_t left_bytes;
typedef int8x16_t right_bytes;
INLINE left_bytes left_of(vi x, vi flip) { return (uint8x16_t)(x ^ flip); }
INLINE left_bytes broadcast_bytes(const float* p, vi flip) { return left_of((vi)set1(*p), flip); }
INLINE right_bytes load_bytes(const float* p) { return (int8x16_t)load(p); }
INLINE vi dot_bytes(left_bytes a, right_bytes b, vi c) {
  return (vi)vusdotq_s32((int32x4_t)c, a, b);
}
//% elif isa == "neondot"
// SDOT takes no unsigned bytes: left_of takes LEFT_OFFSET off each of them.
typedef int8x16_t left_bytes;
typedef int8x16_t right_bytes;
INLINE left_bytes left_of(vi x, vi flip) { return (int8x16_t)(x ^ flip ^ (vi)vdupq_n_u8(128)); }
INLINE left_bytes broadcast_bytes(const float* p, vi flip) { return left_of((vi)set1(*p), flip); }
INLINE right_bytes load_bytes(const float* p) { return (int8x16_t)load(p); }
INLINE vi dot_bytes(left_bytes a, right_bytes b, vi c) {
  return (vi)vdotq_s32((int32x4_t)c, a, b);
}
//% else
// The lower and the upper eight bytes, widened to 16 bits.
struct left_bytes { int16x8_t low, high; };
typedef left_bytes right_bytes;
INLINE left_bytes left_of(vi bytes, vi flip) {
  const uint8x16_t x = (uint8x16_t)(bytes ^ flip);
  return {(int16x8_t)vmovl_u8(vget_low_u8(x)), (int16x8_t)vmovl_high_u8(x)};
}
INLINE left_bytes broadcast_bytes(const float* p, vi flip) {
  const uint8x16_t x = (uint8x16_t)((vi)set1(*p) ^ flip);
  const int16x8_t half = (int16x8_t)vmovl_u8(vget_low_u8(x));
  return {half, half};
}
INLINE right_bytes load_bytes(const float* p) {
  const int8x16_t x = (int8x16_t)load(p);
  return {vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x)};
}
// A lane's four products lie in one vector, two lanes to each of low and high.
INLINE int32x4_t four_products(int16x8_t a, int16x8_t b) {
  return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}
INLINE vi dot_bytes(left_bytes a, right_bytes b, vi c) {
  return c + (vi)vpaddq_s32(four_products(a.low, b.low), four_products(a.high, b.high));
}
//% endif
INLINE vi set1_int(int32_t x) { return (vi)vdupq_n_s32(x); }
INLINE vi load_ints(const float* p) { return (vi)load(p); }
//% endif
//% if "nbits" in needs

// Four codes a lane, unsigned and of BITS bits, times four signed bytes; c + the sum of products.
template <int BITS>
INLINE vi dot_codes(vi codes, vi x, vi c) {
  //% if isa in ("neoni8mm", "neonbf16")
  return (vi)vusdotq_s32((int32x4_t)c, (uint8x16_t)codes, (int8x16_t)x);
  //% elif isa == "neondot"
  const int32x4_t sum = (int32x4_t)c;
  if (BITS < 8) return (vi)vdotq_s32(sum, (int8x16_t)codes, (int8x16_t)x);
  // less 128 they are signed; x gives 128 times itself back
  const int8x16_t near = (int8x16_t)veorq_u8((uint8x16_t)codes, vdupq_n_u8(128));
  const int8x16_t half = vdupq_n_s8(64);
  const int32x4_t back = vdotq_s32(vdotq_s32(sum, (int8x16_t)x, half), (int8x16_t)x, half);
  return (vi)vdotq_s32(back, near, (int8x16_t)x);
  //% else
  const uint8x16_t a = (uint8x16_t)codes;
  const int8x16_t b = (int8x16_t)x;
  const int16x8_t low = (int16x8_t)vmovl_u8(vget_low_u8(a)), high = (int16x8_t)vmovl_high_u8(a);
  return c + (vi)vpaddq_s32(four_products(low, vmovl_s8(vget_low_s8(b))),
                            four_products(high, vmovl_high_s8(b)));
  //% endif
}
INLINE vi load_codes(const uint8_t* p) { return (vi)vld1q_u8(p); }
INLINE vi widen_bytes(const uint8_t* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)))));
}
//% endif
//% if "f16" in needs

// Numbers in fp16; stored is the nearest, ties to even.
INLINE vf load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
INLINE vf load_f16(const uint16_t* p, int64_t n) {
  uint16_t each[W] = {};
  for (int64_t i = 0; i < n; i++) each[i] = p[i];
  return load_f16(each);
}
INLINE void store_f16(uint16_t* p, vf v, int64_t n) {
  const uint16x4_t made = vreinterpret_u16_f16(vcvt_f16_f32(v));
  if (n >= W) return vst1_u16(p, made);
  uint16_t each[W];
  vst1_u16(each, made);
  for (int64_t i = 0; i < n; i++) p[i] = each[i];
}
//% endif
//% if "bf16" in needs

// The nearest bf16, ties to even; a NaN stays one.
//% if isa == "neonbf16"
INLINE uint16x4_t to_bf16(vf v) { return vreinterpret_u16_bf16(vcvt_bf16_f32(v)); }
//% else
INLINE uint16x4_t to_bf16(vf v) {
  const vu u = (vu)v, near = u + 0x7fffu + (u >> 16 & 1u), quiet = u | 0x400000u;
  return vshrn_n_u32(vbslq_u32(is_nan(v), (uint32x4_t)quiet, (uint32x4_t)near), 16);
}
//% endif
INLINE void store_bf16(uint16_t* p, vf v) { vst1_u16(p, to_bf16(v)); }
INLINE void store_bf16(uint16_t* p, vf v, int64_t n) {
  if (n >= W) return store_bf16(p, v);
  uint16_t each[W];
  store_bf16(each, v);
  for (int64_t i = 0; i < n; i++) p[i] = each[i];
}
INLINE vf load_bf16(const uint16_t* p) { return (vf)vshll_n_u16(vld1_u16(p), 16); }

// Lanes of the bf16 at p (first) and q (second).
INLINE vf join_bf16(const uint16_t* p, const uint16_t* q, int64_t n) {
  uint32_t u[W] = {};
  for (int i = 0; i < W && i < n; i++) u[i] = (uint32_t)p[i] | (uint32_t)q[i] << 16;
  return (vf)vld1q_u32(u);
}
//% endif
//% if "transpose_tile" in needs or "transpose" in needs

// Transposes 4 x 4.
INLINE void transpose_block(vf* a) {
  const vf low0 = vzip1q_f32(a[0], a[2]), low1 = vzip1q_f32(a[1], a[3]);
  const vf high0 = vzip2q_f32(a[0], a[2]), high1 = vzip2q_f32(a[1], a[3]);
  a[0] = vzip1q_f32(low0, low1), a[1] = vzip2q_f32(low0, low1);
  a[2] = vzip1q_f32(high0, high1), a[3] = vzip2q_f32(high0, high1);
}

// One 4 x 4 block: rows outside `rows` are zero, columns outside `cols` are not written.
INLINE void transpose4(const float* src, int64_t stride, int64_t rows, int64_t cols, float* dst,
                       int64_t dst_stride, vm in, vm out) {
  vf a[4];
  UNROLL for (int r = 0; r < 4; r++) a[r] = r < rows ? load(src + r * stride, in) : set1(0.0f);
  transpose_block(a);
  UNROLL for (int c = 0; c < 4; c++) if (c < cols) store(dst + c * dst_stride, a[c], out);
}
//% endif
//% if "transpose_tile" in needs

// dst[c][r] = src[r][c], r < rows, c < cols; of either at most W count.
INLINE void transpose_tile(const float* src, int64_t stride, int64_t rows, int64_t cols, float* dst,
                 int64_t dst_stride) {
  if (rows < 4 || cols < 4)
    return transpose4(src, stride, rows, cols, dst, dst_stride, first(cols), first(rows));
  vf a[4];
  UNROLL for (int r = 0; r < 4; r++) a[r] = load(src + r * stride);
  transpose_block(a);
  UNROLL for (int c = 0; c < 4; c++) store(dst + c * dst_stride, a[c]);
}
//% endif
//% if "transpose" in needs

// dst[c][r] = src[r][c], c < cols <= 16, r < 16; rows from `rows` on are zero.
INLINE void transpose(const float* src, int64_t stride, int rows, int cols, float* dst) {
  const vm whole = first(4);
  for (int r = 0; r < 16; r += 4)
    for (int c = 0; c < cols; c += 4)
      transpose4(src + r * stride + c, stride, rows - r, cols - c, dst + c * 16 + r, 16,
                 first(cols - c), whole);
}
//% endif
//% if "permute" in needs

// Lane i: lane idx[i] of a, idx below W.
INLINE vf permute(vf a, vi idx) {
  const vi bytes = idx * 0x04040404 + 0x03020100;
  return (vf)vqtbl1q_u8((uint8x16_t)a, (uint8x16_t)bytes);
}
INLINE vi load_lanes(const int32_t* p) { return (vi)vld1q_s32(p); }
INLINE vm mask_of(const bool* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, sizeof word);
  const uint16x4_t each = vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word))));
  return vcgtq_u32(vmovl_u16(each), vdupq_n_u32(0));
}
//% endif
//% if "lane_index" in needs

// Vectors of indices.
INLINE vi splat(int32_t n) { return (vi)vdupq_n_s32(n); }
INLINE vi lanes() { return lane_numbers(); }
INLINE vi load_indices(const int32_t* p, vm m) { return (vi)load((const float*)p, m); }
INLINE void store_indices(int32_t* p, vi v, vm m) { store((float*)p, (vf)v, m); }
INLINE vm less(vi a, vi b) { return vcltq_s32((int32x4_t)a, (int32x4_t)b); }
//% endif
