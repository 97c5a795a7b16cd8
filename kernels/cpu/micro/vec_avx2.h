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
//% if "hreduce" in needs

// The sums of four vectors, each in an order of its own.
INLINE void hreduce(const vf (&a)[4], float* to) {
  const vf ab = _mm256_unpacklo_ps(a[0], a[1]) + _mm256_unpackhi_ps(a[0], a[1]);
  const vf cd = _mm256_unpacklo_ps(a[2], a[3]) + _mm256_unpackhi_ps(a[2], a[3]);
  const vf each = _mm256_shuffle_ps(ab, cd, 0x44) + _mm256_shuffle_ps(ab, cd, 0xee);
  _mm_storeu_ps(to, _mm256_castps256_ps128(each) + _mm256_extractf128_ps(each, 1));
}
//% endif
//% if "round" in needs

INLINE vf round_even(vf a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf floor(vf a) { return _mm256_floor_ps(a); }
INLINE vf ceil(vf a) { return _mm256_ceil_ps(a); }
INLINE vf trunc(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
//% endif
//% if "gate_fast" in needs

// a * 2^floor(t) and t - floor(t) for t in range; 1 / a within 2^-11 of it.
INLINE vf times_power(vf a, vf t) { return scale(a, floor(t)); }
INLINE vf fraction(vf t) { return t - floor(t); }
INLINE vf in_range(vf t) { return max(set1(-126.0f), min(set1(127.0f), t)); }
INLINE vf reciprocal_fast(vf a) { return _mm256_rcp_ps(a); }
//% endif
//% if "expand" in needs

// By mask: which lane comes to each place, and 8 where none does.
struct Places {
  uint8_t of[256][8];
  constexpr Places() : of() {
    for (int mask = 0; mask < 256; mask++)
      for (int i = 0, next = 0; i < 8; i++) of[mask][i] = mask >> i & 1 ? (uint8_t)next++ : 8;
  }
};
alignas(64) constexpr Places PLACES;

// The first lanes of a, in order, where m has bits; zero elsewhere.
INLINE vf expand(vf a, uint32_t m) {
  const __m256i from = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)PLACES.of[m]));
  const __m256i kept = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), from);
  return _mm256_and_ps(_mm256_permutevar8x32_ps(a, from), _mm256_castsi256_ps(kept));
}
INLINE int count_lanes(uint32_t m) { return __builtin_popcount(m); }
//% endif
//% if "mask" in needs

INLINE vm set_mask(bool a) { return _mm256_set1_epi32(-(int)a); }
INLINE vm both(vm a, vm b) { return _mm256_and_si256(a, b); }
INLINE vm either(vm a, vm b) { return _mm256_or_si256(a, b); }
INLINE vm differ(vm a, vm b) { return _mm256_xor_si256(a, b); }
INLINE vm invert(vm a) { return _mm256_xor_si256(a, _mm256_set1_epi32(-1)); }
INLINE vm equal(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
INLINE vm at_most(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LE_OQ)); }
//% endif
//% if "any" in needs

INLINE bool any(vm m) { return !_mm256_testz_si256(m, m); }
//% endif
//% if "bytes" in needs

INLINE vm spread_bytes(__m128i bytes) {
  const __m256i lanes = _mm256_cvtepu8_epi32(bytes);
  return _mm256_cmpgt_epi32(lanes, _mm256_setzero_si256());
}
INLINE __m128i gather_bytes(vm m) {
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  return _mm_and_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(1));
}
INLINE vm load_mask(const uint8_t* p) {
  return spread_bytes(_mm_loadl_epi64((const __m128i*)p));
}
INLINE vm load_mask(const uint8_t* p, int64_t n) {
  alignas(16) uint8_t bytes[16] = {};
  for (int64_t i = 0; i < n; i++) bytes[i] = p[i];
  return spread_bytes(_mm_load_si128((const __m128i*)bytes));
}
INLINE void store_mask(uint8_t* p, vm m) { _mm_storel_epi64((__m128i*)p, gather_bytes(m)); }
INLINE void store_mask(uint8_t* p, vm m, int64_t n) {
  alignas(16) uint8_t bytes[16];
  _mm_store_si128((__m128i*)bytes, gather_bytes(m));
  for (int64_t i = 0; i < n; i++) p[i] = bytes[i];
}
//% endif
//% if "ints" in needs

