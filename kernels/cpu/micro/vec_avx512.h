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
//% if "exp_fast" in needs or "gate" in needs or "gate_fast" in needs

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
//% endif
//% if "exp_fast" in needs

// e^x for x < 88: 6e-7 of the result, 0 from -88.03 on.  x = (i / 16) ln 2 + r; half of the steps
// are no multiplications.
INLINE vf v_exp_fast(vf x) {
  const vf magic = set1(12582912.0f), sixteenths = set1(SIXTEENTHS);
  x = max(set1(NO_POWER), x);
  const vf shifted = fma(x, sixteenths, magic);  // its low bits are i
  const vf r = fma(x, sixteenths, magic - shifted), power = power_of_sixteenths(shifted);
  return fma(power * r, fma(r, set1(9.38384503e-4f), set1(0.0433242321f)), power);
}
//% endif
//% if "gate" in needs

// x / (1 + e^-w), 3.1 ulp for w = x; 0 from w = -88.71 on, NaN where x is infinite there, as
// 0 * inf is.  -w = (i / 16) ln 2 + r.  The division is one instruction beside multiplications.
INLINE vf gated(vf x, vf w) {
  const vf magic = set1(12582912.0f), sixteenths = set1(-SIXTEENTHS), one = set1(1.0f);
  w = max(set1(-88.7228394f), min(set1(-NO_POWER), w));
  const vf shifted = fma(w, sixteenths, magic);  // its low bits are i
  const vf r = fma(w, set1(-3.08154078e-7f), fma(w, sixteenths, magic - shifted));
  const vf p = fma(fma(r, set1(1.3550e-5f), set1(9.38384793e-4f)), r, set1(0.0433216988f));
  return x / fma(power_of_sixteenths(shifted), fma(p, r, one), one);
}
//% endif
//% if "gate_fast" in needs

// The same within 2^-12 of it.
INLINE vf gated_fast(vf x, vf w) {
  const vf magic = set1(12582912.0f), sixteenths = set1(-SIXTEENTHS);
  w = max(set1(-88.0f), min(set1(-NO_POWER), w));
  const vf shifted = fma(w, sixteenths, magic);
  const vf r = fma(w, sixteenths, magic - shifted), power = power_of_sixteenths(shifted);
  const vf d = fma(power, fma(r, set1(0.0433216988f), set1(1.0001173f)), set1(1.0f));
  return x * _mm512_rcp14_ps(d);
}
//% endif
//% if "hreduce" in needs

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
//% endif
//% if "round" in needs or "int8" in needs

INLINE vf round_even(vf a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf floor(vf a) { return _mm512_floor_ps(a); }
INLINE vf ceil(vf a) { return _mm512_ceil_ps(a); }
INLINE vf trunc(vf a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
//% endif
//% if "expand" in needs

// The first lanes of a, in order, where m has bits; zero elsewhere.
INLINE vf expand(vf a, uint32_t m) {
  vf zero = set1(0.0f);
  // Into a register of zeros, from another: the instruction waits for what it writes to, and from
  // memory it is several times slower.
  __asm__("" : "+v"(zero), "+v"(a));
  return _mm512_mask_expand_ps(zero, (vm)m, a);
}
INLINE int count_lanes(uint32_t m) { return __builtin_popcount(m); }
//% endif
//% if "mask" in needs

INLINE vm set_mask(bool a) { return (vm)-(int)a; }
INLINE vm both(vm a, vm b) { return (vm)(a & b); }
INLINE vm either(vm a, vm b) { return (vm)(a | b); }
INLINE vm differ(vm a, vm b) { return (vm)(a ^ b); }
INLINE vm invert(vm a) { return (vm)~a; }
INLINE vm equal(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
INLINE vm at_most(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
//% endif
//% if "any" in needs

INLINE bool any(vm m) { return m != 0; }
//% endif
//% if "bytes" in needs

INLINE vm load_mask(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return _mm_test_epi8_mask(bytes, bytes);
}
INLINE vm load_mask(const uint8_t* p, int64_t n) {
  const __m128i bytes = _mm_maskz_loadu_epi8(first(n), p);
  return _mm_test_epi8_mask(bytes, bytes);
}
INLINE void store_mask(uint8_t* p, vm m) {
  _mm_storeu_si128((__m128i*)p, _mm_maskz_set1_epi8(m, 1));
}
INLINE void store_mask(uint8_t* p, vm m, int64_t n) {
  _mm_mask_storeu_epi8(p, first(n), _mm_maskz_set1_epi8(m, 1));
}
//% endif
//% if "ints" in needs or "int8" in needs

INLINE vf load_int(const int32_t* p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
INLINE vf load_int(const int32_t* p, int64_t n) {
  return _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(first(n), p));
}
INLINE vf load_int(const int64_t* p, int64_t n) {
  const vm m = first(n);
  const __m256 a = _mm512_cvtepi64_ps(_mm512_maskz_loadu_epi64((__mmask8)m, p));
  const __m256 b = _mm512_cvtepi64_ps(_mm512_maskz_loadu_epi64((__mmask8)(m >> 8), p + 8));
  return _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1);
}
INLINE vf load_int(const int64_t* p) { return load_int(p, W); }
INLINE vf load_int(const uint8_t* p, int64_t n) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(first(n), p)));
}
INLINE vf load_int(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
INLINE vf load_int(const int8_t* p, int64_t n) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first(n), p)));
}
INLINE vf load_int(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}

