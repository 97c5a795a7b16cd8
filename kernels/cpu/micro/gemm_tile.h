// The register tile of a product whose operands are read step by step of k.
// A look at the prefetch queue comes every CHUNK steps; the loop over them does two per iteration.

// Lines STEP bytes apart, requested at an even pace over the k loop.
template <int STEP, int LOCALITY>
struct Requests {
  const char* line;
  int64_t due, rate;  // in 1/65536 lines per chunk

  INLINE_MEMBER void advance() {
    for (due += rate; due >= 65536; due -= 65536, line += STEP)
      __builtin_prefetch(line, 0, LOCALITY);
  }
};

// Lines wanted next, and one of each page of those wanted after them.  Where a page is has to be
// looked up: between multiplications that costs nothing, between tiles the processor waits for it.
struct Prefetch {
  Requests<64, 2> lines;
  Requests<4096, 3> pages;
};

INLINE Prefetch spread_prefetch(const tracea_gemm_tile* t, int64_t chunks) {
  if (chunks == 0) return {};
  return {{t->prefetch, 32768, ((int64_t)t->prefetch_lines << 16) / chunks},
          {t->look_up, 32768, ((int64_t)t->look_up_pages << 16) / chunks}};
}

INLINE Prefetch plan_prefetch(const tracea_gemm_tile* t, int64_t chunk) {
  return spread_prefetch(t, t->k / chunk);
}

INLINE void advance(Prefetch& p) {
  p.lines.advance();
  p.pages.advance();
}

// A step of k in float32.
struct Plain {
  enum { CHUNK = 16 };
  //% if vectors_of | default(isa) == "neon"
  template <class L>
  static INLINE_MEMBER vf add_lane(L, vf x, vf b, vf c) { return fma_lane<L::LANE>(x, b, c); }
  //% endif
  template <int MR, int NV>
  static INLINE_MEMBER void run(vf (&c)[MR][NV * P], const float* a, int64_t lda,
                                const vf (&b)[NV * P]) {
    step<MR, NV>(c, a, lda, b);
  }
};

//% if vectors_of | default(isa) == "neon"

// Whether steps are written for cores that run in order.
template <class STEP>
constexpr bool AHEAD = false;
template <>
constexpr bool AHEAD<Plain> = true;
//% if isa in ("neoni8mm", "neonbf16")

//% include "matrix_blocks.h"
//% endif
//% if isa == "neonbf16"

// Whether a tile of so many rows is multiplied in blocks of them.
template <class STEP, int MR>
constexpr bool IN_BLOCKS = false;
//% endif
//% endif

// EXACT: the one panel's columns past `last` may not be read.
template <int MR, int NV, bool EXACT, class STEP>
void tile(const tracea_gemm_tile* t) {
  vf c[MR][NV * P], b[NV * P];
  vm edge[P];
  UNROLL for (int j = 0; j < P; j++) edge[j] = first(t->last - j * W);
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    const float* from = t->init + i * t->init_stride + j * W;
    if (!t->init) c[i][j] = set1(0.0f);
    else c[i][j] = j / P == NV - 1 ? load(from, edge[j % P]) : load(from);
  }

  const float* a = t->a;
  const float* row = t->b;
  const int64_t lda = t->lda, step_a = t->a_step, panel = t->b_panel, stride = t->b_row;
  const auto next = [&]() __attribute__((always_inline)) {
    if (EXACT) {
      UNROLL for (int j = 0; j < P; j++) b[j] = load(row + j * W, edge[j]);
    } else {
      load_row<NV>(b, row, panel);
    }
    STEP::template run<MR, NV>(c, a, lda, b);
    a += step_a;
    row += stride;
  };
  // the lines of the results, long before they are written
  if (!t->streams) UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV; j++)
    __builtin_prefetch(t->c + i * t->ldc + j * PANEL, 1, 3);
  Prefetch prefetch = plan_prefetch(t, STEP::CHUNK);
  int64_t k = 0;
  //% if vectors_of | default(isa) == "neon"
  if constexpr (!EXACT && STEP::CHUNK % 4 == 0)
    if (step_a == 1) {
      vf x[MR];
      //% if isa == "neonbf16"
      if constexpr (IN_BLOCKS<STEP, MR>) {
        Blocks<Bfmmla, vf, MR, NV * P> blocks(c);
        const auto row_of = [&](int i) __attribute__((always_inline)) { return a + i * lda; };
        const auto two = [&]() __attribute__((always_inline)) {
          blocks.add(row_of, vi{}, row, stride, panel);
          a += 2, row += 2 * stride;
        };
        for (; k + STEP::CHUNK <= t->k; k += STEP::CHUNK) {
          advance(prefetch);
          for (int s = 0; s < STEP::CHUNK; s += 2) two();
        }
        for (; k + 2 <= t->k; k += 2) two();
        blocks.write(c);
      }
      //% endif
      if constexpr (MR == 4 && NV == 1 && AHEAD<STEP>) {
        UNROLL for (int i = 0; i < MR; i++) x[i] = load(a + i * lda), b[i] = load(row + i * W);
        for (; k + 2 * STEP::CHUNK <= t->k; k += STEP::CHUNK) {  // the next chunk is read too
          advance(prefetch);
          for (int s = 0; s < STEP::CHUNK; s += 4, a += 4, row += 4 * stride)
            four_steps_ahead(c, x, b, row, stride, row + 4 * stride,
                             [&](int i) { return a + 4 + i * lda; });
        }
      }
      for (; k + STEP::CHUNK <= t->k; k += STEP::CHUNK) {
        advance(prefetch);
        for (int s = 0; s < STEP::CHUNK; s += 4, a += 4, row += 4 * stride) {
          UNROLL for (int i = 0; i < MR; i++) x[i] = load(a + i * lda);
          four_steps<STEP>(c, x, row, stride, panel);
        }
      }
    }
  //% endif
  for (; k + STEP::CHUNK <= t->k; k += STEP::CHUNK) {
    advance(prefetch);
    _Pragma("GCC unroll 2") for (int s = 0; s < STEP::CHUNK; s++) next();
  }
  for (; k < t->k; k++) next();

  const tracea_gemm_tile* end = opaque(t);  // edges made anew: the sums take all registers
  if (!EXACT) UNROLL for (int j = 0; j < P; j++) edge[j] = first(end->last - j * W);
  const bool whole = t->last == PANEL, streams = t->streams;
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++) {
    float* to = t->c + i * t->ldc + j * W;
    if (j / P < NV - 1 || whole)
      streams ? stream(to, c[i][j]) : store(to, c[i][j]);
    else
      store(to, c[i][j], edge[j % P]);
  }
}