INLINE vf load_int(const int32_t* p) {
  return _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i*)p));
}
INLINE vf load_int(const int32_t* p, int64_t n) {
  return _mm256_cvtepi32_ps(_mm256_maskload_epi32(p, first(n)));
}
INLINE vf load_int(const int64_t* p, int64_t n) {  // no such instruction before AVX-512
  alignas(32) float lanes[W] = {};
  for (int64_t i = 0; i < n; i++) lanes[i] = (float)p[i];
  return _mm256_load_ps(lanes);
}
INLINE vf load_int(const int64_t* p) { return load_int(p, W); }
INLINE __m128i load_bytes(const void* p, int64_t n) {
  alignas(16) uint8_t bytes[16] = {};
  for (int64_t i = 0; i < n; i++) bytes[i] = ((const uint8_t*)p)[i];
  return _mm_load_si128((const __m128i*)bytes);
}
INLINE vf widen(__m128i bytes, uint8_t) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
INLINE vf widen(__m128i bytes, int8_t) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }
template <typename T>
INLINE vf load_int(const T* p) { return widen(_mm_loadl_epi64((const __m128i*)p), T()); }
template <typename T>
INLINE vf load_int(const T* p, int64_t n) { return widen(load_bytes(p, n), T()); }

// Whole numbers within the type's range.
INLINE void store_int(int32_t* p, vf v) {
  _mm256_storeu_si256((__m256i*)p, _mm256_cvttps_epi32(v));
}
INLINE void store_int(int32_t* p, vf v, int64_t n) {
  _mm256_maskstore_epi32(p, first(n), _mm256_cvttps_epi32(v));
}
INLINE void store_int(int64_t* p, vf v, int64_t n) {
  alignas(32) float lanes[W];
  _mm256_store_ps(lanes, v);
  for (int64_t i = 0; i < n; i++) p[i] = (int64_t)lanes[i];
}
INLINE void store_int(int64_t* p, vf v) { store_int(p, v, W); }
INLINE __m128i narrow(vf v, bool is_signed) {
  const __m256i wide = _mm256_cvttps_epi32(v);
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  return is_signed ? _mm_packs_epi16(words, words) : _mm_packus_epi16(words, words);
}
template <typename T>
INLINE void store_int(T* p, vf v) { _mm_storel_epi64((__m128i*)p, narrow(v, T(-1) < T(0))); }
template <typename T>
INLINE void store_int(T* p, vf v, int64_t n) {
  alignas(16) T bytes[16];
  _mm_store_si128((__m128i*)bytes, narrow(v, T(-1) < T(0)));
  for (int64_t i = 0; i < n; i++) p[i] = bytes[i];
}
//% endif
//% if "double" in needs