// Whole numbers within the type's range.
INLINE void store_int(int32_t* p, vf v, int64_t n) {
  _mm512_mask_storeu_epi32(p, first(n), _mm512_cvttps_epi32(v));
}
INLINE void store_int(int64_t* p, vf v, int64_t n) {
  const vm m = first(n);
  _mm512_mask_storeu_epi64(p, (__mmask8)m, _mm512_cvttps_epi64(_mm512_castps512_ps256(v)));
  _mm512_mask_storeu_epi64(p + 8, (__mmask8)(m >> 8),
                           _mm512_cvttps_epi64(_mm512_extractf32x8_ps(v, 1)));
}
INLINE void store_int(int8_t* p, vf v, int64_t n) {
  _mm_mask_storeu_epi8(p, first(n), _mm512_cvtsepi32_epi8(_mm512_cvttps_epi32(v)));
}
INLINE void store_int(uint8_t* p, vf v, int64_t n) {
  const __m512i whole = _mm512_max_epi32(_mm512_cvttps_epi32(v), _mm512_setzero_si512());
  _mm_mask_storeu_epi8(p, first(n), _mm512_cvtusepi32_epi8(whole));
}
template <typename T>
INLINE void store_int(T* p, vf v) { store_int(p, v, W); }
INLINE void store_int(int8_t* p, vf v) {
  _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(_mm512_cvttps_epi32(v)));
}
INLINE void store_int(uint8_t* p, vf v) {
  const __m512i whole = _mm512_max_epi32(_mm512_cvttps_epi32(v), _mm512_setzero_si512());
  _mm_storeu_si128((__m128i*)p, _mm512_cvtusepi32_epi8(whole));
}

// Numbers of at most the type's range, rounded half to even, plus `zero`; negative sums become 0.
INLINE __m512i rounded(vf v) {
  return _mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE __m512i rounded(vf v, int zero) {
  return _mm512_add_epi32(rounded(v), _mm512_set1_epi32(zero));
}
INLINE void store_rounded(int8_t* p, vf v, int zero) {
  _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(rounded(v, zero)));
}
INLINE void store_rounded(int8_t* p, vf v, int zero, int64_t n) {
  _mm_mask_storeu_epi8(p, first(n), _mm512_cvtsepi32_epi8(rounded(v, zero)));
}
INLINE __m128i unsigned_bytes(__m512i whole) {
  return _mm512_cvtusepi32_epi8(_mm512_max_epi32(whole, _mm512_setzero_si512()));
}
INLINE void store_rounded(uint8_t* p, vf v, int zero) {
  _mm_storeu_si128((__m128i*)p, unsigned_bytes(rounded(v, zero)));
}
INLINE void store_rounded(uint8_t* p, vf v, int zero, int64_t n) {
  _mm_mask_storeu_epi8(p, first(n), unsigned_bytes(rounded(v, zero)));
}

