// Windows: a query sees the keys near its own place, and those everybody sees.
struct Span {
  int64_t low, high;
};

// The place of row i of the tile among the keys.
INLINE int64_t place_of(const tracea_attention_tile* t, int64_t i) {
  return t->seen - 1 + i * t->seen_step;
}

// Does a row at this place see a key?
INLINE bool is_near(const tracea_attention_tile* t, int64_t place, int64_t key) {
  return t->window_left < 0 || place < t->global_keys || key < t->global_keys ||
         (key >= place - t->window_left && key <= place + t->window_right);
}

// Keys that rows [q, q + rows) see beside those everybody sees, in whole panels.
Span window_span(const tracea_attention_tile* t, int64_t q, int64_t rows) {
  const int64_t first = place_of(t, q), last = place_of(t, q + rows - 1);
  if (t->window_left < 0 || first < t->global_keys) return {0, t->keys};
  const int64_t high = least(t->keys, padded(most(0, last + t->window_right + 1)));
  return {least(high, most(0, first - t->window_left) / PANEL * PANEL), high};
}

// The mask of a block with -inf outside the window; as it was if all is inside.
Mask window_mask(const Head& h, const Scratch& s, int64_t q, int64_t rows, int64_t k, int64_t keys,
                 Mask mask) {
  const tracea_attention_tile* t = h.t;
  if (t->window_left < 0) return mask;
  const bool inside = place_of(t, q) + t->window_right >= k + keys - 1 &&
                      place_of(t, q + rows - 1) - t->window_left <= k;
  if (inside) return mask;
  for (int64_t i = rows; i-- > 0;) {  // the first row last: others may be read from it
    const int64_t place = place_of(t, q + i);
    const float* from = mask.data + i * mask.row;
    float* to = s.mask + i * KB;
    for (int64_t j = 0; j < keys; j++) {
      to[j] = !is_near(t, place, k + j) ? -INF : mask.kind == NONE ? INF : from[j];
    }
  }
  return {mask.kind == NONE ? DROP : mask.kind, s.mask, KB};
}

// The spans of keys that row `row` of the tile sees; none if there are no tiles.
struct Spans {
  const tracea_attention_span *first, *end;
};

INLINE Spans spans_of(const tracea_attention_tile* t, int64_t row) {
  if (!t->spans) return {nullptr, nullptr};
  const int64_t* start = t->starts + (t->first_query + row * t->seen_step) / t->tile_rows;
  return {t->spans + start[0], t->spans + start[1]};
}

// Rows from `q` on that are in one row of tiles, at most `rows`.
INLINE int64_t rows_together(const tracea_attention_tile* t, int64_t q, int64_t rows) {
  if (!t->spans || !t->seen_step) return rows;
  return least(rows, t->tile_rows - (t->first_query + q) % t->tile_rows);
}

// Is a key in an active tile of a row?
INLINE bool in_tiles(const tracea_attention_tile* t, int64_t row, int64_t key) {
  if (!t->tiles_mask) return true;
  const Spans s = spans_of(t, row);
  for (const tracea_attention_span* at = s.first; at < s.end; at++)
    if (key >= at->low && key < at->high) return true;
  return false;
}

// The mask of a block with -inf outside the active tiles; as it was if all is inside.
Mask tile_mask(const Head& h, const Scratch& s, int64_t q, int64_t rows, int64_t k, int64_t keys,
               Mask mask) {
  const tracea_attention_tile* t = h.t;
  if (!t->tiles_mask) return mask;
  const Spans spans = spans_of(t, q);  // the same for all rows of a block
  for (const tracea_attention_span* at = spans.first; at < spans.end; at++)
    if (k >= at->low && k + keys <= at->high) return mask;
  for (int64_t i = rows; i-- > 0;) {  // the first row last: others may be read from it
    const float* from = mask.data + i * mask.row;
    float* to = s.mask + i * KB;
    int64_t j = 0;
    const auto drop_until = [&](int64_t end) {
      for (; j < end; j++) to[j] = -INF;
    };
    for (const tracea_attention_span* at = spans.first; at < spans.end; at++) {
      drop_until(least(at->low - k, keys));
      for (; j < least(at->high - k, keys); j++) to[j] = mask.kind == NONE ? INF : from[j];
    }
    drop_until(keys);
  }
  return {mask.kind == NONE ? DROP : mask.kind, s.mask, KB};
}

// What becomes of the block's scores.
Masking block_masking(const Head& h, const Scratch& s, int64_t q, int64_t rows, int64_t k,
                      int64_t keys) {
  const tracea_attention_tile* t = h.t;
  const Mask near = window_mask(h, s, q, rows, k, keys, block_mask(h, s, q, rows, k, keys));
  const Mask mask = tile_mask(h, s, q, rows, k, keys, near);
  const int64_t seen = t->seen + q * t->seen_step - k;
  return {mask, t->fill, t->causal ? seen : INT64_MAX, t->causal ? t->seen_step : 0, keys};
}
