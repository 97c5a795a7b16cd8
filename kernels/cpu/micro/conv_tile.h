// One register tile of a dense convolution: broadcast an input, multiply by 16 NV weights, add.
//
// The outputs of a tile form two runs, A and B: two lines, or two halves of one.  Within a run an
// output lies at a multiple of the step, up to six times; three index registers reach them all.
//% if isa == "neonbf16"

//% include "matrix_blocks.h"

//% endif
INLINE vf start_of(const float* bias) { return bias ? load(bias) : set1(0.0f); }

// A step of the sum in float32.
struct Plain {
  enum { TWICE = 0 };  // whether halves of a block meet once more (conv_bf16x2)
  template <class X, class V>
  static INLINE_MEMBER V add(X x, V w, V c) { return fma(x, w, c); }
  //% if vectors_of | default(isa) == "neon"
  enum { LANES = 1, AHEAD = 1 };  // whether factors may come from lanes; for cores in order, too
  enum { BLOCKS = 0 };            // whether rows are multiplied in blocks (matrix_blocks.h)
  static INLINE_MEMBER float input(const float* p) { return broadcast(p); }
  template <class L>
  static INLINE_MEMBER vf add_lane(L, vf x, vf w, vf c) { return fma_lane<L::LANE>(x, w, c); }
  //% endif
  //% if dtype == "bf16"
  static INLINE_MEMBER vf add_at(const float* x, vf w, vf c) { return fma(set1(*x), w, c); }
  //% endif
};

// Accumulators of a last output block with at most eight channels: none, or a vector of eight lanes
// beside the full vectors of each output.
struct NoHalfTile {
  enum { COUNT = 0 };
  INLINE_MEMBER void start(const float*) {}
  INLINE_MEMBER void resume(const float*) {}
  INLINE_MEMBER void add(const float*) {}
  INLINE_MEMBER void at_least(float) {}
  INLINE_MEMBER void at_most(float) {}
  INLINE_MEMBER void write(float*) const {}
  template <class STEP, class X>
  INLINE_MEMBER void step(X, const float*) {}
  //% if dtype == "bf16"
  INLINE_MEMBER void add_rounded(const float*) {}
  INLINE_MEMBER void write_rounded(float*) const {}
  //% endif
};
//% if half_tile

struct HalfTile {
  enum { COUNT = 1 };
  vh sum;
  INLINE_MEMBER void start(const float* bias) { sum = low_half(bias ? load(bias) : set1(0.0f)); }
  INLINE_MEMBER void resume(const float* y) { sum = load_half(y); }
  INLINE_MEMBER void add(const float* from) { sum = sum + load_half(from); }
  INLINE_MEMBER void at_least(float lo) { sum = max(low_half(set1(lo)), sum); }
  INLINE_MEMBER void at_most(float hi) { sum = min(low_half(set1(hi)), sum); }
  INLINE_MEMBER void write(float* y) const { store(y, sum); }
  template <class STEP>
  INLINE_MEMBER void step(vf x, const float* w) {
    sum = keep_in_register(STEP::add(low_half(x), load_half(w), sum));
  }
  //% if dtype == "bf16"
  INLINE_MEMBER void add_rounded(const float* from) {
    sum = sum + low_half(load_bf16((const uint16_t*)from));
  }
  INLINE_MEMBER void write_rounded(float* y) const { store_bf16((uint16_t*)y, sum); }
  //% endif
};
//% endif

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
template <class STEP, int A, int B, int NV, class TAIL>
INLINE void multiply(${sums} (&c)[A + B][NV * P], TAIL (&e)[A + B], const char* a,
                     const char* b, const Steps& s, const float* w, int64_t w_panel) {
  vf row[NV * P];
  load_row<NV>(row, w, w_panel);
  UNROLL for (int i = 0; i < A + B; i++) {
    const float* const from = i < A ? at(a, s, i) : at(b, s, i - A);
    //% if dtype == "bf16"
    if (NV * P + TAIL::COUNT == 1) {  // used once, an input needs no register
      c[i][0] = STEP::add_at(from, row[0], c[i][0]);
      continue;
    }
    //% endif
    //% if vectors_of | default(isa) == "neon"
    const auto x = STEP::input(from);
    //% else
    const vf x = set1(*from);
    //% endif
    UNROLL for (int j = 0; j < NV * P; j++) {
      c[i][j] = STEP::add(x, row[j], c[i][j]);
      if (TAIL::COUNT) c[i][j] = keep_in_register(c[i][j]);
    }
    e[i].template step<STEP>(x, w + NV * w_panel);
  }
}