// V vectors of integers as bytes, one behind the other; larger and smaller ones become the bounds.
INLINE __m512i pack_bytes(__m512i a, __m512i b, uint8_t*) { return _mm512_packus_epi16(a, b); }
INLINE __m512i pack_bytes(__m512i a, __m512i b, int8_t*) { return _mm512_packs_epi16(a, b); }
template <int V, typename T>
INLINE void store_packed(T* p, __m512i low, __m512i high) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_permutexvar_epi32(order, pack_bytes(low, high, p));
  if (V == 4) _mm512_storeu_si512(p, bytes);
  if (V == 3 || V == 2) _mm256_storeu_si256((__m256i*)p, _mm512_castsi512_si256(bytes));
  if (V == 3) _mm_storeu_si128((__m128i*)(p + 2 * W), _mm512_extracti32x4_epi32(bytes, 2));
  if (V == 1) _mm_storeu_si128((__m128i*)p, _mm512_castsi512_si128(bytes));
}
template <int V, typename T>
INLINE void store_bytes(T* p, const __m512i (&v)[V]) {
  const __m512i low = _mm512_packs_epi32(v[0], v[V > 1]);
  const __m512i high = V > 2 ? _mm512_packs_epi32(v[V > 2 ? 2 : 0], v[V > 3 ? 3 : 0]) : low;
  store_packed<V>(p, low, high);
}
// After adding `zero`, which is a byte.
template <int V, typename T>
INLINE void store_bytes(T* p, const __m512i (&v)[V], int zero) {
  const __m512i more = _mm512_set1_epi16((int16_t)zero);
  const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32(v[0], v[V > 1]), more);
  if (V < 3) return store_packed<V>(p, low, low);
  const __m512i high = _mm512_packs_epi32(v[V > 2 ? 2 : 0], v[V > 3 ? 3 : 0]);
  store_packed<V>(p, low, _mm512_adds_epi16(high, more));
}
//% endif
//% if "look_up" in needs

// Entries of a table of 256 bytes; lanes hold their places.  Pairs of entries are looked up, in
// either half of the table, and shifted.
template <typename T>
INLINE vf look_up(const T* table, vf at) {
  const __m512i *half = (const __m512i*)table, place = _mm512_cvttps_epi32(at);
  const __m512i pair = _mm512_srli_epi32(place, 1);
  const __m512i low = _mm512_permutex2var_epi16(half[0], pair, half[1]);
  const __m512i high = _mm512_permutex2var_epi16(half[2], pair, half[3]);
  const __m512i found =
      _mm512_mask_mov_epi32(low, _mm512_test_epi32_mask(place, _mm512_set1_epi32(128)), high);
  const __m512i shift = _mm512_slli_epi32(_mm512_andnot_si512(place, _mm512_set1_epi32(1)), 3);
  const __m512i top = _mm512_slli_epi32(_mm512_sllv_epi32(found, shift), 16);
  return _mm512_cvtepi32_ps((T)-1 < 0 ? _mm512_srai_epi32(top, 24) : _mm512_srli_epi32(top, 24));
}
//% endif
//% if "double" in needs

// A vector as two halves in double precision.
typedef __m512d vd;
INLINE vd set1d(double x) { return _mm512_set1_pd(x); }
INLINE vd low(vf a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
INLINE vd high(vf a) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }
INLINE vf join(vd a, vd b) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a)), _mm512_cvtpd_ps(b), 1);
}
//% endif
//% if "turns" in needs

INLINE vi to_int(vf a) { return (vi)_mm512_cvtps_epi32(a); }

// x - n pi/2; pi/2 in three parts.
INLINE vf minus_turns(vf x, vf n) {
  x = fma(n, set1(-0x1.921fb6p+0f), x);
  return fma(n, set1(0x1.ee59dap-50f), fma(n, set1(0x1.777a5cp-25f), x));
}
//% endif
//% if "vnni2" in needs

// A lane holds two bf16, the first in its lower half; each half as a float.
INLINE vf lower(vf a) { return from_bits(bits(a) << 16); }
INLINE vf upper(vf a) { return (vf)_mm512_maskz_mov_epi16(0xaaaaaaaa, (__m512i)a); }
//% if isa == "avx512bf16"
INLINE vf dot_vnni2(vf a, vf b, vf c) {
  return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
//% else
INLINE vf dot_vnni2(vf a, vf b, vf c) { return fma(upper(a), upper(b), fma(lower(a), lower(b), c)); }
//% endif
//% endif
//% if "int16" in needs

// A lane holds two 16-bit integers; c + the sum of their products.
INLINE vi dot_int16(vf a, vf b, vi c) {
//% if isa == "avx512bf16"
  return (vi)_mm512_dpwssd_epi32((__m512i)c, (__m512i)a, (__m512i)b);
//% else
  return (vi)_mm512_add_epi32((__m512i)c, _mm512_madd_epi16((__m512i)a, (__m512i)b));
//% endif
}

// The nearest whole numbers, ties to even.
INLINE __m256i to_int16(vf v) { return _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v)); }
INLINE void store_int16(int16_t* p, vf v) { _mm256_storeu_si256((__m256i*)p, to_int16(v)); }
INLINE void store_int16(int16_t* p, vf v, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), to_int16(v));
}
//% endif
//% if "int8" in needs

