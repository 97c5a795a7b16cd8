// One register tile of a dense convolution: broadcast an input, multiply by 16 NV weights, add.
//
// The outputs of a tile form two runs, A and B: two lines, or two halves of one.  Within a run an
// output lies at a multiple of the step, up to six times; three index registers reach them all.
INLINE vf start_of(const float* bias) { return bias ? load(bias) : set1(0.0f); }

// Hides a value's origin, so that gcc keeps it in a register instead of one pointer per output.
template <class T>
INLINE T opaque(T x) {
  __asm__("" : "+r"(x));
  return x;
}

// A step of the sum in float32.
struct Plain {
  static INLINE_MEMBER vf add(vf x, vf w, vf c) { return fma(x, w, c); }
};

struct Steps {  // in bytes
  int64_t one, three, five;
};

INLINE const float* at(const char* base, const Steps& s, int i) {
  switch (i) {
    case 0: return (const float*)base;
    case 1: return (const float*)(base + s.one);
    case 2: return (const float*)(base + s.one * 2);
    case 3: return (const float*)(base + s.three);
    case 4: return (const float*)(base + s.one * 4);
    case 5: return (const float*)(base + s.five);
    default: return (const float*)(base + s.three * 2);
  }
}

//% set sums, sum = ("vi", "whole") if dtype == "int16" else ("vf", "c")
template <class STEP, int A, int B, int NV>
INLINE void multiply(${sums} (&c)[A + B][NV * P], const char* a, const char* b, const Steps& s,
                     const float* w, int64_t w_panel) {
  vf row[NV * P];
  load_row<NV>(row, w, w_panel);
  UNROLL for (int i = 0; i < A + B; i++) {
    const vf x = set1(*(i < A ? at(a, s, i) : at(b, s, i - A)));
    UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = STEP::add(x, row[j], c[i][j]);
  }
}

// Output i of a tile, outputs of a run being LANES floats apart and run B `line` behind run A.
template <int A, int LANES, class T>
INLINE T* run_at(T* base, int64_t line, int i) {
  return i < A ? base + i * LANES : base + line + (i - A) * LANES;
}

// Where a tile's results go, and what is added to them; each tile of a run has its own.
struct Outputs {
  float* y;
  int64_t y_line, y_panel;  // y_line: to the first output of run B
  const float* add;
  int64_t add_line, add_panel;
};
//% if dtype == "bf16"

enum { HALF = PANEL / 2 };  // a pixel of 16 bf16, in steps of 32 bits

template <int A, int B, int NV>
INLINE void add_rounded(vf (&c)[A + B][NV * P], const Outputs& o) {
  UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    const float* from = run_at<A, HALF>(o.add, o.add_line, i) + j / P * o.add_panel;
    c[i][j] = c[i][j] + load_bf16((const uint16_t*)from + j % P * W);
  }
}

template <int A, int B, int NV>
INLINE void store_rounded(const vf (&c)[A + B][NV * P], const Outputs& o) {
  UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    float* to = run_at<A, HALF>(o.y, o.y_line, i) + j / P * o.y_panel;
    store_bf16((uint16_t*)to + j % P * W, c[i][j]);
  }
}
//% endif

//% if dtype == "int16"
// Sums of integers times their scales, and the bias.
template <int N, int NV>
INLINE void scale(vf (&c)[N][NV * P], const tracea_conv_tile& t) {
  const vf x = set1(*t.x_scale);
  UNROLL for (int j = 0; j < NV * P; j++) {
    const vf w = load(t.w_scale + j * W), start = start_of(t.bias ? t.bias + j * W : nullptr);
    UNROLL for (int i = 0; i < N; i++) c[i][j] = fma(c[i][j] * x, w, start);
  }
}
//% endif

// Asks for the lines of outputs, or of what is added to them, long before they are needed.
template <int A, int B, int NV, int LANES>
INLINE void expect(const float* base, int64_t line, int64_t panel) {
  UNROLL for (int i = 0; i < A + B; i += PANEL / LANES) UNROLL for (int j = 0; j < NV; j++)
    __builtin_prefetch(run_at<A, LANES>(base, line, i) + j * panel, 1, 3);
}

