// A line of a convolution with few output channels: lanes are input channels, which are multiplied
// by those of each filter and summed at the end, so that no lane stands for a missing output.
// An output is summed in one order wherever its line is cut.

// Adds one tap of a block of input channels, of the lanes of `m`.
template <int F, int N>
INLINE void add_tap(vf (&c)[N][F], const float* x, int64_t step, const float* w,
                    const vm (&m)[P]) {
  UNROLL for (int p = 0; p < P; p++) {
    vf filter[F];
    UNROLL for (int f = 0; f < F; f++) filter[f] = load(w + f * PANEL + p * W);
    UNROLL for (int i = 0; i < N; i++) {
      const vf v = load(x + i * step + p * W, m[p]);
      UNROLL for (int f = 0; f < F; f++) c[i][f] = fma(v, filter[f], c[i][f]);
    }
  }
}

// y = clamp(sums + bias + add) for the 16 lanes of N outputs, of which F count.
template <int F, int N>
INLINE void end_narrow(const vf (&c)[N][F], const tracea_conv_tile* t, int64_t at) {
  float each[N * F + PANEL];
  UNROLL for (int g = 0; g < N * F; g += 4) {
    vf four[4];
    UNROLL for (int j = 0; j < 4; j++) {
      const int sum = g + j < N * F ? g + j : g;
      four[j] = c[sum / F][sum % F];
    }
    hreduce(four, each + g);
  }
  const vf lo = set1(t->lo), hi = set1(t->hi);
  float* y = t->y + at * PANEL;
  UNROLL for (int i = 0; i < N; i++) UNROLL for (int p = 0; p < P; p++) {
    const int lane = i * PANEL + p * W, left = F - p * W;
    vf v = load(each + i * F + p * W, first(left < 0 ? 0 : left < W ? left : W));
    if (t->bias) v = v + load(t->bias + p * W);
    if (t->add) v = v + load(t->add + at * PANEL + lane);
    if (t->lo > -__builtin_inff()) v = max(lo, v);
    if (t->hi < __builtin_inff()) v = min(hi, v);
    store(y + lane, v);
  }
}

// Outputs [at, at + N) of the line.
template <int F, int N>
INLINE void narrow_piece(const tracea_conv_tile* t, int64_t at) {
  vf c[N][F];
  UNROLL for (int i = 0; i < N; i++) UNROLL for (int f = 0; f < F; f++) c[i][f] = set1(0.0f);
  const float *x = t->x + at * t->x_step, *w = t->w;
  for (int64_t block = t->blocks; block--; x += t->x_block) {
    vm m[P];
    UNROLL for (int p = 0; p < P; p++) {
      const int64_t depth = block ? t->depth : t->last, left = depth - p * W;
      m[p] = first(left < 0 ? 0 : left < W ? left : (int64_t)W);
    }
    for (int64_t row = 0; row < t->rows; row++)
      for (int64_t col = 0; col < t->cols; col++, w += F * PANEL)
        add_tap<F, N>(c, x + row * t->x_row + col * t->x_col, t->x_step, w, m);
  }
  end_narrow<F, N>(c, t, at);
}

// Outputs from `at` on, N at a time; a last few are computed with some of those before them.
template <int F, int N>
INLINE void narrow_pieces(const tracea_conv_tile* t, int64_t at) {
  for (; at + N <= t->pixels; at += N) narrow_piece<F, N>(t, at);
  if constexpr (N > 1) {
    if (t->pixels >= N && t->pixels - at > (N + 1) / 2) return narrow_piece<F, N>(t, t->pixels - N);
    narrow_pieces<F, (N + 1) / 2>(t, at);
  }
}

template <int F>
void narrow_line(const tracea_conv_tile* t) {
  constexpr int ROOM = ${sums} / F;
  narrow_pieces<F, ROOM < 1 ? 1 : ROOM>(t, 0);
}
