// The register tile of a convolution in bf16 on matrix tiles: up to 2 x 2 accumulators of 16 outputs
// by 16 channels, the two runs of outputs as in conv_tile.h; where a line is parted into an odd
// number, both take its middle.  A tap is the 8 pairs of a block, half of what one instruction takes:
// two side by side, whose inputs and weights lie so, are one; the last of an odd number is half.  Where
// inputs are broad, a tap is the pairs of two blocks.
//% if split
// Of sums of two numbers, a tap is 16 lanes, of which the first half meets the second of the weights
// once more.
//% endif
//% include "tile_shapes.h"

enum { RUN = 16, DEPTH = PANEL / 2, NEXT = 64 };  // outputs and lanes of a tap; bytes

// `depth`: lanes of every tap, or 0 where some are two of 8.
INLINE void shape_tiles(const tracea_conv_tile* t, int rows, bool tall, int depth) {
  const int32_t shape = depth << 8 | rows << 1 | tall;
  if (*t->state == shape) return;
  *t->state = shape;
  if (depth) set_shapes(rows, tall ? rows : 0, depth);
  else set_halves(rows, tall);
}

// Inputs of the two runs for one tap or two; the second run's lie `second` numbers behind.
struct Runs {
  const float* x;
  int64_t second, step;  // step: bytes between outputs
};

// Panels of B are loaded twice: of tiles there are no more, and rows of A may cross cache lines.
//% for name, a, b in (("Two", 4, 6), ("One", 5, 7))
struct ${name} {  // taps
  template <bool TALL, bool WIDE>
  static INLINE_MEMBER void multiply(const Runs& runs, const float* w, int64_t w_panel) {
    _tile_loadd(${b}, w, NEXT);
    _tile_loadd(${a}, runs.x, runs.step);
    _tile_dpbf16ps(0, ${a}, ${b});
    if (WIDE) {
      _tile_loadd(${b}, w + w_panel, NEXT);
      _tile_dpbf16ps(1, ${a}, ${b});
    }
    if (TALL) {
      _tile_loadd(${a}, runs.x + runs.second, runs.step);
      if (WIDE) {
        _tile_dpbf16ps(3, ${a}, ${b});
        _tile_loadd(${b}, w, NEXT);
      }
      _tile_dpbf16ps(2, ${a}, ${b});
    }
  }
};
//% endfor

// Where all taps are alike there are tiles for both panels.
struct Same {
  template <bool TALL, bool WIDE>
  static INLINE_MEMBER void multiply(const Runs& runs, const float* w, int64_t w_panel) {
    _tile_loadd(6, w, NEXT);
    _tile_loadd(4, runs.x, runs.step);
    _tile_dpbf16ps(0, 4, 6);
    if (WIDE) {
      _tile_loadd(7, w + w_panel, NEXT);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (TALL) {
      _tile_loadd(5, runs.x + runs.second, runs.step);
      _tile_dpbf16ps(2, 5, 6);
      if (WIDE) _tile_dpbf16ps(3, 5, 7);
    }
  }
};

//% if not split
// A tap of a block of fewer than 8 pairs: copied, zeros in place of the others.
template <class ONE, bool TALL, bool WIDE>
INLINE void multiply_part(const Runs& runs, int rows, int64_t lanes, const float* w,
                          int64_t w_panel) {
  alignas(64) float scratch[2 * RUN * W];
  for (int run = 0; run < (TALL ? 2 : 1); run++)
    for (int i = 0; i < rows; i++) {
      const char* from = (const char*)(runs.x + run * runs.second) + i * runs.step;
      store(scratch + (run * RUN + i) * W, load((const float*)from, first(lanes)));
    }
  written();
  ONE::template multiply<TALL, WIDE>({scratch, RUN * W, W * (int64_t)sizeof(float)}, w, w_panel);
}
//% endif

// A tile's results are made while the next one's products run, some rows after each of them: what
// is added to them, their range, their rounding.
struct Ending {
  enum { PIECE = 4, MOST = 4 * RUN / PIECE };  // rows; pieces
  struct Piece {
    int64_t sums, add, y;  // where it begins
    int count;
  };
  Piece piece[MOST];
  int pieces, add_size, y_size;
  int64_t add_row, y_row;  // bytes between outputs
  vf lo, hi;
  const float *sums, *add;  // of the tile that ends
  float* y;
  int next, end;