// The tiles of a run, one after another.
template <class STEP, int A, int B, int NV>
void tile(const tracea_conv_tile* t) {
  constexpr int64_t F = sizeof(float);
  const int64_t y_lanes = t->y_size == 4 ? PANEL : PANEL / 2;
  const int64_t add_lanes = t->add_size == 4 ? PANEL : PANEL / 2;
  const bool two = t->lines == 2;
  Outputs run = {t->y, two ? t->y_line : A * y_lanes, t->y_panel,
                 t->add, two ? t->add_line : A * add_lanes, t->add_panel};
  const bool continues = t->part & TRACEA_CONV_CONTINUES, stops = t->part & TRACEA_CONV_STOPS;
  //% if dtype != "int16"
  const float* const bias = t->bias;
  //% endif
  const int64_t step = opaque(t->x_step * F), next = opaque(t->x_depth * F);
  const Steps s = {step, opaque(step * 3), opaque(step * 5)};
  const int64_t second = two ? t->x_line * F : A * step, w_panel = t->w_panel;
  const int64_t ahead = t->x_block * F, lines = t->prefetch_lines * 64;
  const int64_t rows = t->rows, cols = t->cols, w_tap = t->depth * PANEL;
  // From the last column of a row to the next row, from the last row of a block to the next block.
  const int64_t x_col = t->x_col * F, x_row = t->x_row * F - (cols - 1) * x_col;
  const int64_t x_block = ahead - (rows - 1) * t->x_row * F - (cols - 1) * x_col;
  const int64_t w_row = t->w_row - (cols - 1) * w_tap;
  const int64_t w_block = t->w_block - (rows - 1) * t->w_row - (cols - 1) * w_tap;
  const int64_t x_next = t->x_next * F, y_next = t->y_next, add_next = t->add_next;
  const int64_t full = t->depth, last = t->last, blocks = rows ? t->blocks : 0;
  const char *line = t->prefetch, *const line_end = t->prefetch_end, *origin = (const char*)t->x;
  const float* const weights = t->w;

  for (int64_t tiles = t->tiles; tiles > 0; tiles--) {
    const Outputs o = {opaque(run.y), opaque(run.y_line), opaque(run.y_panel),
                       opaque(run.add), opaque(run.add_line), opaque(run.add_panel)};
    const auto y_at = [&](int i, int j) __attribute__((always_inline)) {
      return run_at<A, PANEL>(o.y, o.y_line, i) + j / P * o.y_panel + j % P * W;
    };
    //% if dtype == "int16"
    vi whole[A + B][NV * P];
    UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
      whole[i][j] = vi{};
    //% else
    vf c[A + B][NV * P];
    if (continues) {
      UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
        c[i][j] = load(y_at(i, j));
    } else {
      UNROLL for (int j = 0; j < NV * P; j++) {
        const vf start = start_of(bias ? bias + j * W : nullptr);
        UNROLL for (int i = 0; i < A + B; i++) c[i][j] = start;
      }
    }
    //% endif
    //% if dtype == "bf16"
    if (o.add && t->add_size == 2) expect<A, B, NV, HALF>(o.add, o.add_line, o.add_panel);
    if (t->y_size == 2) expect<A, B, NV, HALF>(o.y, o.y_line, o.y_panel);
    else
    //% endif
    if (!continues) expect<A, B, NV, PANEL>(o.y, o.y_line, o.y_panel);
    //% if dtype != "bf16"
    if (o.add) expect<A, B, NV, PANEL>(o.add, o.add_line, o.add_panel);
    //% endif

    const char* x = origin;
    const float* w = weights;
    int64_t row = rows, col = cols, block = blocks, depth = block == 1 ? last : full;
    while (block) {
      const char *a = x, *b = x + second;
      // Inputs of the next block, or of the next tile: 16 or so lines, two every two steps.
      const char* soon = block > 1 ? x + ahead : origin + x_next;
      const char* const until = line + lines < line_end ? line + lines : line_end;
      for (; line < until; line += 64)
        UNROLL for (int j = 0; j < NV; j++) __builtin_prefetch(line + j * w_panel * F, 0, 2);
      const float* tap = w;
      int64_t k = depth;
      for (; k >= 2; k -= 2) {
        __builtin_prefetch(soon, 0, 3);
        __builtin_prefetch(soon + step, 0, 3);
        soon += 2 * step;
        multiply<STEP, A, B, NV>(${sum}, a, b, s, tap, w_panel);
        a += next, b += next;
        multiply<STEP, A, B, NV>(${sum}, a, b, s, tap + PANEL, w_panel);
        a += next, b += next, tap += 2 * PANEL;
      }
      if (k) multiply<STEP, A, B, NV>(${sum}, a, b, s, tap, w_panel);
      if (--col) {
        x += x_col, w += w_tap;
      } else if (col = cols, --row) {
        x += x_row, w += w_row;
      } else {
        row = rows, x += x_block, w += w_block;
        if (--block == 1) depth = last;
      }
    }

    //% if dtype == "int16"
    vf c[A + B][NV * P];
    UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
      c[i][j] = to_float(whole[i][j]);
    if (continues)
      UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
        c[i][j] = c[i][j] + load(y_at(i, j));
    if (!stops) scale<A + B, NV>(c, *opaque(t));
    //% endif
    if (!stops) {
      if (o.add) {
        //% if dtype == "bf16"
        if (t->add_size == 2) add_rounded<A, B, NV>(c, o);
        else
        //% endif
        UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
          c[i][j] = c[i][j] + load(run_at<A, PANEL>(o.add, o.add_line, i) +
                                   j / P * o.add_panel + j % P * W);
      }
      // Read only here: over the sums no register is left for them.
      const float lo = opaque(t)->lo, hi = opaque(t)->hi;
      if (lo > -__builtin_inff())
        UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
          c[i][j] = max(set1(lo), c[i][j]);
      if (hi < __builtin_inff())
        UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
          c[i][j] = min(set1(hi), c[i][j]);
    }
    //% if dtype == "bf16"
    if (t->y_size == 2) store_rounded<A, B, NV>(c, o);
    else
    //% endif
    UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
      store(y_at(i, j), c[i][j]);
    origin += x_next, run.y += y_next;
    if (run.add) run.add += add_next;
  }
}
