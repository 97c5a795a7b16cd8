// Transposes and horizontal sums of 16 x 16 blocks.
//% if "transpose_tile" in needs or "transpose" in needs

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
//% endif
//% if "transpose_tile" in needs

// dst[c][r] = src[r][c], r < rows, c < cols; of either at most W count.
INLINE void transpose_tile(const float* src, int64_t stride, int64_t rows, int64_t cols, float* dst,
                 int64_t dst_stride) {
  vf a[16];
  if (rows >= 16 && cols >= 16) {
    UNROLL for (int r = 0; r < 16; r++) a[r] = load(src + r * stride);
    transpose_block(a);
    UNROLL for (int c = 0; c < 16; c++) store(dst + c * dst_stride, a[c]);
    return;
  }
  const vm in = first(cols), out = first(rows);
  UNROLL for (int r = 0; r < 16; r++) a[r] = r < rows ? load(src + r * stride, in) : set1(0.0f);
  transpose_block(a);
  UNROLL for (int c = 0; c < 16; c++) if (c < cols) store(dst + c * dst_stride, a[c], out);
}
//% endif
//% if "transpose" in needs

// dst[c][r] = src[r][c], c < cols <= 16, r < 16; rows from `rows` on are zero.
INLINE void transpose(const float* src, int64_t stride, int rows, int cols, float* dst) {
  const vm m = first(cols);
  vf a[16];
  UNROLL for (int r = 0; r < 16; r++) a[r] = r < rows ? load(src + r * stride, m) : set1(0.0f);
  transpose_block(a);
  UNROLL for (int c = 0; c < 16; c++) if (c < cols) store(dst + c * 16, a[c]);
}
//% endif
//% if "hreduce" in needs

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
//% endif
