// A block of scores and what it adds to the sums, both products on matrix tiles (Intel SDM,
// TDPBF16PS): keys and values lie packed as the instruction wants its second operand.
//% include "tile_shapes.h"

enum { DEPTH = 16, ROWS = 16, STEP = 2 * DEPTH };  // lanes and rows of an instruction; keys of one
static_assert(QB <= 2 * ROWS && KB % STEP == 0, "blocks are whole tiles");

// Lanes an instruction takes of rows of `lanes`: all steps take as many, so that none reads more.
INLINE int depth_of(int64_t lanes) {
  int depth = (int)least(lanes, DEPTH);
  while (lanes % depth) depth--;
  return depth;
}

// c[rows x 16 panels] (+)= a[rows x steps * depth] b, rows of b `b_row` numbers apart.
struct TileProduct {
  int64_t rows, panels;
  int depth;
  int64_t steps;
  const float* a;
  int64_t a_row;
  const float* b;
  int64_t b_row, b_panel;
  float* c;
  int64_t c_row;
  bool fresh;
};

template <bool TALL, bool WIDE>
void multiply_tiles(const TileProduct& p, const float* b, float* c) {
  const float* a = p.a;
  const int64_t a_bytes = p.a_row * 4, b_bytes = p.b_row * 4;
  begin_sums<TALL, WIDE>(p.fresh ? nullptr : c, ROWS * p.c_row, PANEL, p.c_row * 4);
  for (int64_t step = 0; step < p.steps; step++, a += p.depth, b += p.depth * p.b_row) {
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if (WIDE) {
      _tile_loadd(7, b + p.b_panel, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (TALL) {
      _tile_loadd(5, a + ROWS * p.a_row, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if (WIDE) _tile_dpbf16ps(3, 5, 7);
    }
  }
  end_sums<TALL, WIDE>(c, ROWS * p.c_row, PANEL, p.c_row * 4);
}

void multiply_blocks(const TileProduct& p) {
  const bool tall = p.rows > ROWS;
  set_shapes((int)least(p.rows, ROWS), tall ? (int)p.rows - ROWS : 0, p.depth);
  written();
  for (int64_t j = 0; j < p.panels; j += 2) {
    const bool wide = j + 1 < p.panels;
    const float* b = p.b + j * p.b_panel;
    float* c = p.c + j * PANEL;
    if (tall) (wide ? multiply_tiles<true, true> : multiply_tiles<true, false>)(p, b, c);
    else (wide ? multiply_tiles<false, true> : multiply_tiles<false, false>)(p, b, c);
  }
}

// Finds the highest scores, `scale` times the products; returns what is left to multiply them by.
// Those that anything else is done to are scaled at once.
float finish_scores(const Masking& m, float scale, float softcap, int64_t rows, int64_t cols,
                    float* scores, vf* top) {
  const bool bare = m.mask.kind == NONE && softcap == 0.0f && sees_all(m, cols);
  const vf factor = set1(scale);
  for (int64_t i = 0; i < rows; i++) {
    float* row = scores + i * KB;
    for (int64_t k = 0; k < cols; k += W) {
      const vf v = load(row + k) * factor;
      if (bare) top[i] = max(v, top[i]);
      else store(row + k, v);
    }
  }
  if (bare) return scale;
  mask_scores(m, softcap, rows, cols, scores, top);
  return 1.0f;
}

void key_block(const Head& h, const Scratch& s, int64_t q, int64_t rows, int64_t k, int64_t keys,
               bool fresh, Running& run) {
  const tracea_attention_tile* t = h.t;
  const int64_t width = padded(t->head_v);
  const Masking masking = block_masking(h, s, q, rows, k, keys);
  const int depth = depth_of(t->head);
  multiply_blocks({rows, padded(keys) / PANEL, depth, t->head / depth, h.q + q * t->q_stride,
                   t->q_stride, h.keys + k * t->head, PANEL, t->head * PANEL, s.scores, KB, true});
  vf top[QB];
  for (int64_t i = 0; i < QB; i++) top[i] = set1(-INF);
  const float scale =
      finish_scores(masking, t->scale, t->softcap, rows, padded(keys), s.scores, top);
  raise(top, rows, run);
  weigh_rows(rows, keys, scale, s.scores, run, fresh);
  if (!fresh)
    for (int64_t i = 0; i < rows; i++)
      for (int64_t d = 0; d < width; d += W)
        store(s.sums + i * width + d, load(s.sums + i * width + d) * set1(run.decay[i]));
  multiply_blocks({rows, width / PANEL, DEPTH, (keys + STEP - 1) / STEP, s.scores, KB,
                   h.values + value_rows(k) * h.width, h.width, PANEL, s.sums, width, fresh});
}