// A vector as two halves in double precision.
typedef __m256d vd;
INLINE vd set1d(double x) { return _mm256_set1_pd(x); }
INLINE vd low(vf a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
INLINE vd high(vf a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
INLINE vf join(vd a, vd b) { return _mm256_set_m128(_mm256_cvtpd_ps(b), _mm256_cvtpd_ps(a)); }
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
INLINE vf upper(vf a) {
  return (vf)_mm256_blend_epi16(_mm256_setzero_si256(), (__m256i)a, 0xaa);
}
INLINE vf dot_vnni2(vf a, vf b, vf c) { return fma(upper(a), upper(b), fma(lower(a), lower(b), c)); }
//% endif
//% if "int16" in needs

// A lane holds two 16-bit integers; c + the sum of their products.
INLINE vi dot_int16(vf a, vf b, vi c) {
  return (vi)_mm256_add_epi32((__m256i)c, _mm256_madd_epi16((__m256i)a, (__m256i)b));
}

// The nearest whole numbers, ties to even.
INLINE void store_int16(int16_t* p, vf v, int64_t n = W) {
  const __m256i whole = _mm256_cvtps_epi32(v);
  const __m128i words =
      _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  if (n >= W) {
    _mm_storeu_si128((__m128i*)p, words);
    return;
  }
  int16_t each[W];
  _mm_storeu_si128((__m128i*)each, words);
  for (int64_t i = 0; i < n; i++) p[i] = each[i];
}
//% endif
//% if "int8" in needs

// A lane holds four bytes, unsigned on the left and signed on the right; c + the sum of their
//% if isa == "avxvnni"
// products.  `flip` inverts bits of the left operand.
typedef __m256i left_bytes;
typedef __m256i right_bytes;
INLINE left_bytes left_of(vi x, vi flip) { return _mm256_xor_si256((__m256i)x, (__m256i)flip); }
//% else
// products.  `flip` inverts bits of the left operand.  Products of bytes are added in 16 bits by
// vpmaddubsw, which saturates; so even and odd bytes are widened to 16 bits, whose products are
// added in 32.
struct left_bytes { __m256i even, odd; };
typedef left_bytes right_bytes;
INLINE left_bytes left_of(vi bytes, vi flip) {
  const __m256i x = _mm256_xor_si256((__m256i)bytes, (__m256i)flip);
  return {_mm256_srli_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srli_epi16(x, 8)};
}
//% endif
INLINE left_bytes broadcast_bytes(const float* p, vi flip) {
  return left_of((vi)_mm256_castps_si256(_mm256_set1_ps(*p)), flip);
}
INLINE __m128i some_bytes(const uint8_t* p, int64_t n) {
  if (n >= W) return _mm_loadl_epi64((const __m128i*)p);
  uint64_t word = 0;
  for (int64_t i = 0; i < n; i++) word |= (uint64_t)p[i] << 8 * i;
  return _mm_cvtsi64_si128((long long)word);
}
// Byte i of lane j is that at address t[i] for channel `at` + j; n lanes are used.
INLINE vi four_taps(const uint8_t* const* t, int64_t at, int64_t n) {
  const __m128i a = _mm_unpacklo_epi8(some_bytes(t[0] + at, n), some_bytes(t[1] + at, n));
  const __m128i b = _mm_unpacklo_epi8(some_bytes(t[2] + at, n), some_bytes(t[3] + at, n));
  return (vi)_mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b));
}
INLINE vi one_tap(const uint8_t* p, int64_t n) {
  return (vi)_mm256_cvtepu8_epi32(some_bytes(p, n));
}
//% if isa == "avxvnni"
INLINE right_bytes load_bytes(const float* p) { return _mm256_loadu_si256((const __m256i*)p); }
INLINE vi dot_bytes(left_bytes a, right_bytes b, vi c) {
  return (vi)_mm256_dpbusd_avx_epi32((__m256i)c, a, b);
}
//% else
INLINE right_bytes load_bytes(const float* p) {
  const __m256i x = _mm256_loadu_si256((const __m256i*)p);
  return {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)};
}
INLINE vi dot_bytes(left_bytes a, right_bytes b, vi c) {
  c = (vi)_mm256_add_epi32((__m256i)c, _mm256_madd_epi16(a.even, b.even));
  return (vi)_mm256_add_epi32((__m256i)c, _mm256_madd_epi16(a.odd, b.odd));
}
//% endif
INLINE vi set1_int(int32_t x) { return (vi)_mm256_set1_epi32(x); }
INLINE vi load_ints(const float* p) { return (vi)_mm256_loadu_si256((const __m256i*)p); }
//% endif
//% if "nbits" in needs