// Output i of a tile, outputs of a run being LANES floats apart and run B `line` behind run A.
template <int A, int LANES, class T>
INLINE T* run_at(T* base, int64_t line, int i) {
  return i < A ? base + i * LANES : base + line + (i - A) * LANES;
}

// The same, outputs being so many steps of 32 bits apart.
template <int A, class T>
INLINE T* run_at(T* base, int64_t line, int i, int64_t lanes) {
  return i < A ? base + i * lanes : base + line + (i - A) * lanes;
}

// Where a tile's results go, and what is added to them; each tile of a run has its own.
struct Outputs {
  float* y;
  int64_t y_line, y_panel;  // y_line: to the first output of run B
  const float* add;
  int64_t add_line, add_panel;
};
//% if dtype == "bf16"

// A pixel of 16 bf16, in steps of 32 bits; a broad one has as many as PANEL.
enum { HALF = PANEL / 2 };

template <int A, int B, int NV, class TAIL>
INLINE void add_rounded(vf (&c)[A + B][NV * P], TAIL (&e)[A + B], const Outputs& o, int64_t lanes) {
  UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    const float* from = run_at<A>(o.add, o.add_line, i, lanes) + j / P * o.add_panel;
    c[i][j] = c[i][j] + load_bf16((const uint16_t*)from + j % P * W);
  }
  UNROLL for (int i = 0; i < A + B; i++)
    e[i].add_rounded(run_at<A>(o.add, o.add_line, i, lanes) + NV * o.add_panel);
}

template <int A, int B, int NV, class TAIL>
INLINE void store_rounded(const vf (&c)[A + B][NV * P], const TAIL (&e)[A + B],
                          const Outputs& o, int64_t lanes) {
  UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    float* to = run_at<A>(o.y, o.y_line, i, lanes) + j / P * o.y_panel;
    store_bf16((uint16_t*)to + j % P * W, c[i][j]);
  }
  UNROLL for (int i = 0; i < A + B; i++)
    e[i].write_rounded(run_at<A>(o.y, o.y_line, i, lanes) + NV * o.y_panel);
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

