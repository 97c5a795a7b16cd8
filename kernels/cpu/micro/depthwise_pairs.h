// Two columns of a line at once, as pairs of bf16: half as many multiply-adds, and one permutation
// for a column instead of two conversions.
//
// Kernels have an odd number of columns.  The last but one is in two pairs, half of its filter in
// each: a pair with nothing but zeros for one of its columns would make NaN of an infinity there.
enum { MOST_PAIRS = TRACEA_DEPTHWISE_PAIRS };

// Two vectors of 16 words become one of 16 pairs.
INLINE vf interleave(__m512i words) {
  const __m512i order = _mm512_set_epi16(
      31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19,
      3, 18, 2, 17, 1, 16, 0);
  return (vf)_mm512_permutexvar_epi16(order, words);
}

INLINE bool fits_pairs(const tracea_depthwise_tile* t) {
  const int64_t step = t->x_step * STEP_SIZE;
  return (step == PANEL || step == 2 * PANEL) && t->rows * ((t->cols + 1) / 2) <= MOST_PAIRS &&
         (t->cols == 3 || t->cols == 5 || t->cols == 7);
}

// The first column of pair k.
template <int COLS>
constexpr int column_of(int k) {
  return k == COLS / 2 ? COLS - 2 : 2 * k;
}

INLINE void make_pairs(const tracea_depthwise_tile* t) {
  const float* w = t->w;
  float* to = t->pairs;
  for (int64_t row = 0; row < t->rows; row++, w += t->cols * PANEL) {
    const vf shared = load(w + (t->cols - 2) * PANEL), half = set1(0.5f) * shared;
    const __m512i rounded = _mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(half)), 16);
    const vf rest = shared - (vf)rounded;
    for (int64_t k = 0; k <= t->cols / 2; k++, to += PANEL) {
      const bool last = k == t->cols / 2;
      const vf a = last ? rest : load(w + 2 * k * PANEL);
      const vf b = last ? load(w + 2 * k * PANEL)
                        : 2 * k + 1 == t->cols - 2 ? half : load(w + (2 * k + 1) * PANEL);
      store(to, interleave((__m512i)_mm512_cvtne2ps_pbh(b, a)));
    }
  }
}

// Columns of a pair that lie on the line, as lanes of what is loaded.
INLINE uint32_t lanes_on(const Columns& on, int64_t i) {
  const uint32_t a = i >= on.first && i < on.end, b = i + 1 >= on.first && i + 1 < on.end;
  return (0u - a) >> 16 | (0u - b) << 16;
}

// Adds one kernel row to N outputs.  Only the pairs at both ends can lie beside the line.
template <int N, int COLS, int STEP, int COUNT>
INLINE void add_pairs(vf (&c)[N], const uint16_t* x, const float* w,
                      const uint32_t (&lanes)[COUNT]) {
  constexpr int TAPS = COLS / 2 + 1;
  vf tap[TAPS];
  UNROLL for (int k = 0; k < TAPS; k++) tap[k] = load(w + k * PANEL);
  UNROLL_ALL for (int i = 0; i < COUNT; i++) {
    const bool end = i < COLS - 1 || i > COUNT - COLS;
    const uint16_t* from = x + i * PANEL;
    const vf v = interleave(end ? _mm512_maskz_loadu_epi16(lanes[i], from)
                                : _mm512_loadu_si512(from));
    UNROLL for (int k = 0; k < TAPS; k++) {
      const int p = i - column_of<COLS>(k);
      if (p >= 0 && p % STEP == 0 && p / STEP < N)
        c[p / STEP] = dot_vnni2(v, tap[k], c[p / STEP]);
    }
  }
}

template <int N, int COLS, int STEP>
void pieces_in_pairs(const tracea_depthwise_tile* t) {
  constexpr int COUNT = (N - 1) * STEP + COLS - 1;
  for (int64_t next = 0; next < t->pixels; next += N) {
    const int64_t at = next + N <= t->pixels ? next : t->pixels - N;
    const int64_t begin = at * t->x_step * STEP_SIZE - t->left * PANEL;  // elements from x
    const Columns on = {-begin / PANEL, t->width - begin / PANEL};
    uint32_t lanes[COUNT];
    UNROLL_ALL for (int i = 0; i < COUNT; i++)
      if (i < COLS - 1 || i > COUNT - COLS) lanes[i] = lanes_on(on, i);
    const vf start = t->bias ? load(t->bias) : set1(0.0f);
    for (int64_t line = 0; line < t->lines; line++) {
      expect<N>(t, line, at, 0);
      vf c[N];
      UNROLL for (int i = 0; i < N; i++) c[i] = start;
      const uint16_t* x = (const uint16_t*)t->x + line * t->x_line * STEP_SIZE + begin;
      const float* w = t->pairs;
      for (int64_t row = 0; row < t->rows; row++) {
        add_pairs<N, COLS, STEP>(c, x, w, lanes);
        x += t->x_row * STEP_SIZE, w += (COLS / 2 + 1) * PANEL;
      }
      finish<N>(t, c, line, at, 0);
    }
  }
}

template <int COLS, int STEP>
void lines_in_pairs(const tracea_depthwise_tile* t) {
  //% for n in widths
  ${"if (t->pixels >= %d) " % n if n > 1 else ""}return pieces_in_pairs<${n}, COLS, STEP>(t);
  //% endfor
}
