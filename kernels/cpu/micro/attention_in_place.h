// Keys and values that a few queries read where they lie: row after row, whole rows where registers
// hold enough sums.  Memory read in order arrives about twice as fast as that of many rows at once.

// sums[i][0] = lanes of the products of R queries with a key.
template <int R>
INLINE void multiply_key(const tracea_attention_tile* t, const ${"cached" if stored else "float"}* key, const float* q,
                         vf (*sums)[W]) {
  vf a[R];
  UNROLL for (int i = 0; i < R; i++) a[i] = set1(0.0f);
  int64_t d = 0;
  for (; d + W <= t->head; d += W) {
    const vf x = load${"_cached" if stored}(key + d);
    UNROLL for (int i = 0; i < R; i++) a[i] = fma(x, load(q + i * t->q_stride + d), a[i]);
  }
  if (d < t->head) {
    const vm m = first(t->head - d);
    const vf x = ${"load_cached(key + d, t->head - d)" if stored else "load(key + d, m)"};
    UNROLL for (int i = 0; i < R; i++) a[i] = fma(x, load(q + i * t->q_stride + d, m), a[i]);
  }
  UNROLL for (int i = 0; i < R; i++) sums[i][0] = a[i];
}

// scores[rows x keys] = scale * q k^T, zeros up to a whole panel.
void score_in_place(const tracea_attention_tile* t, const float* q, int64_t rows, int64_t k,
                    int64_t keys, float* scores) {
  vf sums[QB][W];
  for (int64_t j = 0; j < padded(keys); j += W) {
    for (int64_t w = 0; w < W; w++) {
      //% if stored
      const cached* key = cached_keys(t) + (k + j + w) * t->k_stride;
      //% else
      const float* key = t->k + (k + j + w) * t->k_stride;
      //% endif
      const auto at = [&](int64_t i) { return (vf(*)[W])&sums[i][w]; };
      int64_t i = 0;
      if (j + w >= keys)
        for (; i < rows; i++) sums[i][w] = set1(0.0f);
      for (; i + 4 <= rows; i += 4) multiply_key<4>(t, key, q + i * t->q_stride, at(i));
      for (; i + 2 <= rows; i += 2) multiply_key<2>(t, key, q + i * t->q_stride, at(i));
      for (; i < rows; i++) multiply_key<1>(t, key, q + i * t->q_stride, at(i));
    }
    for (int64_t i = 0; i < rows; i++)
      store(scores + i * KB + j, hreduce(sums[i]) * set1(t->scale));
  }
}

//% if stored
// The value `n` elements behind another one in the cache.
INLINE const float* cached_behind(const float* value, int64_t n) {
  return (const float*)((const cached*)value + n);
}

// accumulate() of values that are converted as they are read.
template <int MR, int NV>
OUTLINED void accumulate_cached(const SumBlock& s) {
  vf c[MR][NV * P], b[NV * P];
  begin_sums<MR, NV>(s, c);
  for (int64_t k = 0; k < s.rows; k++) {
    const cached* row = (const cached*)s.values + k * s.values_width;
    UNROLL for (int j = 0; j < NV * P; j++) b[j] = load_cached(row + j * W);
    ${step}<MR, NV>(c, s.weights + k, s.weights_row, b);
  }
  end_sums<MR, NV>(s, c);
}

constexpr void (*ACCUMULATE_CACHED[][${panels | length}])(const SumBlock&) = {
    //% for m in rows
    {
        //% for n in panels
        accumulate_cached<${m}, ${n}>,
        //% endfor
    },
    //% endfor
};

//% endif
// Adds values, weighted by scores, to the sums of `rows` rows and `panels` panels.
void add_in_place(const SumBlock& s, int64_t rows, int64_t panels) {
  const auto part = [&](int64_t i, int64_t j) {
    //% set column = "cached_behind(s.values, j * PANEL)" if stored else "s.values + j * PANEL"
    return SumBlock{s.rows, s.weights + i * s.weights_row, s.weights_row, ${column},
                    s.values_width, s.sums + i * s.width + j * PANEL, s.width,
                    s.decay ? s.decay + i : nullptr};
  };
  int64_t j = 0;
  //% for wide, tiles in whole
  for (; j + ${wide} <= panels; j += ${wide}) {
    int64_t i = 0;
    //% for m in tiles
    for (; i + ${m} <= rows; i += ${m}) accumulate${"_cached" if stored}<${m}, ${wide}>(part(i, j));
    //% endfor
  }
  //% endfor
  cover(rows, panels - j, [&](int64_t i, int m, int64_t column, int n) {
    ACCUMULATE${"_CACHED" if stored}[m][n](part(i, j + column));
  });
}
