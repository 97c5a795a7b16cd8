// One register tile of a dense convolution: broadcast an input, multiply by 16 NV weights, add.
//
// The outputs of a tile form two runs, A and B: two lines, or two halves of one.  Within a run an
// output lies at a multiple of the step, up to six times; three index registers reach them all.
INLINE vf start_of(const float* bias) { return bias ? load(bias) : set1(0.0f); }

// Hides a value's origin, so that gcc keeps it in a register instead of one pointer per output.
INLINE int64_t opaque(int64_t x) {
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

template <class STEP, int A, int B, int NV>
INLINE void multiply(vf (&c)[A + B][NV * P], const char* a, const char* b, const Steps& s,
                     const float* w, int64_t w_panel) {
  vf row[NV * P];
  load_row<NV>(row, w, w_panel);
  UNROLL for (int i = 0; i < A + B; i++) {
    const vf x = set1(*(i < A ? at(a, s, i) : at(b, s, i - A)));
    UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = STEP::add(x, row[j], c[i][j]);
  }
}

// Output i of a tile, outputs of a run being LANES floats apart.
template <int A, int LANES, class T>
INLINE T* run_at(T* base, bool two, int64_t line, int i) {
  return i < A ? base + i * LANES : base + (two ? line : A * LANES) + (i - A) * LANES;
}
//% if dtype == "bf16"

enum { HALF = PANEL / 2 };  // a pixel of 16 bf16, in steps of 32 bits

template <int A, int B, int NV>
INLINE void add_rounded(vf (&c)[A + B][NV * P], const tracea_conv_tile* t) {
  UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    const float* from = run_at<A, HALF>(t->add, t->lines == 2, t->add_line, i);
    c[i][j] = c[i][j] + load_bf16((const uint16_t*)(from + j / P * t->add_panel) + j % P * W);
  }
}

template <int A, int B, int NV>
INLINE void store_rounded(const vf (&c)[A + B][NV * P], const tracea_conv_tile* t) {
  UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    float* to = run_at<A, HALF>(t->y, t->lines == 2, t->y_line, i);
    store_bf16((uint16_t*)(to + j / P * t->y_panel) + j % P * W, c[i][j]);
  }
}
//% endif

// Asks for the lines of outputs, or of what is added to them, long before they are needed.
template <int A, int B, int NV, int LANES>
INLINE void expect(const float* base, const tracea_conv_tile* t, int64_t line, int64_t panel) {
  UNROLL for (int i = 0; i < A + B; i += PANEL / LANES) UNROLL for (int j = 0; j < NV; j++)
    __builtin_prefetch(run_at<A, LANES>(base, t->lines == 2, line, i) + j * panel, 1, 3);
}

template <int A, int B, int NV>
INLINE void expect_results(const tracea_conv_tile* t) {
  //% if dtype == "bf16"
  if (t->add && t->add_size == 2) expect<A, B, NV, HALF>(t->add, t, t->add_line, t->add_panel);
  if (t->y_size == 2) return expect<A, B, NV, HALF>(t->y, t, t->y_line, t->y_panel);
  //% else
  if (t->add) expect<A, B, NV, PANEL>(t->add, t, t->add_line, t->add_panel);
  //% endif
  if (!(t->part & TRACEA_CONV_CONTINUES))
    expect<A, B, NV, PANEL>(t->y, t, t->y_line, t->y_panel);
}

template <class STEP, int A, int B, int NV>
void tile(const tracea_conv_tile* t) {
  constexpr int64_t F = sizeof(float);
  vf c[A + B][NV * P];
  const auto y_at = [&](int i, int j) __attribute__((always_inline)) {
    return run_at<A, PANEL>(t->y, t->lines == 2, t->y_line, i) + j / P * t->y_panel + j % P * W;
  };
  if (t->part & TRACEA_CONV_CONTINUES) {
    UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
      c[i][j] = load(y_at(i, j));
  } else {
    UNROLL for (int j = 0; j < NV * P; j++) {
      const vf start = start_of(t->bias ? t->bias + j * W : nullptr);
      UNROLL for (int i = 0; i < A + B; i++) c[i][j] = start;
    }
  }

  expect_results<A, B, NV>(t);
  const int64_t step = opaque(t->x_step * F), next = opaque(t->x_depth * F);
  const Steps s = {step, opaque(step * 3), opaque(step * 5)};
  const int64_t second = t->lines == 2 ? t->x_line * F : A * step, w_panel = t->w_panel;
  const int64_t ahead = t->x_block * F, lines = t->prefetch_lines;
  const int64_t rows = t->rows, cols = t->cols, w_tap = t->depth * PANEL;
  // From the last column of a row to the next row, from the last row of a block to the next block.
  const int64_t x_col = t->x_col * F, x_row = t->x_row * F - (cols - 1) * x_col;
  const int64_t x_block = ahead - (rows - 1) * t->x_row * F - (cols - 1) * x_col;
  const int64_t w_row = t->w_row - (cols - 1) * w_tap;
  const int64_t w_block = t->w_block - (rows - 1) * t->w_row - (cols - 1) * w_tap;
  const char *line = t->prefetch, *x = (const char*)t->x;
  const float* w = t->w;
  int64_t row = rows, col = cols, block = rows ? t->blocks : 0, depth = t->depth;
  if (block == 1) depth = t->last;
  while (block) {
    const char *a = x, *b = x + second;
    // Inputs of the next block, or of the next tile: 16 or so lines, two every two steps.
    const char* soon = block > 1 ? x + ahead : (const char*)t->x + (A + B) * step;
    for (int64_t i = lines; i > 0; i--, line += 64)
      UNROLL for (int j = 0; j < NV; j++) __builtin_prefetch(line + j * w_panel * F, 0, 2);
    const float* tap = w;
    int64_t k = depth;
    for (; k >= 2; k -= 2) {
      __builtin_prefetch(soon, 0, 3);
      __builtin_prefetch(soon + step, 0, 3);
      soon += 2 * step;
      multiply<STEP, A, B, NV>(c, a, b, s, tap, w_panel);
      a += next, b += next;
      multiply<STEP, A, B, NV>(c, a, b, s, tap + PANEL, w_panel);
      a += next, b += next, tap += 2 * PANEL;
    }
    if (k) multiply<STEP, A, B, NV>(c, a, b, s, tap, w_panel);
    if (--col) {
      x += x_col, w += w_tap;
    } else if (col = cols, --row) {
      x += x_row, w += w_row;
    } else {
      row = rows, x += x_block, w += w_block;
      if (--block == 1) depth = t->last;
    }
  }

  if (!(t->part & TRACEA_CONV_STOPS)) {
    if (t->add) {
      //% if dtype == "bf16"
      if (t->add_size == 2) add_rounded<A, B, NV>(c, t);
      else
      //% endif
      UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
        c[i][j] = c[i][j] + load(run_at<A, PANEL>(t->add, t->lines == 2, t->add_line, i) +
                                 j / P * t->add_panel + j % P * W);
    }
    const vf lo = set1(t->lo), hi = set1(t->hi);
    if (t->lo > -__builtin_inff())
      UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
        c[i][j] = max(lo, c[i][j]);
    if (t->hi < __builtin_inff())
      UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
        c[i][j] = min(hi, c[i][j]);
  }
  //% if dtype == "bf16"
  if (t->y_size == 2) return store_rounded<A, B, NV>(c, t);
  //% endif
  UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
    store(y_at(i, j), c[i][j]);
}
