// Depthwise convolutions of bytes by windows of nine taps, 64 channels at once.
//
// A window is three columns of three taps: i, i + 3 and i + 6 in the order of taps.  The bytes of a
// column are brought side by side, four a lane and the last one idle, and serve all windows that
// see the column: those of the next pixel have the same addresses one or two columns before.

struct Column {  // of a window: addresses of channel 0
  const uint8_t* tap[3];

  static INLINE_MEMBER Column at(const uint8_t* const* taps) { return {{taps[0], taps[3], taps[6]}}; }
  INLINE_MEMBER bool operator==(const Column& other) const {
    return tap[0] == other.tap[0] && tap[1] == other.tap[1] && tap[2] == other.tap[2];
  }
  INLINE_MEMBER Column moved(int64_t by) const { return {{tap[0] + by, tap[1] + by, tap[2] + by}}; }
};

// The columns of one window after another; those that two windows share are loaded once.
struct Windows {
  const tracea_depthwise_bytes_tile* t;
  Column second, third;  // of the window before
  int64_t apart;         // bytes between columns of a window in the image
  int shared;            // columns that such a window has in common with the next one

  template <int V, class LOAD>
  INLINE_MEMBER void next(int64_t p, vi (&x)[3][V], const LOAD& load) {
    if (t->moved && t->moved[p]) {
      second = second.moved(t->step), third = third.moved(t->step);
      if (shared == 2) {
        UNROLL for (int v = 0; v < V; v++) x[0][v] = x[1][v], x[1][v] = x[2][v];
      } else {
        if (shared == 1) UNROLL for (int v = 0; v < V; v++) x[0][v] = x[2][v];
        else load(x[0], second.moved(-apart));
        load(x[1], second);
      }
      return load(x[2], third);
    }
    const uint8_t* const* taps = t->taps + 12 * p;
    const Column one = Column::at(taps), two = Column::at(taps + 1), three = Column::at(taps + 2);
    if (p && one == second && two == third) {
      UNROLL for (int v = 0; v < V; v++) x[0][v] = x[1][v], x[1][v] = x[2][v];
    } else {
      if (p && one == third) UNROLL for (int v = 0; v < V; v++) x[0][v] = x[2][v];
      else load(x[0], one);
      load(x[1], two);
    }
    load(x[2], three);
    second = two, third = three;
    apart = three.tap[0] - two.tap[0];
    shared = apart == t->step ? 2 : 2 * apart == t->step ? 1 : 0;
  }
};

// Taps of column i for channels 16 j + (0 .. 15) in x[j].
template <int V>
INLINE void load_column(vi (&x)[V], const Column& taps, int64_t at, __mmask64 bytes, vi flip) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i t[3];
  UNROLL for (int i = 0; i < 3; i++) {
    const uint8_t* from = taps.tap[i] + at;
    const __m512i all = V == 4 && bytes == ~(__mmask64)0 ? _mm512_loadu_si512(from)
                                                         : _mm512_maskz_loadu_epi8(bytes, from);
    t[i] = _mm512_xor_si512(_mm512_permutexvar_epi32(order, all), (__m512i)flip);
  }
  const __m512i ab = _mm512_unpacklo_epi8(t[0], t[1]), c = _mm512_unpacklo_epi8(t[2], t[2]);
  x[0] = (vi)_mm512_unpacklo_epi16(ab, c);
  if (V > 1) x[V > 1] = (vi)_mm512_unpackhi_epi16(ab, c);
  if (V > 2) {
    const __m512i ab2 = _mm512_unpackhi_epi8(t[0], t[1]), c2 = _mm512_unpackhi_epi8(t[2], t[2]);
    x[V > 2 ? 2 : 0] = (vi)_mm512_unpacklo_epi16(ab2, c2);
    if (V > 3) x[V > 3 ? 3 : 0] = (vi)_mm512_unpackhi_epi16(ab2, c2);
  }
}

