// Numbers as sums of two in bf16, both halves as bits.
INLINE __m512i upper_half(__m512 x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)); }
INLINE __m512i after(__m512i first, __m512i second) {
  return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

// `first` and what comes by twos behind the CHANNELS whole ones: partners of the other operand.
template <int CHANNELS>
INLINE void by_twos(__m512i* lane, const __m512i* half) {
  const __m512i none = _mm512_setzero_si512();
  UNROLL for (int c = 0; c < CHANNELS; c += 2)
    lane[CHANNELS + c / 2] = after(half[c], c + 1 < CHANNELS ? half[c + 1] : none);
}

// The halves of CHANNELS channels of sixteen columns; returns where an upper one is not finite.
template <int CHANNELS>
INLINE __mmask16 halves_of(const tracea_first_layer_line* t, int64_t column, __mmask16 there,
                           __m512i* upper, __m512i* lower) {
  __mmask16 odd = 0;
  const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i places = _mm512_mullo_epi32(iota, _mm512_set1_epi32((int)t->x_column));
  UNROLL for (int c = 0; c < CHANNELS; c++) {
    const float* x = t->x + c * t->x_channel + column * t->x_column;
    const __m512 v = t->x_column == 1
                         ? _mm512_maskz_loadu_ps(there, x)
                         : _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, places, x, 4);
    upper[c] = upper_half(v);
    const __m512 rounded = _mm512_castsi512_ps(_mm512_slli_epi32(upper[c], 16));
    odd |= _mm512_fpclass_ps_mask(rounded, 0x99);  // a NaN or infinite
    lower[c] = upper_half(_mm512_sub_ps(v, rounded));
  }
  return odd;
}

template <int CHANNELS>
int32_t split_weights(const tracea_first_layer_line* t) {
  __m512i upper[CHANNELS], lower[CHANNELS], lane[TRACEA_STEM_LANES(CHANNELS)];
  const __mmask16 odd = halves_of<CHANNELS>(t, 0, 0xffff, upper, lower);
  UNROLL for (int c = 0; c < CHANNELS; c++) lane[c] = after(upper[c], upper[c]);
  by_twos<CHANNELS>(lane, lower);
  UNROLL for (int i = 0; i < TRACEA_STEM_LANES(CHANNELS); i++)
    _mm512_storeu_si512(t->y + i * PANEL, lane[i]);
  return !odd;
}

// Lanes of sixteen columns become columns of so many lanes: number i of those is lane i % LANES of
// column i / LANES.
template <int CHANNELS>
int32_t split_columns(const tracea_first_layer_line* t) {
  enum { LANES = TRACEA_STEM_LANES(CHANNELS) };
  const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i from[LANES];
  __mmask16 takes[LANES][LANES], odd = 0;
  UNROLL for (int i = 0; i < LANES; i++) {
    const __m512i at = _mm512_add_epi32(iota, _mm512_set1_epi32(i * PANEL));
    from[i] = _mm512_srli_epi32(_mm512_mullo_epi32(at, _mm512_set1_epi32(65536 / LANES + 1)), 16);
    const __m512i rest =
        _mm512_sub_epi32(at, _mm512_mullo_epi32(from[i], _mm512_set1_epi32(LANES)));
    UNROLL for (int l = 0; l < LANES; l++)
      takes[i][l] = _mm512_cmpeq_epi32_mask(rest, _mm512_set1_epi32(l));
  }
  for (int64_t column = 0; column < t->columns; column += PANEL) {
    const int64_t left = t->columns - column, columns = left < PANEL ? left : int64_t{PANEL};
    const __mmask16 there = (__mmask16)((1u << columns) - 1);
    __m512i upper[CHANNELS], lower[CHANNELS], lane[LANES];
    odd |= halves_of<CHANNELS>(t, column, there, upper, lower);
    UNROLL for (int c = 0; c < CHANNELS; c++) lane[c] = after(upper[c], lower[c]);
    by_twos<CHANNELS>(lane, upper);
    float* y = t->y + column * LANES;
    UNROLL for (int i = 0; i < LANES; i++) {
      __m512i made = _mm512_permutexvar_epi32(from[i], lane[0]);
      UNROLL for (int l = 1; l < LANES; l++)
        made = _mm512_mask_permutexvar_epi32(made, takes[i][l], from[i], lane[l]);
      const int64_t count = columns * LANES - i * PANEL;
      const uint32_t some = count <= 0 ? 0 : count < PANEL ? (1u << count) - 1 : 0xffff;
      _mm512_mask_storeu_ps(y + i * PANEL, (__mmask16)some, _mm512_castsi512_ps(made));
    }
  }
  return !odd;
}
