// Keys and values that a few queries read where they lie: row after row, whole rows where registers
// hold enough sums.  Memory read in order arrives about twice as fast as that of many rows at once.

// sums[i][0] = lanes of the products of R queries with a key.
template <int R>
INLINE void multiply_key(const tracea_attention_tile* t, const float* key, const float* q,
                         vf (*sums)[W]) {
  vf a[R];
  UNROLL for (int i = 0; i < R; i++) a[i] = set1(0.0f);
  int64_t d = 0;
  for (; d + W <= t->head; d += W) {
    const vf x = load(key + d);
    UNROLL for (int i = 0; i < R; i++) a[i] = fma(x, load(q + i * t->q_stride + d), a[i]);
  }
  if (d < t->head) {
    const vm m = first(t->head - d);
    const vf x = load(key + d, m);
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
      const float* key = t->k + (k + j + w) * t->k_stride;
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

// Adds values, weighted by scores, to the sums of `rows` rows and `panels` panels.
void add_in_place(const SumBlock& s, int64_t rows, int64_t panels) {
  const auto part = [&](int64_t i, int64_t j) {
    return SumBlock{s.rows, s.weights + i * s.weights_row, s.weights_row, s.values + j * PANEL,
                    s.values_width, s.sums + i * s.width + j * PANEL, s.width,
                    s.decay ? s.decay + i : nullptr};
  };
  int64_t j = 0;
  //% for wide, tiles in whole
  for (; j + ${wide} <= panels; j += ${wide}) {
    int64_t i = 0;
    //% for m in tiles
    for (; i + ${m} <= rows; i += ${m}) accumulate<${m}, ${wide}>(part(i, j));
    //% endfor
  }
  //% endfor
  cover(rows, panels - j, [&](int64_t i, int m, int64_t column, int n) {
    ACCUMULATE[m][n](part(i, j + column));
  });
}