// A lane holds four bytes, unsigned on the left and signed on the right; c + the sum of their
// products.  `flip` inverts bits of the left operand.
//% if isa in ("avx512vnni", "avx512bf16", "amxint8", "amxbf16")
typedef __m512i left_bytes;
typedef __m512i right_bytes;
INLINE left_bytes left_of(vi x, vi flip) { return _mm512_xor_si512((__m512i)x, (__m512i)flip); }
INLINE right_bytes load_bytes(const float* p) { return _mm512_loadu_si512(p); }
INLINE vi dot_bytes(left_bytes a, right_bytes b, vi c) {
  return (vi)_mm512_dpbusd_epi32((__m512i)c, a, b);
}
//% else
// Products of bytes are added in 16 bits by vpmaddubsw, which saturates; so even and odd bytes are
// widened to 16 bits, whose products are added in 32.
struct left_bytes { __m512i even, odd; };
typedef left_bytes right_bytes;
INLINE left_bytes left_of(vi bytes, vi flip) {
  const __m512i x = _mm512_xor_si512((__m512i)bytes, (__m512i)flip);
  return {_mm512_and_si512(x, _mm512_set1_epi32(0x00ff00ff)), _mm512_srli_epi16(x, 8)};
}
INLINE right_bytes load_bytes(const float* p) {
  const __m512i x = _mm512_loadu_si512(p);
  return {_mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8), _mm512_srai_epi16(x, 8)};
}
INLINE vi dot_bytes(left_bytes a, right_bytes b, vi c) {
  c = (vi)_mm512_add_epi32((__m512i)c, _mm512_madd_epi16(a.even, b.even));
  return (vi)_mm512_add_epi32((__m512i)c, _mm512_madd_epi16(a.odd, b.odd));
}
//% endif
INLINE left_bytes broadcast_bytes(const float* p, vi flip) {
  return left_of((vi)_mm512_castps_si512(_mm512_set1_ps(*p)), flip);
}
INLINE __m128i some_bytes(const uint8_t* p, int64_t n) {
  return n >= W ? _mm_loadu_si128((const __m128i*)p) : _mm_maskz_loadu_epi8(first(n), p);
}
// Byte i of lane j is that at address t[i] for channel `at` + j; n lanes are used.
INLINE vi four_taps(const uint8_t* const* t, int64_t at, int64_t n) {
  __m512i x = _mm512_castsi128_si512(some_bytes(t[0] + at, n));
  x = _mm512_inserti32x4(x, some_bytes(t[1] + at, n), 1);
  x = _mm512_inserti32x4(x, some_bytes(t[2] + at, n), 2);
  x = _mm512_inserti32x4(x, some_bytes(t[3] + at, n), 3);
  const __m512i fours = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const __m512i turned = _mm512_broadcast_i32x4(
      _mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0));
  return (vi)_mm512_shuffle_epi8(_mm512_permutexvar_epi32(fours, x), turned);
}
INLINE vi one_tap(const uint8_t* p, int64_t n) {
  return (vi)_mm512_cvtepu8_epi32(some_bytes(p, n));
}
INLINE vi widened(const uint8_t* p) {
  return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
INLINE vi widened(const uint8_t* p, vm lanes) {
  return (vi)_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, p));
}
INLINE vi set1_int(int32_t x) { return (vi)_mm512_set1_epi32(x); }
INLINE vi load_ints(const float* p) { return (vi)_mm512_loadu_si512(p); }
//% endif
//% if "nbits" in needs

