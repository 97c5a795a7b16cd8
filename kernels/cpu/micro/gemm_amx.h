// The register tile of a product in bf16 on matrix tiles (Intel SDM, TDPBF16PS): up to 2 x 2
// accumulators of 16 x 16.  A panel of pairs is what the instruction wants of B as it lies.  One
// instruction adds its sum over even and its sum over odd elements of 32 to C: blocks of k are
// multiples of 32, so that the result does not depend on them.
//% include "tile_shapes.h"

enum { DEPTH = 16, ROWS = 16 };  // lanes of k and rows in one instruction

// Shapes stay from tile to tile of a task: setting them takes as long as several products.
INLINE void shape_tiles(const tracea_gemm_tile* t) {
  if (*t->state == t->mr) return;
  *t->state = t->mr;
  const int upper = t->mr < ROWS ? t->mr : ROWS;
  set_shapes(upper, t->mr - upper, DEPTH);
}

// DEPTH lanes of k.
template <bool TALL>
INLINE void load_rows(const float* a, int64_t lda) {
  _tile_loadd(4, a, lda * 4);
  if (TALL) _tile_loadd(5, a + ROWS * lda, lda * 4);
}

template <bool WIDE>
INLINE void load_panels(const float* b, int64_t panel) {
  _tile_loadd(6, b, 64);
  if (WIDE) _tile_loadd(7, b + panel, 64);
}

template <bool TALL, bool WIDE>
INLINE void multiply() {
  _tile_dpbf16ps(0, 4, 6);
  if (WIDE) _tile_dpbf16ps(1, 4, 7);
  if (TALL) _tile_dpbf16ps(2, 5, 6);
  if (TALL && WIDE) _tile_dpbf16ps(3, 5, 7);
}

// Both operands in bf16.
struct Tiles {
  enum { LANES = DEPTH };
  template <bool TALL, bool WIDE>
  static INLINE_MEMBER void run(const float* a, int64_t lda, const float* b, int64_t panel) {
    load_rows<TALL>(a, lda);
    load_panels<WIDE>(b, panel);
    multiply<TALL, WIDE>();
  }
};

// Upper and lower halves of both: what is loaded serves two of the three products, small ones
// first.
struct SplitTiles {
  enum { LANES = TRACEA_SPLIT };
  template <bool TALL, bool WIDE>
  static INLINE_MEMBER void run(const float* a, int64_t lda, const float* b, int64_t panel) {
    load_rows<TALL>(a + DEPTH, lda);
    load_panels<WIDE>(b, panel);
    multiply<TALL, WIDE>();
    load_rows<TALL>(a, lda);
    multiply<TALL, WIDE>();
    load_panels<WIDE>(b + DEPTH * PANEL, panel);
    multiply<TALL, WIDE>();
  }
};

// The last lanes of k, less than DEPTH of them, with zeros behind.
template <bool TALL, bool WIDE>
void multiply_rest(const tracea_gemm_tile* t, int64_t k) {
  alignas(64) float a[2 * ROWS * DEPTH] = {}, b[2 * DEPTH * PANEL] = {};
  const size_t count = (size_t)(t->k - k);
  for (int i = 0; i < t->mr; i++)
    __builtin_memcpy(a + i * DEPTH, t->a + i * t->lda + k, count * sizeof(float));
  for (int j = 0; j < t->nv; j++)
    __builtin_memcpy(b + j * DEPTH * PANEL, t->b + j * t->b_panel + k * PANEL,
                     count * PANEL * sizeof(float));
  written();
  Tiles::run<TALL, WIDE>(a, DEPTH, b, DEPTH * PANEL);
}

// Split panels have whole turns.
template <bool TALL, bool WIDE, class STEP>
void matrix_tile(const tracea_gemm_tile* t) {
  alignas(64) float whole[2 * ROWS * 2 * PANEL];  // in place of a result with a narrow last panel
  enum { WIDTH = 2 * PANEL };
  const bool narrow = t->last < PANEL;
  const size_t columns = (size_t)((WIDE ? PANEL : 0) + t->last) * sizeof(float);
  shape_tiles(t);
  const float* init = t->init;
  int64_t stride = t->init_stride;
  if (init && narrow) {
    for (int i = 0; i < (stride ? t->mr : 1); i++)
      __builtin_memcpy(whole + i * WIDTH, init + i * stride, columns);
    written();
    init = whole;
    if (stride) stride = WIDTH;
  }
  begin_sums<TALL, WIDE>(init, ROWS * stride, PANEL, stride * 4);
  Prefetch prefetch = plan_prefetch(t, STEP::LANES);
  int64_t k = 0;
  for (; k + STEP::LANES <= t->k; k += STEP::LANES) {
    advance(prefetch);
    STEP::template run<TALL, WIDE>(t->a + k, t->lda, t->b + k * PANEL, t->b_panel);
  }
  if (k < t->k) multiply_rest<TALL, WIDE>(t, k);
  if (!narrow) return end_sums<TALL, WIDE>(t->c, ROWS * t->ldc, PANEL, t->ldc * 4);
  end_sums<TALL, WIDE>(whole, ROWS * WIDTH, PANEL, WIDTH * 4);
  for (int i = 0; i < t->mr; i++)
    __builtin_memcpy(t->c + i * t->ldc, whole + i * WIDTH, columns);
}

template <class STEP>
void any_tile(const tracea_gemm_tile* t) {
  if (t->mr > ROWS) (t->nv > 1 ? matrix_tile<true, true, STEP> : matrix_tile<true, false, STEP>)(t);
  else (t->nv > 1 ? matrix_tile<false, true, STEP> : matrix_tile<false, false, STEP>)(t);
}