// The tiles of a run, one after another: NV whole blocks of outputs, and perhaps half of one.
template <class STEP, int A, int B, int NV, class TAIL = NoHalfTile>
void tile(const tracea_conv_tile* t) {
  constexpr int64_t F = sizeof(float);
  constexpr int ALL = NV + TAIL::COUNT;  // blocks
  const int64_t y_lanes = t->y_step, add_lanes = t->add_step;
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
  const int64_t pace = step < 64 ? 64 : step;  // a line holds two inputs in bf16
  const int64_t w_row = t->w_row - (cols - 1) * w_tap;
  const int64_t w_block = t->w_block - (rows - 1) * t->w_row - (cols - 1) * w_tap;
  const int64_t x_next = t->x_next * F, y_next = t->y_next, add_next = t->add_next;
  const int64_t full = t->depth, last = t->last, blocks = rows ? t->blocks : 0;
  const char *line = t->prefetch, *const line_end = t->prefetch_end, *origin = (const char*)t->x;
  const char *far = t->far, *const far_end = t->far_end;
  const int64_t far_lines = t->far_lines * 64;
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
    NoHalfTile e[A + B];
    //% elif dtype == "f16"
    alignas(16) float memory[(A + B) * PANEL];
    HalfSums<A + B> halves(memory);
    NoHalfTile e[A + B];
    UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
      halves.start(i, j, continues ? load(y_at(i, j)) : start_of(bias ? bias + j * W : nullptr));
    halves.begin();
    int summed = 0;  // taps since sums in fp16 began
    //% else
    vf c[A + B][NV * P];
    TAIL e[A + B];
    if (continues) {
      UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
        c[i][j] = load(y_at(i, j));
      UNROLL for (int i = 0; i < A + B; i++) e[i].resume(y_at(i, NV * P));
    } else {
      UNROLL for (int j = 0; j < NV * P; j++) {
        const vf start = start_of(bias ? bias + j * W : nullptr);
        UNROLL for (int i = 0; i < A + B; i++) c[i][j] = start;
      }
      UNROLL for (int i = 0; i < A + B; i++) e[i].start(bias ? bias + NV * PANEL : nullptr);
    }
    //% endif
    //% if dtype == "bf16"
    if (o.add && t->add_size == 2) expect<A, B, ALL, HALF>(o.add, o.add_line, o.add_panel);
    if (t->y_size == 2) expect<A, B, ALL, HALF>(o.y, o.y_line, o.y_panel);
    else
    //% endif
    if (!continues) expect<A, B, ALL, PANEL>(o.y, o.y_line, o.y_panel);
    //% if dtype != "bf16"
    if (o.add) expect<A, B, ALL, PANEL>(o.add, o.add_line, o.add_panel);
    //% endif

    const char* x = origin;
    const float* w = weights;
    int64_t row = rows, col = cols, block = blocks, depth = block == 1 ? last : full;
    //% if vectors_of | default(isa) == "neon" and dtype not in ("int16", "f16")
    // Cores that run in order want their vectors loaded four channels ahead, across taps as well.
    constexpr bool AHEAD = STEP::AHEAD && A == 2 && B == 2 && NV == 1;
    const bool ahead = AHEAD && next == F && (full | last) % 4 == 0 && blocks;
    vf factors[4], filter[4];
    if (ahead)
      UNROLL for (int i = 0; i < 4; i++) {
        factors[i] = load(i < A ? at(x, s, i) : at(x + second, s, i - A));
        filter[i] = load(w + i * W);
      }
    //% endif
    //% if isa == "neonbf16"
    constexpr bool IN_BLOCKS = STEP::BLOCKS && A + B >= ROWS_IN_BLOCKS;
    Blocks<Bfmmla, vf, A + B, NV * P> sums(c);
    //% endif
    while (block) {
      const char *a = x, *b = x + second;
      // Inputs of the next block, or of the next tile: 16 or so lines, two every two steps.
      const char* soon = block > 1 ? x + ahead : origin + x_next;
      const char* const until = line + lines < line_end ? line + lines : line_end;
      for (; line < until; line += 64)
        UNROLL for (int j = 0; j < ALL; j++) __builtin_prefetch(line + j * w_panel * F, 0, 2);
      const char* const far_until = far + far_lines < far_end ? far + far_lines : far_end;
      for (; far < far_until; far += 64) __builtin_prefetch(far, 0, 2);
      const float* tap = w;
      int64_t k = depth;
      //% if vectors_of | default(isa) == "neon" and dtype not in ("int16", "f16")
      const auto four_ahead = [&](const float* filters, const char* first, const char* other)
          __attribute__((always_inline)) {
        UNROLL for (int i = 0; i < 4; i++, soon += pace) __builtin_prefetch(soon, 0, 3);
        if constexpr (AHEAD)
          four_steps_ahead(c, factors, filter, tap, PANEL, filters,
                           [&](int i) { return i < A ? at(first, s, i) : at(other, s, i - A); });
      };
      if constexpr (AHEAD)
        if (ahead) {
          for (; k > 4; k -= 4, tap += 4 * PANEL)
            a += 4 * F, b += 4 * F, four_ahead(tap + 4 * PANEL, a, b);
          k = 0;  // the last four follow once the next tap is known
        }
      //% if isa == "neonbf16"
      if constexpr (IN_BLOCKS) {  // channels of pairs follow each other: next is F
        const auto row_of = [&](int i) __attribute__((always_inline)) {
          return i < A ? at(a, s, i) : at(b, s, i - A);
        };
        const auto two = [&]() __attribute__((always_inline)) {
          sums.add(row_of, vi{}, tap, PANEL, w_panel);
          a += 2 * F, b += 2 * F, tap += 2 * PANEL;
        };
        for (; k >= 2; k -= 2, soon += 2 * pace) {
          __builtin_prefetch(soon, 0, 3);
          __builtin_prefetch(soon + pace, 0, 3);
          two();
        }
        if (k) sums.template add<1>(row_of, vi{}, tap, PANEL, w_panel);
        if (STEP::TWICE) {
          a -= PANEL * F, b -= PANEL * F, tap -= PANEL / 2 * PANEL;
          for (k = PANEL / 2; k; k -= 2) two();
        }
        k = 0;
      } else
      //% endif
      if constexpr (STEP::LANES)
        if (next == F)
          for (; k >= 4; k -= 4) {
            UNROLL for (int i = 0; i < 4; i++, soon += pace) __builtin_prefetch(soon, 0, 3);
            vf input[A + B];
            UNROLL for (int i = 0; i < A + B; i++)
              input[i] = load(i < A ? at(a, s, i) : at(b, s, i - A));
            four_steps<STEP>(c, input, tap, PANEL, w_panel);
            a += 4 * F, b += 4 * F, tap += 4 * PANEL;
          }
      //% endif
      //% if dtype == "f16"
      const auto row_of = [&](int i) __attribute__((always_inline)) {
        return i < A ? at(a, s, i) : at(b, s, i - A);
      };
      for (; k > 0; k -= LANES) {  // a channel that is missing is zero in x and w
        UNROLL for (int i = 0; i < LANES; i++, soon += pace) __builtin_prefetch(soon, 0, 3);
        halves.add(row_of, tap);
        a += LANES * F, b += LANES * F, tap += LANES * PANEL;
      }
      if (++summed == RUN / PANEL) halves.end(), halves.begin(), summed = 0;
      //% else
      for (; k >= 2; k -= 2) {
        __builtin_prefetch(soon, 0, 3);
        __builtin_prefetch(soon + pace, 0, 3);
        soon += 2 * pace;
        multiply<STEP, A, B, NV>(${sum}, e, a, b, s, tap, w_panel);
        a += next, b += next;
        multiply<STEP, A, B, NV>(${sum}, e, a, b, s, tap + PANEL, w_panel);
        a += next, b += next, tap += 2 * PANEL;
      }
      if (k) multiply<STEP, A, B, NV>(${sum}, e, a, b, s, tap, w_panel);
      if (STEP::TWICE${" && !IN_BLOCKS" if isa == "neonbf16" else ""}) {
        a -= PANEL * next, b -= PANEL * next, tap -= PANEL / 2 * PANEL;
        for (k = PANEL / 2; k; k--, a += next, b += next, tap += PANEL)
          multiply<STEP, A, B, NV>(${sum}, e, a, b, s, tap, w_panel);
      }
      //% endif
      if (--col) {
        x += x_col, w += w_tap;
      } else if (col = cols, --row) {
        x += x_row, w += w_row;
      } else {
        row = rows, x += x_block, w += w_block;
        if (--block == 1) depth = last;
      }
      //% if vectors_of | default(isa) == "neon" and dtype not in ("int16", "f16")
      if constexpr (AHEAD)
        if (ahead) block ? four_ahead(w, x, x + second) : four_ahead(tap, a, b);
      //% endif
    }

    //% if isa == "neonbf16"
    if constexpr (IN_BLOCKS) sums.write(c);
    //% endif
    //% if dtype == "int16"
    vf c[A + B][NV * P];
    UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
      c[i][j] = to_float(whole[i][j]);
    if (continues)
      UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
        c[i][j] = c[i][j] + load(y_at(i, j));
    if (!stops) scale<A + B, NV>(c, *opaque(t));
    //% elif dtype == "f16"
    halves.end();
    vf c[A + B][NV * P];
    UNROLL for (int i = 0; i < A + B; i++) UNROLL for (int j = 0; j < NV * P; j++)
      c[i][j] = halves.of(i, j);
    //% endif
    if (!stops) {
      if (o.add) {
        //% if dtype == "bf16"
        if (t->add_size == 2) add_rounded<A, B, NV>(c, e, o, opaque(t)->add_step);
        else
        //% endif
        UNROLL for (int i = 0; i < A + B; i++) {
          const float* from = run_at<A, PANEL>(o.add, o.add_line, i);
          UNROLL for (int j = 0; j < NV * P; j++)
            c[i][j] = c[i][j] + load(from + j / P * o.add_panel + j % P * W);
          e[i].add(from + NV * o.add_panel);
        }
      }
      // Read only here: over the sums no register is left for them.
      const float lo = opaque(t)->lo, hi = opaque(t)->hi;
      if (lo > -__builtin_inff())
        UNROLL for (int i = 0; i < A + B; i++) {
          UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = max(set1(lo), c[i][j]);
          e[i].at_least(lo);
        }
      if (hi < __builtin_inff())
        UNROLL for (int i = 0; i < A + B; i++) {
          UNROLL for (int j = 0; j < NV * P; j++) c[i][j] = min(set1(hi), c[i][j]);
          e[i].at_most(hi);
        }
    }
    //% if dtype == "bf16"
    if (t->y_size == 2) store_rounded<A, B, NV>(c, e, o, opaque(t)->y_step);
    else
    //% endif
    UNROLL for (int i = 0; i < A + B; i++) {
      UNROLL for (int j = 0; j < NV * P; j++) store(y_at(i, j), c[i][j]);
      e[i].write(y_at(i, NV * P));
    }
    origin += x_next, run.y += y_next;
    if (run.add) run.add += add_next;
  }
}