  template <int ADD, int Y>  // bytes of an element, 0 where nothing is added
  INLINE_MEMBER void row(const Piece& p, int i) const {
    vf c = load(sums + p.sums + i * PANEL);
    const char* const from = (const char*)(add + p.add) + i * add_row;
    if (ADD == 2) c = c + load_bf16((const uint16_t*)from);
    if (ADD == 4) c = c + load((const float*)from);
    c = min(hi, max(lo, c));
    char* const to = (char*)(y + p.y) + i * y_row;
    if (Y == 2) store_bf16((uint16_t*)to, c);
    else store((float*)to, c);
  }

  template <int ADD, int Y>
  INLINE_MEMBER void rows(const Piece& p) const {
    if (p.count == PIECE) UNROLL for (int i = 0; i < PIECE; i++) row<ADD, Y>(p, i);
    else for (int i = 0; i < p.count; i++) row<ADD, Y>(p, i);
  }

  INLINE_MEMBER void some(int count) {
    for (const int until = next + count < end ? next + count : end; next < until; next++) {
      const Piece& p = piece[next];
      if (y_size == 2) {
        if (!add_size) rows<0, 2>(p);
        else if (add_size == 2) rows<2, 2>(p);
        else rows<4, 2>(p);
      } else {
        if (!add_size) rows<0, 4>(p);
        else if (add_size == 2) rows<2, 4>(p);
        else rows<4, 4>(p);
      }
    }
  }
};

// What the products of a tile ask for on the side: weights wanted next.
struct Asked {
  const char *line, *end;
  int64_t lines, panel;  // bytes of a tap; between panels

