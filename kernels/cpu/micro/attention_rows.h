// What a query's row of y is, from what its softmax came to.
// A tile's `zero_rows`.
enum ZeroRows { ZERO_NONE, ZERO_GUARDED, ZERO_MASKED, ZERO_LOWEST, ZERO_INFINITE };
enum Outcome { WEIGHED, ZEROS, NOT_A_NUMBER };

// Is every key of a row out of the window or the tiles, or has it `limit` or less added or in its score's place?
bool all_masked(const Head& h, int64_t row, float limit) {
  const tracea_attention_tile* t = h.t;
  const bool fills = t->fill <= limit;
  if (t->window_left < 0 && !t->tiles_mask) {
    const int64_t seen = t->seen + row * t->seen_step;
    const int64_t keys = fills && t->causal ? most(0, least(seen, t->keys)) : t->keys;
    const bool masks = t->mask_kind == 1 || (t->mask_kind == 2 && fills);
    return !keys || (masks && drops(h, row * t->mask_row, t->mask_col ? keys : 1, limit));
  }
  for (int64_t k = 0; k < t->keys; k++) {
    const int64_t at = row * t->mask_row + k * t->mask_col;
    bool masked = !is_near(t, place_of(t, row), k) || !in_tiles(t, row, k);
    masked |= fills && t->causal && k >= t->seen + row * t->seen_step;
    masked |= fills && t->mask_kind == 2 && !h.mask[at];
    masked |= t->mask_kind == 1 && ((const float*)h.mask)[at] <= limit;
    if (!masked) return false;
  }
  return true;
}

// A row with a score above LOWEST and without a NaN is weighed; all others are looked at here.
INLINE Outcome outcome(const Head& h, int64_t row, float top, float total) {
  const tracea_attention_tile* t = h.t;
  if (top > LOWEST && total < INF) return WEIGHED;
  if (!t->keys) return ZEROS;
  if (t->zero_rows == ZERO_MASKED && all_masked(h, row, LOWEST)) return ZEROS;
  if (t->zero_rows == ZERO_INFINITE && all_masked(h, row, -INF)) return ZEROS;
  if (t->zero_rows == ZERO_LOWEST && total < INF && t->keys > 1) return ZEROS;
  if (total > 0.0f) return WEIGHED;
  return t->zero_rows == ZERO_GUARDED ? ZEROS : NOT_A_NUMBER;
}

// Sums of 0 times the values of all keys a row has in its window: NaN where one is not finite.
vf zeros_of(const Head& h, int64_t row, int64_t d, vm m) {
  const int64_t place = place_of(h.t, row);
  vf sum = set1(0.0f);
  for (int64_t k = 0; k < h.t->keys; k++)
    if (is_near(h.t, place, k))
      //% if stored
      sum = fma(h.keys ? load(h.values + k * h.width + d, m)
                       : load_cached(cached_values(h.t) + k * h.width + d, h.t->head_v - d),
                set1(0.0f), sum);
      //% else
      sum = fma(value_of(load(h.values + value_row(k) * h.width + d, m), k), set1(0.0f), sum);
      //% endif
  return sum;
}

// The rows of y that are `due`: y = sums / total where scores were weighed.
void finish(const Head& h, const Scratch& s, int64_t q, int64_t rows, const Running& run,
            const bool* due) {
  const tracea_attention_tile* t = h.t;
  const int64_t width = padded(t->head_v);
  for (int64_t i = 0; i < rows; i++) {
    if (!due[i]) continue;
    const Outcome is = outcome(h, q + i, run.top[i], run.total[i]);
    const vf factor = set1(1.0f / run.total[i]);
    for (int64_t d = 0; d < t->head_v; d += W) {
      const vm m = first(t->head_v - d);
      vf y = load(s.sums + i * width + d) * factor;
      if (is == NOT_A_NUMBER) y = set1(__builtin_nanf(""));
      if (is == ZEROS) y = h.skips ? set1(0.0f) : zeros_of(h, q + i, d, m);
      const int64_t at = (q + i) * t->y_stride + d;
      //% if dtype == "bf16"
      if (t->y_size == 2) store_bf16((uint16_t*)h.y + at, y, t->head_v - d);
      else
      //% endif
      store((float*)h.y + at, y, m);
    }
  }
}