// Four codes a lane, unsigned and of BITS bits, times four signed bytes; c + the sum of products.
template <int BITS>
INLINE vi dot_codes(vi codes, vi x, vi c) {
  const __m512i a = (__m512i)codes, b = (__m512i)x, sum = (__m512i)c;
  //% if isa in ("avx512vnni", "avx512bf16", "amxint8", "amxbf16")
  return (vi)_mm512_dpbusd_epi32(sum, a, b);
  //% else
  if (BITS < 8) {  // pairs of products fit 16 bits
    const __m512i pairs = _mm512_maddubs_epi16(a, b);
    return (vi)_mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8);
  const __m512i low = _mm512_and_si512(a, _mm512_set1_epi32(0x00ff00ff));
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));
  return (vi)_mm512_add_epi32(_mm512_add_epi32(sum, odd), _mm512_madd_epi16(low, even));
  //% endif
}
INLINE vi load_codes(const uint8_t* p) { return (vi)_mm512_loadu_si512(p); }
INLINE vi widen_bytes(const uint8_t* p) {
  return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
//% endif
//% if "f16" in needs

// Numbers in fp16; stored is the nearest, ties to even.
INLINE vf load_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
INLINE vf load_f16(const uint16_t* p, int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
}
INLINE void store_f16(uint16_t* p, vf v, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
//% endif
//% if "bf16" in needs

// The nearest bf16, ties to even; a NaN stays one.
//% if isa in ("avx512bf16", "amxbf16")
INLINE __m256i to_bf16(vf v) { return (__m256i)_mm512_cvtneps_pbh(v); }  // subnormals are 0
//% else
INLINE __m256i to_bf16(vf v) {
  const __m512i u = (__m512i)v, last = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i near = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), last);
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(
      _mm512_srli_epi32(_mm512_mask_mov_epi32(near, is_nan(v), quiet), 16));
}
//% endif
INLINE void store_bf16(uint16_t* p, vf v) { _mm256_storeu_si256((__m256i*)p, to_bf16(v)); }
INLINE void store_bf16(uint16_t* p, vf v, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), to_bf16(v));
}
INLINE vf load_bf16(const uint16_t* p) {
  const __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return (vf)_mm512_slli_epi32(u, 16);
}

// Lanes of the bf16 at p (first) and q (second).
INLINE vf join_bf16(const uint16_t* p, const uint16_t* q, int64_t n) {
  const __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), p));
  const __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first(n), q));
  return (vf)_mm512_or_si512(a, _mm512_slli_epi32(b, 16));
}
//% endif
//% if "half_tile" in needs

// The lower eight lanes alone, at half the cost.
typedef __m256 vh;
INLINE vh low_half(vf a) { return _mm512_castps512_ps256(a); }
INLINE vf from_half(vh a) { return _mm512_castps256_ps512(a); }  // the others hold anything
INLINE vh load_half(const float* p) { return _mm256_loadu_ps(p); }
INLINE void store(float* p, vh v) { _mm256_storeu_ps(p, v); }
INLINE vh fma(vh a, vh b, vh c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vh min(vh a, vh b) { return _mm256_min_ps(a, b); }
INLINE vh max(vh a, vh b) { return _mm256_max_ps(a, b); }
//% if "vnni2" in needs
//% if isa == "avx512bf16"
INLINE vh dot_vnni2(vh a, vh b, vh c) {
  return _mm256_dpbf16_ps(c, (__m256bh)a, (__m256bh)b);
}
//% else
INLINE vh dot_vnni2(vh a, vh b, vh c) {
  return low_half(dot_vnni2(from_half(a), from_half(b), from_half(c)));
}
//% endif
//% endif
//% if "bf16" in needs
INLINE void store_bf16(uint16_t* p, vh v) {
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(to_bf16(from_half(v))));
}
//% endif
//% endif
//% if "transpose_tile" in needs or "transpose" in needs or "hreduce" in needs

//% include "vec_avx512_transpose.h"
//% endif
//% if "permute" in needs

// Lane i: lane idx[i] of a, idx below W.
INLINE vf permute(vf a, vi idx) { return _mm512_permutexvar_ps((__m512i)idx, a); }
INLINE vi load_lanes(const int32_t* p) { return (vi)_mm512_loadu_si512(p); }
INLINE vm mask_of(const bool* p) {
  return _mm_test_epi8_mask(_mm_loadu_si128((const __m128i*)p), _mm_set1_epi8(1));
}
//% endif
//% if "lane_index" in needs

// Vectors of indices.
INLINE vi splat(int32_t n) { return (vi)_mm512_set1_epi32(n); }
INLINE vi lanes() {
  return (vi)_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
INLINE vi load_indices(const int32_t* p, vm m) { return (vi)_mm512_maskz_loadu_epi32(m, p); }
INLINE void store_indices(int32_t* p, vi v, vm m) { _mm512_mask_storeu_epi32(p, m, (__m512i)v); }
INLINE vm less(vi a, vi b) { return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b); }
//% endif
