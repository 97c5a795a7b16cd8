// What an attention tile reads: its scratch, and one head's keys and values packed where that pays.

INLINE int64_t padded(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Rows of values, and of weights along them: ${"pairs of keys" if dtype == "bf16" else "keys"}.
INLINE int64_t value_rows(int64_t keys) { return ${"(keys + 1) / 2" if dtype == "bf16" else "keys"}; }
INLINE int64_t value_row(int64_t key) { return ${"key / 2" if dtype == "bf16" else "key"}; }
//% if amx
// Matrix tiles take 16 of them at once: behind the last there are zeros.
INLINE int64_t stored_rows(int64_t keys) { return value_rows(keys) + 15; }
//% else
INLINE int64_t stored_rows(int64_t keys) { return value_rows(keys); }
//% endif

// Scratch, every part a multiple of 64 bytes: keys [panels][head][16], values
// [stored rows][padded v], scores [QB][KB], weights [QB][WEIGHTS], output sums [QB][padded v], a
// mask block [QB][KB].
struct Scratch {
  float *keys, *values, *scores, *weights, *sums, *mask;
};

INLINE Scratch layout(void* memory, int64_t keys, int64_t head, int64_t head_v) {
  Scratch s;
  s.keys = (float*)memory;
  s.values = s.keys + padded(keys) * head;
  s.scores = s.values + stored_rows(keys) * padded(head_v);
  s.weights = s.scores + QB * KB;
  s.sums = s.weights + QB * WEIGHTS;
  s.mask = s.sums + QB * padded(head_v);
  return s;
}

// One head: its keys and values ready to use.  `skips`: whether values of dropped keys may be left
// out (0 times infinity is not 0); `size`: a bound of |k|, infinite or NaN if there is none.
struct Head {
  const tracea_attention_tile* t;
  const float* q;
  const char* mask;
  char* y;
  const float* keys;    // packed, null if they are read in place
  const float* values;  // row r at r * width
  int64_t width;
  bool skips;
  float size;
};

// Asks for rows [first, end) of `bytes` bytes each, `step` bytes apart: short runs of memory, which
// hardware does not prefetch.
template <int WRITES = 0>
INLINE void ask_for(const void* from, int64_t first, int64_t end, int64_t step, int64_t bytes) {
  for (int64_t i = first; i < end; i++)
    for (int64_t at = 0; at < bytes; at += 64)
      __builtin_prefetch((const char*)from + i * step + at, WRITES, 3);
}

enum { AHEAD = 2 * PANEL };  // rows of keys and values asked for before they are packed

//% if stored
// What the cache holds, read as float32: ${stored}.
typedef ${"int8_t" if stored == "i8" else "uint16_t"} cached;
INLINE const cached* cached_keys(const tracea_attention_tile* t) { return (const cached*)t->k; }
INLINE const cached* cached_values(const tracea_attention_tile* t) { return (const cached*)t->v; }
//% if stored == "f16"
INLINE vf load_cached(const cached* p) { return load_f16(p); }
INLINE vf load_cached(const cached* p, int64_t n) { return n >= W ? load_cached(p) : load_f16(p, n); }
INLINE void store_cached(cached* p, vf v, int64_t n) { store_f16(p, v, n); }
//% else
INLINE vf load_cached(const cached* p) { return load_${"int" if stored == "i8" else stored}(p); }
INLINE vf load_cached(const cached* p, int64_t n) {
  if (n >= W) return load_cached(p);
  cached row[W] = {};
  for (int64_t i = 0; i < n; i++) row[i] = p[i];
  return load_cached(row);
}
//% endif
//% if stored == "bf16"
INLINE void store_cached(cached* p, vf v, int64_t n) { store_bf16(p, v, n); }
//% elif stored == "i8"
// The nearest integers, ties to even: adding `whole` leaves no bits for fractions.
INLINE void store_cached(cached* p, vf v, int64_t n) {
  const vf whole = set1(12582912.0f), within = max(min(v, set1(127.0f)), set1(-128.0f));
  const vf near = within + whole - whole;
  if (n >= W) return store_int(p, near);
  cached row[W];
  store_int(row, near);
  for (int64_t i = 0; i < n; i++) p[i] = row[i];
}
//% endif

void pack_keys(const tracea_attention_tile* t, float* to) {
  alignas(64) float block[PANEL * PANEL];
  for (int64_t k = 0; k < t->keys; k += PANEL) {
    const int rows = (int)least(PANEL, t->keys - k);
    for (int64_t d = 0; d < t->head; d += PANEL) {
      const int cols = (int)least(PANEL, t->head - d);
      for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j += W)
          store(block + i * PANEL + j,
                load_cached(cached_keys(t) + (k + i) * t->k_stride + d + j, cols - j));
      transpose(block, PANEL, rows, cols, to + k * t->head + d * PANEL);
    }
  }
}
//% else
void pack_keys(const tracea_attention_tile* t, float* to) {
  const auto ask = [&](int64_t first) {
    ask_for(t->k, first, least(first + PANEL, t->keys), t->k_stride * 4, t->head * 4);
  };
  for (int64_t k = 0; k < AHEAD && t->k_col == 1; k += PANEL) ask(k);
  for (int64_t k = 0; k < t->keys; k += PANEL) {
    const int rows = (int)least(PANEL, t->keys - k);
    if (t->k_col == 1) ask(k + AHEAD);
    if (t->k_col != 1) {
      for (int64_t d = 0; d < t->head; d++)
        for (int j = 0; j < PANEL; j += W)
          store(to + k * t->head + d * PANEL + j, load(t->k + d * t->k_col + k + j, first(rows - j)));
      continue;
    }
    for (int64_t d = 0; d < t->head; d += PANEL) {
      const int cols = (int)least(PANEL, t->head - d);
      transpose(t->k + k * t->k_stride + d, t->k_stride, rows, cols, to + k * t->head + d * PANEL);
    }
  }
}