// Weights of a column from those in fours of taps: bytes i, i + 3 and i + 6 of each lane.
INLINE __m512i column_weights(const float* w, int i) {
  const auto byte = [w](int tap) __attribute__((always_inline)) {
    const __m512i four = _mm512_loadu_si512(w + tap / 4 * PANEL);
    return _mm512_and_si512(_mm512_srli_epi32(four, tap % 4 * 8), _mm512_set1_epi32(255));
  };
  const __m512i second = _mm512_slli_epi32(byte(i + 3), 8), third = _mm512_slli_epi32(byte(i + 6), 16);
  return _mm512_or_si512(byte(i), _mm512_or_si512(second, third));
}

// V vectors of channels of all pixels, the last one perhaps in part.
template <int V, bool ROUNDS>
void depthwise_columns(const tracea_depthwise_bytes_tile* t, int64_t at) {
  const int64_t channel = t->channel + at;
  const int64_t used = t->channels - at < V * W ? t->channels - at : (int64_t)V * W;
  const __mmask64 bytes = ~(__mmask64)0 >> (64 - used);
  const vm edge = first(used - (V - 1) * W);
  const bool whole = used == V * W;
  const vi flip = set1_int(t->flip), zero = set1_int(-t->zero);
  alignas(64) float w[3][V][W];
  vi start[V], x[3][V];
  UNROLL for (int v = 0; v < V; v++) {
    const int64_t lane = at + v * W;
    const float* from = t->w + lane / PANEL * t->w_panel;
    start[v] = (vi)((vu)load_ints(from + 3 * PANEL) * (vu)zero);
    UNROLL for (int i = 0; i < 3; i++) _mm512_store_si512(w[i][v], column_weights(from, i));
  }
  Windows windows = {t, {}, {}, 0, 0};
  const auto load = [&](vi (&to)[V], const Column& taps) __attribute__((always_inline)) {
    load_column(to, taps, channel, bytes, flip);
  };
  float* c = t->c + at;
  const Rounding<ROUNDS ? V : 0> rounding(t, at, edge, whole);
  for (int64_t p = 0; p < t->pixels; p++, c += t->ldc) {
    windows.next(p, x, load);
    vi sum[V];
    UNROLL for (int v = 0; v < V; v++) {
      sum[v] = start[v];
      UNROLL for (int i = 0; i < 3; i++)
        sum[v] = dot_bytes(left_of(x[i][v], vi{}), load_bytes(w[i][v]), sum[v]);
    }
    if (ROUNDS) {
      uint8_t* to = t->bytes + at + p * t->bytes_row;
      if (rounding.fit) rounding.store_fitting(to, sum);
      else rounding.store_row(to, sum, edge, whole);
      continue;
    }
    UNROLL for (int v = 0; v < V; v++) {
      if (v < V - 1 || whole) store(c + v * W, to_float(sum[v]));
      else store(c + v * W, to_float(sum[v]), edge);
    }
  }
}

// Vector l of v has channels 16 l + (0 .. 15); afterwards 128 bits l of vector j have 16 l + 4 j + (0 .. 3),
// as unpacking bytes leaves them.
INLINE void by_lanes(vf (&v)[4]) {
  const vf a = _mm512_shuffle_f32x4(v[0], v[1], 0x44), b = _mm512_shuffle_f32x4(v[2], v[3], 0x44);
  const vf c = _mm512_shuffle_f32x4(v[0], v[1], 0xee), d = _mm512_shuffle_f32x4(v[2], v[3], 0xee);
  v[0] = _mm512_shuffle_f32x4(a, b, 0x88), v[1] = _mm512_shuffle_f32x4(a, b, 0xdd);
  v[2] = _mm512_shuffle_f32x4(c, d, 0x88), v[3] = _mm512_shuffle_f32x4(c, d, 0xdd);
}

