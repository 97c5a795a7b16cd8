// Vectors of eight lanes: AVX2 and FMA.
#define UNROLL _Pragma("GCC unroll 16")
typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));
typedef __m256i vm;
enum { W = 8 };
constexpr float EXP_LOW = -87.33f;  // exp rounds to 2^-126 here, which scale() flushes to 0

INLINE vf set1(float x) { return _mm256_set1_ps(x); }
INLINE vf load(const float* p) { return _mm256_loadu_ps(p); }
INLINE vf load(const float* p, vm m) { return _mm256_maskload_ps(p, m); }
INLINE void store(float* p, vf v) { _mm256_storeu_ps(p, v); }
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
  const vf half = a * from_bits((to_int(n) + 126) << 23);
  return half + half;
}
//% if "transpose" in needs

// One 8 x 8 block of transpose(): rows outside `rows` are zero, columns outside `cols` not written.
INLINE void transpose8(const float* src, int64_t stride, int rows, int cols, float* dst) {
  const vm m = first(cols);
  vf a[8], b[8];
  UNROLL for (int r = 0; r < 8; r++) a[r] = r < rows ? load(src + r * stride, m) : set1(0.0f);
  UNROLL for (int r = 0; r < 8; r += 2) {
    b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
    b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
  }
  UNROLL for (int r = 0; r < 8; r += 4) UNROLL for (int h = 0; h < 2; h++) {
    a[r + 2 * h] = _mm256_shuffle_ps(b[r + h], b[r + 2 + h], 0x44);
    a[r + 2 * h + 1] = _mm256_shuffle_ps(b[r + h], b[r + 2 + h], 0xee);
  }
  UNROLL for (int c = 0; c < 4; c++) {
    if (c < cols) store(dst + c * 16, _mm256_permute2f128_ps(a[c], a[c + 4], 0x20));
    if (c + 4 < cols) store(dst + (c + 4) * 16, _mm256_permute2f128_ps(a[c], a[c + 4], 0x31));
  }
}

// dst[c][r] = src[r][c], c < cols <= 16, r < 16; rows from `rows` on are zero.
INLINE void transpose(const float* src, int64_t stride, int rows, int cols, float* dst) {
  for (int r = 0; r < 16; r += 8)
    for (int c = 0; c < cols; c += 8)
      transpose8(src + r * stride + c, stride, rows - r, cols - c, dst + c * 16 + r);
}
//% endif