//% endif
//% if dtype == "bf16"
// Lane d of row r holds element d of keys 2 r and 2 r + 1: what two steps of the sum need.
void pack_values(const tracea_attention_tile* t, float* to) {
  const int64_t width = padded(t->head_v), stride = 2 * t->v_stride;
  const uint16_t* v = (const uint16_t*)t->v;
  ask_for(v, 0, least(AHEAD, t->keys), t->v_stride * 4, t->head_v * 2);
  for (int64_t k = 0; k < t->keys; k += 2) {
    ask_for(v, k + AHEAD, least(k + AHEAD + 2, t->keys), t->v_stride * 4, t->head_v * 2);
    for (int64_t d = 0; d < width; d += W) {
      const bool last = k + 1 == t->keys;
      const uint16_t* from = v + k * stride + d;
      const vf both = join_bf16(from, last ? from : from + stride, t->head_v - d);
      store(to + k / 2 * width + d, last ? from_bits(bits(both) & (int32_t)0xffff) : both);
    }
  }
  for (int64_t at = value_rows(t->keys) * width; at < stored_rows(t->keys) * width; at += W)
    store(to + at, set1(0.0f));
}

// Of both numbers of a lane.
INLINE vf size_of(vf x) { return abs(lower(x)) + abs(upper(x)); }
INLINE vf value_of(vf x, int64_t key) { return key % 2 ? upper(x) : lower(x); }
//% else
void pack_values(const tracea_attention_tile* t, float* to) {
  const int64_t width = padded(t->head_v);
  for (int64_t k = 0; k < t->keys; k++)
    for (int64_t d = 0; d < width; d += W)
      //% if stored
      store(to + k * width + d, load_cached(cached_values(t) + k * t->v_stride + d, t->head_v - d));
      //% else
      store(to + k * width + d, load(t->v + k * t->v_stride + d, first(t->head_v - d)));
      //% endif
}

INLINE vf size_of(vf x) { return abs(x); }
INLINE vf value_of(vf x, int64_t) { return x; }
//% endif

// The sum of |x| over rows: NaN or infinite if any element is.
float total_size(const float* x, int64_t rows, int64_t cols, int64_t stride) {
  if (stride == cols) cols *= rows, rows = 1;
  vf total[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  for (int64_t i = 0; i < rows; i++, x += stride) {
    int64_t j = 0;
    for (; j + 4 * W <= cols; j += 4 * W)
      UNROLL for (int v = 0; v < 4; v++) total[v] = total[v] + size_of(load(x + j + v * W));
    for (; j < cols; j += W) total[0] = total[0] + size_of(load(x + j, first(cols - j)));
  }
  return reduce_add((total[0] + total[1]) + (total[2] + total[3]));
}

// Keys and values of the tile, packed where that pays.
Head prepare(const tracea_attention_tile* t, const Scratch& s) {
  Head h = {t, t->q, (const char*)t->mask, (char*)t->y, s.keys, s.values, padded(t->head_v), false, 0.0f};
  //% if stored
  const bool direct = t->direct && t->head_v % PANEL == 0;  // then values are read in place, too
  //% else
  const bool direct = t->direct && t->k_col == 1;
  //% endif
  if (direct)
    h.keys = nullptr;
  else
    pack_keys(t, s.keys);
  //% if stored
  if (direct) h.values = t->v, h.width = t->v_stride;
  else pack_values(t, s.values);
  //% elif dtype == "f32"
  const bool in_place = t->head_v % PANEL == 0 && (direct || t->v_stride == t->head_v);
  if (in_place) h.values = t->v, h.width = t->v_stride;
  else pack_values(t, s.values);
  //% else
  pack_values(t, s.values);
  //% endif
  if (!direct && (t->causal || t->mask_kind || t->window_left >= 0 || t->spans)) {
    h.skips = total_size(h.values, value_rows(t->keys), padded(t->head_v), h.width) < INF;
    if (t->mask_kind == 1) h.size = total_size(s.keys, padded(t->keys) / PANEL, t->head * PANEL, t->head * PANEL);
  }
  return h;
}