// Four codes a lane, unsigned and of BITS bits, times four signed bytes; c + the sum of products.
template <int BITS>
INLINE vi dot_codes(vi codes, vi x, vi c) {
  const __m256i a = (__m256i)codes, b = (__m256i)x, sum = (__m256i)c;
  //% if isa == "avxvnni"
  return (vi)_mm256_dpbusd_avx_epi32(sum, a, b);
  //% else
  if (BITS < 8) {  // pairs of products fit 16 bits
    const __m256i pairs = _mm256_maddubs_epi16(a, b);
    return (vi)_mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8);
  const __m256i low = _mm256_and_si256(a, _mm256_set1_epi32(0x00ff00ff));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return (vi)_mm256_add_epi32(_mm256_add_epi32(sum, odd), _mm256_madd_epi16(low, even));
  //% endif
}
INLINE vi load_codes(const uint8_t* p) { return (vi)_mm256_loadu_si256((const __m256i*)p); }
INLINE vi widen_bytes(const uint8_t* p) {
  return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
//% endif
//% if "f16" in needs

// Numbers in fp16; stored is the nearest, ties to even.  Every processor with AVX2 has F16C, but
// compilers ask for a flag of its own.
INLINE vf load_f16(const uint16_t* p) {
  vf v;
  __asm__("vcvtph2ps %1, %0" : "=x"(v) : "m"(*(const __m128i_u*)p));
  return v;
}
INLINE vf load_f16(const uint16_t* p, int64_t n) {
  uint16_t each[W] = {};
  for (int64_t i = 0; i < n; i++) each[i] = p[i];
  return load_f16(each);
}
INLINE void store_f16(uint16_t* p, vf v, int64_t n) {
  __m128i made;
  __asm__("vcvtps2ph $0, %1, %0" : "=x"(made) : "x"(v));
  if (n >= W) return _mm_storeu_si128((__m128i*)p, made);
  uint16_t each[W];
  _mm_storeu_si128((__m128i*)each, made);
  for (int64_t i = 0; i < n; i++) p[i] = each[i];
}
//% endif
//% if "bf16" in needs

// The nearest bf16, ties to even; a NaN stays one.
INLINE void store_bf16(uint16_t* p, vf v, int64_t n) {
  uint32_t u[W];
  __builtin_memcpy(u, &v, sizeof u);
  for (int i = 0; i < W && i < n; i++) {
    const uint32_t near = (u[i] + 0x7fff + (u[i] >> 16 & 1)) >> 16;
    p[i] = (uint16_t)((u[i] & 0x7fffffff) > 0x7f800000 ? u[i] >> 16 | 0x40 : near);
  }
}
INLINE void store_bf16(uint16_t* p, vf v) { store_bf16(p, v, W); }
INLINE vf load_bf16(const uint16_t* p) {
  const __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return (vf)_mm256_slli_epi32(u, 16);
}

// Lanes of the bf16 at p (first) and q (second).
INLINE vf join_bf16(const uint16_t* p, const uint16_t* q, int64_t n) {
  uint32_t u[W] = {};
  for (int i = 0; i < W && i < n; i++) u[i] = (uint32_t)p[i] | (uint32_t)q[i] << 16;
  vf v;
  __builtin_memcpy(&v, u, sizeof v);
  return v;
}
//% endif
//% if "transpose_tile" in needs or "transpose" in needs

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
//% endif
//% if "transpose_tile" in needs

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
//% endif
//% if "transpose" in needs

// One 8 x 8 block of transpose(): rows outside `rows` are zero, columns outside `cols` not written.
INLINE void transpose8(const float* src, int64_t stride, int rows, int cols, float* dst) {
  const vm m = first(cols);
  vf a[8];
  UNROLL for (int r = 0; r < 8; r++) a[r] = r < rows ? load(src + r * stride, m) : set1(0.0f);
  transpose_block(a);
  UNROLL for (int c = 0; c < 8; c++) if (c < cols) store(dst + c * 16, a[c]);
}

// dst[c][r] = src[r][c], c < cols <= 16, r < 16; rows from `rows` on are zero.
INLINE void transpose(const float* src, int64_t stride, int rows, int cols, float* dst) {
  for (int r = 0; r < 16; r += 8)
    for (int c = 0; c < cols; c += 8)
      transpose8(src + r * stride + c, stride, rows - r, cols - c, dst + c * 16 + r);
}
//% endif
//% if "hreduce" in needs

// Lane i: the sum of a[i].
INLINE vf hreduce(vf (&a)[8]) {
  const vf low = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
  const vf high = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
  return _mm256_permute2f128_ps(low, high, 0x20) + _mm256_permute2f128_ps(low, high, 0x31);
}
//% endif
//% if "permute" in needs

// Lane i: lane idx[i] of a, idx below W.
INLINE vf permute(vf a, vi idx) { return _mm256_permutevar8x32_ps(a, (__m256i)idx); }
INLINE vi load_lanes(const int32_t* p) { return (vi)_mm256_loadu_si256((const __m256i*)p); }
INLINE vm mask_of(const bool* p) {
  return _mm256_sub_epi32(_mm256_setzero_si256(),
                          _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
//% endif
//% if "lane_index" in needs

// Vectors of indices.
INLINE vi splat(int32_t n) { return (vi)_mm256_set1_epi32(n); }
INLINE vi lanes() { return (vi)_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
INLINE vi load_indices(const int32_t* p, vm m) { return (vi)_mm256_maskload_epi32(p, m); }
INLINE void store_indices(int32_t* p, vi v, vm m) { _mm256_maskstore_epi32(p, m, (__m256i)v); }
INLINE vm less(vi a, vi b) { return _mm256_cmpgt_epi32((__m256i)b, (__m256i)a); }
//% endif
