// Blocks of scores: scale * q k^T, capped, masked and cut by the order of keys.

// The mask of the current block: row i, key k at data + i * row + k.  DROP keeps the scores
// where it is +inf and takes their place elsewhere; ADD is added.
enum MaskKind { NONE, ADD, DROP };
struct Mask {
  MaskKind kind;
  const float* data;
  int64_t row;
};

INLINE Mask block_mask(const Head& h, const Scratch& s, int64_t q, int64_t queries, int64_t k,
                       int64_t keys) {
  const tracea_attention_tile* t = h.t;
  if (t->mask_kind == 0) return {NONE, s.mask, 0};
  if (t->mask_kind == 1 && t->mask_col == 1)
    return {ADD, (const float*)h.mask + q * t->mask_row + k, t->mask_row};
  const int64_t rows = t->mask_row ? queries : 1;
  const float fill = t->fill;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t at = (q + i) * t->mask_row + k * t->mask_col;
    const float* add = (const float*)h.mask + at;
    const uint8_t* keep = (const uint8_t*)h.mask + at;
    float* to = s.mask + i * KB;
    for (int64_t j = 0; j < keys; j++)
      to[j] = t->mask_kind == 1 ? add[0] : keep[j * t->mask_col] ? INF : fill;
  }
  return {t->mask_kind == 1 ? ADD : DROP, s.mask, t->mask_row ? KB : 0};
}

// What becomes of raw scores: row i of the block sees `seen + i * step` keys from its first column
// on, others score `fill` (before the mask is added); -inf from column `cols` on.
struct Masking {
  Mask mask;
  float fill;
  int64_t seen, step, cols;
};

INLINE Masking part_of(const Masking& m, int64_t row, int64_t col) {
  const Mask mask = {m.mask.kind, m.mask.data + row * m.mask.row + col, m.mask.row};
  const int64_t seen = m.seen == INT64_MAX ? m.seen : m.seen + row * m.step - col;
  return {mask, m.fill, seen, m.step, m.cols - col};
}

INLINE bool sees_all(const Masking& m, int64_t cols) { return least(m.seen, m.cols) >= cols; }

// scores[MR x 16 NV] = scale * q k^T, masked.  top[i] collects each row's maximum, lane by lane.
struct ScoreBlock {
  int64_t head;
  const float* q;
  int64_t q_stride;
  const float* keys;
  float scale;
  Masking m;
  float* scores;
  vf* top;
};

// Scaled scores [rows x cols] that lie there already, capped first if there is a cap.
void mask_scores(const Masking& m, float softcap, int64_t rows, int64_t cols, float* scores,
                 vf* top) {
  const bool cuts = m.seen < cols;
  for (int64_t i = 0; i < rows; i++) {
    vf high = top[i];
    for (int64_t k = 0; k < cols; k += W) {
      const vm inside = first(m.cols - k);
      vf v = load(scores + i * KB + k), other = set1(m.fill);
      if (softcap != 0.0f) v = set1(softcap) * v_tanh(v / set1(softcap));
      if (m.mask.kind != NONE) {
        const vf add = load(m.mask.data + i * m.mask.row + k, inside);
        other = m.mask.kind == ADD ? other + add : min(other, add);
        v = m.mask.kind == ADD ? v + add : select(less(add, set1(INF)), add, v);
      }
      if (cuts) v = select(first(m.seen + i * m.step - k), v, other);
      v = select(inside, v, set1(-INF));
      store(scores + i * KB + k, v);
      high = max(v, high);
    }
    top[i] = high;
  }
}

// c = q k^T of one tile.
template <int MR, int NV>
INLINE void multiply(const ScoreBlock& s, vf (&c)[MR][NV * P]) {
  vf b[NV * P];
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = set1(0.0f);
  //% set begun = "multiply_in_blocks(c, s.q, s.q_stride, s.keys, PANEL, s.head * PANEL, s.head)"
  for (int64_t d = ${begun if isa == "neonbf16" else 0}; d < s.head; d++) {
    load_row<NV>(b, s.keys + d * PANEL, s.head * PANEL);
    ${step}<MR, NV>(c, s.q + d, s.q_stride, b);
  }
}

// Makes scores of products: in registers where every key of the tile is seen, else (false) where
// the block's scores lie.
template <int MR, int NV>
INLINE bool mask_tile(const ScoreBlock& s, vf (&c)[MR][NV * P]) {
  const vf scale = set1(s.scale);
  const Mask mask = s.m.mask;
  const bool all = sees_all(s.m, NV * PANEL);
  if (all && mask.kind == ADD) {
    UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
      c[i][j] = fma(c[i][j], scale, load(mask.data + i * mask.row + j * W));
    return true;
  }
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
    c[i][j] = c[i][j] * scale;
  if (all && mask.kind == NONE) return true;
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
    store(s.scores + i * KB + j * W, c[i][j]);
  mask_scores(s.m, 0.0f, MR, NV * PANEL, s.scores, s.top);
  return false;
}

template <int MR, int NV>
OUTLINED void score(const ScoreBlock& s) {
  vf c[MR][NV * P];
  multiply<MR, NV>(s, c);
  if (!mask_tile<MR, NV>(s, c)) return;
  UNROLL for (int i = 0; i < MR; i++) {
    vf high = s.top[i];
    UNROLL for (int j = 0; j < NV * P; j++) {
      store(s.scores + i * KB + j * W, c[i][j]);
      high = max(c[i][j], high);
    }
    s.top[i] = high;
  }
}
