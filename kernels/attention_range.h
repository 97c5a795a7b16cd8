// Which keys a block of queries has to look at.
constexpr float ABSORBING = -1e30f;  // a mask that swallows any score below CALM
constexpr float CALM = 1e20f;

// Keys [low, high) may matter to these rows; what the others score is at most `bound`.
struct Range {
  int64_t low, high;
  float bound;
};

// Is every element of the mask over rows x keys such that the key is dropped?
bool all_dropped(const Head& h, int64_t q, int64_t rows, int64_t k, int64_t keys) {
  const tracea_attention_tile* t = h.t;
  for (int64_t i = 0; i < (t->mask_row ? rows : 1); i++) {
    const int64_t at = (q + i) * t->mask_row + k;
    if (t->mask_kind == 1) {
      for (int64_t j = 0; j < keys; j += W) {
        const vm m = first(keys - j);
        const vf v = select(m, load((const float*)h.mask + at + j, m), set1(-INF));
        if (!(reduce_max(v) <= ABSORBING)) return false;
      }
    } else {
      uint8_t any = 0;
      for (int64_t j = 0; j < keys; j++) any |= ((const uint8_t*)h.mask)[at + j];
      if (any) return false;
    }
  }
  return true;
}

// The largest element of an additive mask over rows x keys.
float largest(const Head& h, int64_t q, int64_t rows, int64_t k, int64_t keys) {
  const tracea_attention_tile* t = h.t;
  vf high = set1(-INF);
  for (int64_t i = 0; i < (t->mask_row ? rows : 1); i++)
    for (int64_t j = 0; j < keys; j += W) {
      const int64_t at = (q + i) * t->mask_row + (k + j) * t->mask_col;
      const vm m = first(t->mask_col ? keys - j : 1);
      high = max(select(m, load((const float*)h.mask + at, m), set1(-INF)), high);
    }
  return reduce_max(high);
}

Range range_of(const Head& h, int64_t q, int64_t rows) {
  const tracea_attention_tile* t = h.t;
  Range r = {0, t->keys, -INF};
  if (!h.skips) return r;
  if (t->causal) {
    const int64_t seen = t->seen + (q + rows - 1) * t->seen_step;
    r.high = least(padded(most(seen, 0)), t->keys);
    if (t->mask_kind == 0) r.bound = t->fill;
    if (t->mask_kind == 1 && r.high < t->keys)
      r.bound = t->fill + largest(h, q, rows, r.high, t->keys - r.high);
  }
  if (t->mask_kind == 0 || t->mask_col == 0) return r;
  if (t->mask_kind == 1) {
    const float size = total_size(h.q + q * t->q_stride, rows, t->head, t->q_stride);
    const float scale = t->scale < 0.0f ? -t->scale : t->scale;
    if (!(size * h.size * scale < CALM)) return r;
  }
  const int64_t high = r.high;
  while (r.low < r.high && all_dropped(h, q, rows, r.low, least(PANEL, r.high - r.low)))
    r.low = least(r.low + PANEL, r.high);
  while (r.low < r.high) {
    const int64_t start = padded(r.high) - PANEL;
    if (!all_dropped(h, q, rows, start, r.high - start)) break;
    r.high = start;
  }
  if (t->mask_kind == 1 && (r.low > 0 || r.high < high) && !(r.bound > ABSORBING + CALM))
    r.bound = ABSORBING + CALM;
  return r;
}
