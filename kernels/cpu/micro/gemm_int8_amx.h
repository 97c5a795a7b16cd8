// The register tile of a product of bytes on matrix tiles (Intel SDM, TDPBUSD and TDPBSSD): up to
// 2 x 2 accumulators of 16 x 16.  A panel of fours is what the instructions want of B as it lies.
// Few rows would leave most of a tile unused: those are multiplied in vectors.
//% include "tile_shapes.h"

enum { DEPTH = 16, ROWS = 16, WIDTH = 2 * PANEL };  // lanes of k and rows in one instruction

// Lanes of k in one instruction: equally many in each where these make up k, else DEPTH.
INLINE int depth_of(int64_t k) {
  const int64_t steps = (k + DEPTH - 1) / DEPTH;
  return steps && k % steps == 0 ? (int)(k / steps) : (int)DEPTH;
}

// Shapes stay from tile to tile of a task: setting them takes as long as several products.
INLINE void shape_tiles(const tracea_gemm_tile* t, int depth) {
  const int32_t shape = depth << 8 | t->mr;
  if (*t->state == shape) return;
  *t->state = shape;
  const int upper = t->mr < ROWS ? t->mr : ROWS;
  set_shapes(upper, t->mr - upper, depth);
}

//% for name, instruction, offset in (("Unsigned", "dpbusd", 0), ("Signed", "dpbssd", 128))
struct ${name} {  // bytes of A, of which `zero` is OFFSET too large
  enum { OFFSET = ${offset} };
  template <bool TALL, bool WIDE>
  static INLINE_MEMBER void multiply() {
    _tile_${instruction}(0, 4, 6);
    if (WIDE) _tile_${instruction}(1, 4, 7);
    if (TALL) _tile_${instruction}(2, 5, 6);
    if (TALL && WIDE) _tile_${instruction}(3, 5, 7);
  }
};

//% endfor
template <bool TALL, bool WIDE, class PRODUCT>
INLINE void add_products(const float* a, int64_t lda, const float* b, int64_t panel) {
  _tile_loadd(4, a, lda * 4);
  if (TALL) _tile_loadd(5, a + ROWS * lda, lda * 4);
  _tile_loadd(6, b, 64);
  if (WIDE) _tile_loadd(7, b + panel, 64);
  PRODUCT::template multiply<TALL, WIDE>();
}

// `count` lanes from k on: of copies, in which A is unsigned if the instruction takes it so, and zeros
// fill up the tile.
template <bool TALL, bool WIDE, class PRODUCT>
void add_copies(const tracea_gemm_tile* t, int64_t k, int depth, int64_t count) {
  alignas(64) float a[2 * ROWS * DEPTH], b[2 * DEPTH * PANEL] = {};
  const vm lanes = first(count);
  const vi flip = set1_int(PRODUCT::OFFSET != 0 ? 0 : t->flip);
  for (int i = 0; i < t->mr; i++)
    store(a + i * DEPTH, (vf)left_of((vi)load(t->a + i * t->lda + k, lanes), flip));
  const bool whole = count == depth;
  for (int j = 0; j < (WIDE ? 2 : 1) && !whole; j++)
    __builtin_memcpy(b + j * DEPTH * PANEL, t->b + j * t->b_panel + k * PANEL,
                     (size_t)count * PANEL * sizeof(float));
  written();
  if (whole) add_products<TALL, WIDE, PRODUCT>(a, DEPTH, t->b + k * PANEL, t->b_panel);
  else add_products<TALL, WIDE, PRODUCT>(a, DEPTH, b, DEPTH * PANEL);
}

