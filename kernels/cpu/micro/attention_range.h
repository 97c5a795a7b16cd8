// Which keys a block of queries has to look at.
constexpr float ABSORBING = -1e30f;  // a mask that swallows any score below CALM
constexpr float CALM = 1e20f;

// Keys [low, high) may matter to these rows, and of them only those in tiles, if `tiles`; what the
// others of their span score is at most `bound`.
struct Range {
  int64_t low, high;
  float bound;
  bool tiles;
};

// Does the mask drop all of `keys` keys from element `at` on, with bytes of 0, or by adding `limit`
// or less?  A NaN drops nothing.
INLINE bool drops(const Head& h, int64_t at, int64_t keys, float limit = ABSORBING) {
  if (h.t->mask_kind != 1) {
    const uint8_t* keep = (const uint8_t*)h.mask + at;
    uint8_t any = 0;
    for (int64_t j = 0; j < keys; j++) any |= keep[j];
    return !any;
  }
  const float* add = (const float*)h.mask + at;
  vf high = set1(-INF);
  for (int64_t j = 0; j < keys; j += W) {
    const vf v = select(first(keys - j), load(add + j, first(keys - j)), set1(-INF));
    high = select(is_nan(v), set1(INF), max(v, high));
  }
  return reduce_max(high) <= limit;
}

enum { STRETCH = 256 };  // keys looked at together: masks are read row by row, as they lie

// The first key of [low, high) that any row may see, down to a whole panel.
int64_t first_seen(const Head& h, int64_t q, int64_t rows, int64_t low, int64_t high) {
  for (int64_t i = 0; i < (h.t->mask_row ? rows : 1); i++) {
    const int64_t row = (q + i) * h.t->mask_row;
    int64_t k = low;
    while (k < high && drops(h, row + k, least(STRETCH, high - k))) k += STRETCH;
    while (k < high && drops(h, row + k, least(PANEL, high - k))) k += PANEL;
    high = least(k, high);
  }
  return high;
}

// The end of the last panel of [low, high) of which any row may see a key.
int64_t last_seen(const Head& h, int64_t q, int64_t rows, int64_t low, int64_t high) {
  const auto shrink = [&](int64_t row, int64_t k, int64_t step) {
    while (k > low) {
      const int64_t start = most(low, (k - 1) / step * step);
      if (!drops(h, row + start, k - start)) break;
      k = start;
    }
    return k;
  };
  for (int64_t i = 0; i < (h.t->mask_row ? rows : 1); i++) {
    const int64_t row = (q + i) * h.t->mask_row;
    low = shrink(row, shrink(row, high, STRETCH), PANEL);
  }
  return low;
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

// The end of the keys in order for the last of these rows.
INLINE int64_t order_end(const tracea_attention_tile* t, int64_t q, int64_t rows, Span span) {
  const int64_t seen = t->seen + (q + rows - 1) * t->seen_step;
  return t->causal ? most(span.low, least(padded(most(seen, 0)), span.high)) : span.high;
}

// What the mask alone says about these rows.
tracea_attention_range mask_range(const Head& h, int64_t q, int64_t rows, Span span) {
  const tracea_attention_tile* t = h.t;
  tracea_attention_range r = {span.low, order_end(t, q, rows, span), -INF};
  if (t->mask_kind == 1 && r.high < span.high)
    r.beyond = largest(h, q, rows, r.high, span.high - r.high);
  if (t->mask_kind == 0 || t->mask_col == 0) return r;
  r.low = first_seen(h, q, rows, r.low, r.high);
  r.high = last_seen(h, q, rows, r.low, r.high);
  return r;
}

// A bound of the size of these rows' scores: infinite or NaN if there is none.
INLINE float score_bound(const Head& h, int64_t q, int64_t rows) {
  const tracea_attention_tile* t = h.t;
  const float size = total_size(h.q + q * t->q_stride, rows, t->head, t->q_stride);
  return size * h.size * (t->scale < 0.0f ? -t->scale : t->scale);
}

Range range_of(const Head& h, int64_t q, int64_t rows, Span span) {
  const tracea_attention_tile* t = h.t;
  Range r = {span.low, span.high, -INF, h.skips && t->tiles_mask};
  if (!h.skips) return r;
  if (t->spans && !t->tiles_mask) {  // without an order or windows
    const float size = t->mask_kind == 1 ? score_bound(h, q, rows) : 0.0f;
    r.tiles = size < CALM;
    r.bound = r.tiles ? (t->mask_kind == 1 ? t->beyond + size : t->fill) : -INF;
    if (r.tiles) return r;
  }
  r.high = order_end(t, q, rows, span);
  const tracea_attention_range seen = t->ranges ? t->ranges[q / QB] : mask_range(h, q, rows, span);
  if (t->mask_kind == 2 || (t->causal && t->mask_kind == 0)) r.bound = t->fill;
  if (t->mask_kind == 1 && r.high < span.high) r.bound = t->fill + seen.beyond;
  if (t->mask_kind == 0 || t->mask_col == 0) return r;
  if (t->mask_kind == 1) {
    if (!(score_bound(h, q, rows) < CALM)) return r;
  }
  const int64_t high = r.high;
  r.low = seen.low, r.high = seen.high;
  if (t->mask_kind == 1 && (r.low > span.low || r.high < high) && !(r.bound > ABSORBING + CALM))
    r.bound = ABSORBING + CALM;
  return r;
}