  template <bool WIDE>
  INLINE_MEMBER void ask(int taps) {
    const char* const until = line + taps * lines < end ? line + taps * lines : end;
    for (; line < until; line += NEXT)
      for (int j = 0; j < (WIDE ? 2 : 1); j++) __builtin_prefetch(line + j * panel, 0, 2);
  }
};

// All taps alike, of `depth` lanes each but for a last block's.
template <bool TALL, bool WIDE>
INLINE void sum_same(const tracea_conv_tile* t, const Runs& first, [[maybe_unused]] int rows,
                     Asked& asked, Ending& ending) {
  const int64_t blocks = t->rows ? t->blocks : 0, cols = t->cols, depth = t->depth;
  const int64_t steps = blocks * t->rows * cols;
  const int pieces = steps ? (int)((ending.end + steps - 1) / steps) : 0;
  for (int64_t block = 0; block < blocks; block++) {
    //% if not split
    const int64_t lanes = block + 1 < blocks ? depth : t->last;
    //% endif
    for (int64_t row = 0; row < t->rows; row++) {
      Runs runs = first;
      runs.x += block * t->x_block + row * t->x_row;
      const float* w = t->w + block * t->w_block + row * t->w_row;
      for (int64_t i = 0; i < cols; i++, runs.x += t->x_col, w += depth * PANEL) {
        asked.ask<WIDE>(1);
        //% if not split
        if (lanes != depth) multiply_part<Same, TALL, WIDE>(runs, rows, lanes, w, t->w_panel);
        else
        //% endif
        Same::multiply<TALL, WIDE>(runs, w, t->w_panel);
        ending.some(pieces);
      }
    }
  }
}

template <bool TALL, bool WIDE>
INLINE void sum_taps(const tracea_conv_tile* t, const Runs& first, [[maybe_unused]] int rows,
                     Asked& asked, Ending& ending) {
  const int64_t blocks = t->rows ? t->blocks : 0, cols = t->cols, depth = t->depth;
  const int64_t x_col = t->x_col, w_panel = t->w_panel;
  //% if split
  const int64_t steps = blocks * t->rows * cols;
  //% else
  const bool beside = x_col == DEPTH;
  const int64_t steps = blocks * t->rows * (beside ? (cols + 1) / 2 : cols);
  //% endif
  const int pieces = steps ? (int)((ending.end + steps - 1) / steps) : 0;
  for (int64_t block = 0; block < blocks; block++) {
    //% if not split
    const int64_t lanes = block + 1 < blocks ? depth : t->last;
    const int64_t pairs = lanes == DEPTH && beside ? cols / 2 : 0;
    //% endif
    for (int64_t row = 0; row < t->rows; row++) {
      Runs runs = first;
      runs.x += block * t->x_block + row * t->x_row;
      const float* w = t->w + block * t->w_block + row * t->w_row;
      //% if split
      for (int64_t i = 0; i < cols; i++, runs.x += x_col, w += depth * PANEL) {
        asked.ask<WIDE>(1);
        Two::multiply<TALL, WIDE>(runs, w, w_panel);
        One::multiply<TALL, WIDE>(runs, w + DEPTH * PANEL, w_panel);
        ending.some(pieces);
      }
      //% else
      for (int64_t i = 0; i < pairs; i++, runs.x += 2 * DEPTH, w += 2 * DEPTH * PANEL) {
        asked.ask<WIDE>(2);
        Two::multiply<TALL, WIDE>(runs, w, w_panel);
        ending.some(pieces);
      }
      for (int64_t i = 2 * pairs; i < cols; i++, runs.x += x_col, w += depth * PANEL) {
        asked.ask<WIDE>(1);
        if (lanes == DEPTH) One::multiply<TALL, WIDE>(runs, w, w_panel);
        else multiply_part<One, TALL, WIDE>(runs, rows, lanes, w, w_panel);
        ending.some(pieces);
      }
      //% endif
    }
  }
}

template <bool TALL, bool WIDE>
void matrix_tiles(const tracea_conv_tile* t) {
  alignas(64) float sums[2][4 * RUN * PANEL];
  const bool two = t->lines == 2;
  const int pixels = t->pixels * t->lines, rows = two ? t->pixels : (pixels + 1) / 2;
  const int lower = two ? rows : pixels - rows;  // where the second run begins
  const int64_t y_row = t->y_step, add_row = t->add_step;
  //% if split
  const int depth = 0;
  //% else
  const bool alike = t->depth != DEPTH || t->cols == 1 || t->x_col != DEPTH;
  const int depth = alike ? (int)t->depth : 0;
  //% endif
  const int64_t y_second = two ? t->y_line : lower * y_row;
  const int64_t add_second = two ? t->add_line : lower * add_row;
  const bool continues = t->part & TRACEA_CONV_CONTINUES, stops = t->part & TRACEA_CONV_STOPS;
  const bool plain = !t->add && t->y_size == 4 && t->lo == -__builtin_inff() &&
                     t->hi == __builtin_inff();
  Asked asked = {t->prefetch, t->prefetch_end, t->prefetch_lines * (int64_t)NEXT,
                 t->w_panel * (int64_t)sizeof(float)};
  Runs runs = {t->x, two ? t->x_line : lower * t->x_step, t->x_step * (int64_t)sizeof(float)};
  Ending ending;
  ending.add_size = t->add ? t->add_size : 0, ending.y_size = t->y_size;
  ending.add_row = add_row * (int64_t)sizeof(float), ending.y_row = y_row * (int64_t)sizeof(float);
  ending.lo = set1(t->lo), ending.hi = set1(t->hi);
  ending.pieces = ending.next = ending.end = 0;
  for (int run = 0; run < (TALL ? 2 : 1); run++) for (int j = 0; j < (WIDE ? 2 : 1); j++)
    for (int i = 0; i < rows; i += Ending::PIECE)
      ending.piece[ending.pieces++] = {
          ((2 * run + j) * RUN + i) * PANEL, j * t->add_panel + run * add_second + i * add_row,
          j * t->y_panel + run * y_second + i * y_row,
          rows - i < Ending::PIECE ? rows - i : Ending::PIECE};
  const float* add = t->add;
  float* y = t->y;
  shape_tiles(t, rows, TALL, depth);
  for (int64_t i = 0; i < t->tiles; i++) {
    if (continues) begin_sums<TALL, WIDE>(y, y_second, t->y_panel, NEXT);
    else begin_sums<TALL, WIDE>(t->bias, 0, PANEL, 0);
    if (depth) sum_same<TALL, WIDE>(t, runs, rows, asked, ending);
    else sum_taps<TALL, WIDE>(t, runs, rows, asked, ending);
    ending.some(ending.end);
    if (stops || plain) {
      end_sums<TALL, WIDE>(y, y_second, t->y_panel, NEXT);
    } else {
      float* const to = sums[i % 2];
      end_sums<TALL, WIDE>(to, 2 * RUN * PANEL, RUN * PANEL, NEXT);
      ending.sums = to, ending.y = y, ending.add = add;
      ending.next = 0, ending.end = ending.pieces;
    }
    runs.x += t->x_next, y += t->y_next;
    if (add) add += t->add_next;
  }
  written();
  ending.some(ending.end);
}

INLINE void any_tile(const tracea_conv_tile* t) {
  const bool tall = t->pixels * t->lines > 1;
  if (tall) (t->nv > 1 ? matrix_tiles<true, true> : matrix_tiles<true, false>)(t);
  else (t->nv > 1 ? matrix_tiles<false, true> : matrix_tiles<false, false>)(t);
}
