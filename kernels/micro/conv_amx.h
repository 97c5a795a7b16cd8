// The register tile of a convolution in bf16 on matrix tiles: up to 2 x 2 accumulators of 16 outputs
// by 16 channels, the two runs of outputs as in conv_tile.h.  A tap is the 8 pairs of a block, half
// of what one instruction takes: the next block lies too far away for the same row of A, and taps
// side by side leave an odd one, whose copies cost more than the two save.
//% include "tile_shapes.h"

enum { RUN = 16, DEPTH = PANEL / 2, NEXT = 64 };  // outputs and lanes of an instruction; bytes

INLINE void shape_tiles(const tracea_conv_tile* t, int a, int b) {
  const int32_t shape = a << 8 | b;
  if (*t->state == shape) return;
  *t->state = shape;
  set_shapes(a, b, DEPTH);
}

struct Run {
  const float* x;
  int64_t step;  // bytes between outputs
  int count;
  float* scratch;  // RUN rows of W lanes
};

// Rows of A as they lie; of a block of fewer than 8 pairs copied, zeros in place of the others.
INLINE const float* rows_of(const Run& run, int64_t at, int64_t lanes, int64_t* stride) {
  const char* x = (const char*)(run.x + at);
  *stride = run.step;
  if (lanes == DEPTH) return (const float*)x;
  for (int i = 0; i < run.count; i++)
    store(run.scratch + i * W, load((const float*)(x + i * run.step), first(lanes)));
  written();
  *stride = W * (int64_t)sizeof(float);
  return run.scratch;
}

template <bool TALL, bool WIDE>
INLINE void multiply_tap(const Run& a, const Run& b, int64_t x, int64_t lanes, const float* w,
                         int64_t w_panel) {
  int64_t stride;
  const float* rows = rows_of(a, x, lanes, &stride);
  _tile_loadd(4, rows, stride);
  _tile_loadd(6, w, NEXT);
  _tile_dpbf16ps(0, 4, 6);
  if (WIDE) {
    _tile_loadd(7, w + w_panel, NEXT);
    _tile_dpbf16ps(1, 4, 7);
  }
  if (TALL) {
    rows = rows_of(b, x, lanes, &stride);
    _tile_loadd(5, rows, stride);
    _tile_dpbf16ps(2, 5, 6);
    if (WIDE) _tile_dpbf16ps(3, 5, 7);
  }
}

// Results of one run in one block of channels: what is added to them, their range, their rounding.
INLINE void finish_run(const tracea_conv_tile* t, const float* sums, int count, const float* add,
                       float* y) {
  const vf lo = set1(t->lo), hi = set1(t->hi);
  for (int i = 0; i < count; i++) {
    vf c = load(sums + i * PANEL);
    if (add && t->add_size == 2) c = c + load_bf16((const uint16_t*)add + i * PANEL);
    else if (add) c = c + load(add + i * PANEL);
    if (t->lo > -__builtin_inff()) c = max(lo, c);
    if (t->hi < __builtin_inff()) c = min(hi, c);
    if (t->y_size == 2) store_bf16((uint16_t*)y + i * PANEL, c);
    else store(y + i * PANEL, c);
  }
}

// All taps of a tile, weights wanted next on the side.
template <bool TALL, bool WIDE>
INLINE void sum_taps(const tracea_conv_tile* t, const Run& a, const Run& b, const char*& line) {
  const int64_t lines = t->prefetch_lines * (int64_t)NEXT, w_tap = t->depth * PANEL;
  for (int64_t block = 0; block < (t->rows ? t->blocks : 0); block++) {
    const int64_t lanes = block + 1 < t->blocks ? t->depth : t->last;
    for (int64_t row = 0; row < t->rows; row++) {
      for (int64_t col = 0; col < t->cols; col++) {
        const char* const until = line + lines < t->prefetch_end ? line + lines : t->prefetch_end;
        for (; line < until; line += NEXT)
          for (int j = 0; j < (WIDE ? 2 : 1); j++)
            __builtin_prefetch(line + j * t->w_panel * sizeof(float), 0, 2);
        multiply_tap<TALL, WIDE>(a, b, block * t->x_block + row * t->x_row + col * t->x_col, lanes,
                                 t->w + block * t->w_block + row * t->w_row + col * w_tap,
                                 t->w_panel);
      }
    }
  }
}

template <bool TALL, bool WIDE>
void matrix_tiles(const tracea_conv_tile* t) {
  alignas(64) float sums[4][RUN * PANEL], scratch[2][RUN * W];
  const bool two = t->lines == 2;
  const int pixels = t->pixels * t->lines, upper = two ? t->pixels : (pixels + 1) / 2;
  const int lower = pixels - upper;
  const int64_t y_lanes = t->y_size == 4 ? PANEL : PANEL / 2;
  const int64_t add_lanes = t->add_size == 4 ? PANEL : PANEL / 2;
  const int64_t x_second = two ? t->x_line : upper * t->x_step;
  const int64_t y_second = two ? t->y_line : upper * y_lanes;
  const int64_t add_second = two ? t->add_line : upper * add_lanes;
  const bool continues = t->part & TRACEA_CONV_CONTINUES, stops = t->part & TRACEA_CONV_STOPS;
  const bool plain = !t->add && t->y_size == 4 && t->lo == -__builtin_inff() &&
                     t->hi == __builtin_inff();
  const char* line = t->prefetch;
  const float *x = t->x, *add = t->add;
  float* y = t->y;
  shape_tiles(t, upper, lower);
  for (int64_t tiles = t->tiles; tiles > 0; tiles--) {
    if (continues) begin_sums<TALL, WIDE>(y, y_second, t->y_panel, NEXT);
    else begin_sums<TALL, WIDE>(t->bias, 0, PANEL, 0);
    const Run a = {x, t->x_step * (int64_t)sizeof(float), upper, scratch[0]};
    const Run b = {x + x_second, a.step, lower, scratch[1]};
    sum_taps<TALL, WIDE>(t, a, b, line);
    if (stops || plain) {
      end_sums<TALL, WIDE>(y, y_second, t->y_panel, NEXT);
    } else {
      end_sums<TALL, WIDE>(sums[0], 2 * RUN * PANEL, RUN * PANEL, NEXT);
      for (int j = 0; j < (WIDE ? 2 : 1); j++) {
        const float* from = add ? add + j * t->add_panel : nullptr;
        finish_run(t, sums[j], upper, from, y + j * t->y_panel);
        if (TALL)
          finish_run(t, sums[2 + j], lower, from ? from + add_second : nullptr,
                     y + j * t->y_panel + y_second);
      }
    }
    x += t->x_next, y += t->y_next;
    if (add) add += t->add_next;
  }
}