// What becomes of finished sums: rows of WIDTH numbers.
template <int NV>
INLINE void write_rows(const tracea_gemm_tile* t, const float* sums) {
  const vm edge = first(t->last);
  const bool whole = t->last == PANEL;
  vi zero[NV];
  if (t->row_sums)
    UNROLL for (int j = 0; j < NV; j++)
      zero[j] = load_ints(t->b + j * t->b_panel + (t->k + 1) * PANEL);
  const auto load_sums = [&](int i, vi (&c)[NV]) __attribute__((always_inline)) {
    UNROLL for (int j = 0; j < NV; j++) c[j] = load_ints(sums + i * WIDTH + j * PANEL);
    if (t->row_sums)
      UNROLL for (int j = 0; j < NV; j++)
        c[j] = (vi)((vu)c[j] - (vu)zero[j] * (vu)set1_int(t->row_sums[i]));
  };
  vi c[NV];
  if (t->bytes) {
    const Rounding<NV> rounding(t, 0, edge, whole);
    for (int i = 0; i < t->mr; i++) {
      load_sums(i, c);
      uint8_t* to = t->bytes + i * t->bytes_row;
      if (rounding.fit) rounding.store_fitting(to, c);
      else rounding.store_row(to, c, edge, whole);
    }
    return;
  }
  for (int i = 0; i < t->mr; i++) {
    load_sums(i, c);
    float* to = t->c + i * t->ldc;
    UNROLL for (int j = 0; j < NV - 1; j++) store(to + j * PANEL, to_float(c[j]));
    if (whole) store(to + (NV - 1) * PANEL, to_float(c[NV - 1]));
    else store(to + (NV - 1) * PANEL, to_float(c[NV - 1]), edge);
  }
}

// COPIES: bits of A are to be inverted.
template <bool TALL, bool WIDE, class PRODUCT, bool COPIES>
void matrix_tile(const tracea_gemm_tile* t) {
  alignas(64) float sums[2 * ROWS * WIDTH], start[WIDTH];
  const int depth = depth_of(t->k);
  const vi times = set1_int(PRODUCT::OFFSET - t->zero);
  UNROLL for (int j = 0; j < (WIDE ? 2 : 1); j++) {
    const vi of_column = load_ints(t->b + j * t->b_panel + t->k * PANEL);
    store(start + j * PANEL, (vf)((vu)of_column * (vu)times));
  }
  shape_tiles(t, depth);
  written();
  begin_sums<TALL, WIDE>(start, 0, PANEL, 0);
  Prefetch prefetch = plan_prefetch(t, depth);
  int64_t k = 0;
  for (; k + depth <= t->k; k += depth) {
    advance(prefetch);
    if (COPIES) add_copies<TALL, WIDE, PRODUCT>(t, k, depth, depth);
    else
      add_products<TALL, WIDE, PRODUCT>(t->a + k, t->lda, t->b + k * PANEL, t->b_panel);
  }
  if (k < t->k) add_copies<TALL, WIDE, PRODUCT>(t, k, depth, t->k - k);
  end_sums<TALL, WIDE>(sums, ROWS * WIDTH, PANEL, WIDTH * 4);
  write_rows<WIDE ? 2 : 1>(t, sums);
}

template <class PRODUCT, bool COPIES>
void any_tile(const tracea_gemm_tile* t) {
  if (t->mr > ROWS) {
    if (t->nv > 1) matrix_tile<true, true, PRODUCT, COPIES>(t);
    else matrix_tile<true, false, PRODUCT, COPIES>(t);
  } else if (t->nv > 1) {
    matrix_tile<false, true, PRODUCT, COPIES>(t);
  } else {
    matrix_tile<false, false, PRODUCT, COPIES>(t);
  }
}

// Rows' sums are those of unsigned bytes.
INLINE void two_panels(const tracea_gemm_tile* t) {
  if (!t->flip) any_tile<Unsigned, false>(t);
  else if (!t->row_sums) any_tile<Signed, false>(t);
  else any_tile<Unsigned, true>(t);
}

// Two panels at a time.
INLINE void all_panels(const tracea_gemm_tile* t) {
  if (t->nv <= 2) return two_panels(t);
  tracea_gemm_tile part = *t;
  for (int32_t panel = 0; panel < t->nv; panel += 2) {
    part.nv = t->nv - panel < 2 ? t->nv - panel : 2;
    part.last = panel + part.nv == t->nv ? t->last : PANEL;
    two_panels(&part);
    part.b += 2 * part.b_panel, part.c += 2 * PANEL;
    if (part.bytes) part.factor += 2 * PANEL, part.summand += 2 * PANEL, part.bytes += 2 * PANEL;
    part.prefetch_lines = part.look_up_pages = 0;
  }
}