// Taps of column i in the order of by_lanes().
template <bool FLIPS>
INLINE void load_lanes(vi (&x)[4], const Column& taps, int64_t at, vi flip) {
  __m512i t[3];
  UNROLL for (int i = 0; i < 3; i++) {
    t[i] = _mm512_loadu_si512(taps.tap[i] + at);
    if (FLIPS) t[i] = _mm512_xor_si512(t[i], (__m512i)flip);
  }
  const __m512i ab = _mm512_unpacklo_epi8(t[0], t[1]), c = _mm512_unpacklo_epi8(t[2], t[2]);
  const __m512i ab2 = _mm512_unpackhi_epi8(t[0], t[1]), c2 = _mm512_unpackhi_epi8(t[2], t[2]);
  x[0] = (vi)_mm512_unpacklo_epi16(ab, c), x[1] = (vi)_mm512_unpackhi_epi16(ab, c);
  x[2] = (vi)_mm512_unpacklo_epi16(ab2, c2), x[3] = (vi)_mm512_unpackhi_epi16(ab2, c2);
}

// 64 channels of all pixels, whose results fit, as bytes: no byte changes its 128 bits.
template <bool FLIPS>
void depthwise_lanes(const tracea_depthwise_bytes_tile* t, int64_t at) {
  enum { V = 4 };
  const int64_t channel = t->channel + at;
  const vi flip = set1_int(t->flip), zero = set1_int(-t->zero);
  alignas(64) float w[3][V][W];
  vf start[V], factor[V], summand[V], turned[3][V];
  vi x[3][V];
  UNROLL for (int v = 0; v < V; v++) {
    const int64_t lane = at + v * W;
    const float* from = t->w + lane / PANEL * t->w_panel;
    start[v] = (vf)(vi)((vu)load_ints(from + 3 * PANEL) * (vu)zero);
    factor[v] = load(t->factor + lane), summand[v] = load(t->summand + lane);
    UNROLL for (int i = 0; i < 3; i++) turned[i][v] = (vf)column_weights(from, i);
  }
  by_lanes(start), by_lanes(factor), by_lanes(summand);
  UNROLL for (int i = 0; i < 3; i++) {
    by_lanes(turned[i]);
    UNROLL for (int v = 0; v < V; v++) store(w[i][v], turned[i][v]);
  }
  const __m512i more = _mm512_set1_epi16((int16_t)t->bytes_zero);
  Windows windows = {t, {}, {}, 0, 0};
  const auto load = [&](vi (&columns)[V], const Column& taps) __attribute__((always_inline)) {
    load_lanes<FLIPS>(columns, taps, channel, flip);
  };
  uint8_t* to = t->bytes + at;
  for (int64_t p = 0; p < t->pixels; p++, to += t->bytes_row) {
    windows.next(p, x, load);
    __m512i whole[V];
    UNROLL for (int v = 0; v < V; v++) {
      vi sum = (vi)start[v];
      UNROLL for (int i = 0; i < 3; i++)
        sum = dot_bytes(left_of(x[i][v], vi{}), load_bytes(w[i][v]), sum);
      whole[v] = rounded(fma(to_float(sum), factor[v], summand[v]));
    }
    const __m512i low = _mm512_adds_epi16(_mm512_packs_epi32(whole[0], whole[1]), more);
    const __m512i high = _mm512_adds_epi16(_mm512_packs_epi32(whole[2], whole[3]), more);
    _mm512_storeu_si512(to, _mm512_packus_epi16(low, high));
  }
}

template <int V>
void depthwise_columns(const tracea_depthwise_bytes_tile* t, int64_t at) {
  if (V == 4 && t->bytes && t->bytes_fit && t->channels - at >= 4 * W)
    return t->flip ? depthwise_lanes<true>(t, at) : depthwise_lanes<false>(t, at);
  if (t->bytes) depthwise_columns<V, true>(t, at);
  else depthwise_columns<V, false>(t, at);
}
