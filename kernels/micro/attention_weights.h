// Softmax in one sweep: scores become weights e^(score - base) while they are still in registers,
// where a row's base is its largest score among the first panel of keys.  Softmax is the same for
// any base; that weights grow too large for this one shows in their sum.
constexpr float SCARCE = -1e29f;            // of a base: the first panel is masked
constexpr float HIGHEST = 41.5888308f;      // 60 ln 2: differences beyond it are cut
constexpr float ABUNDANT = 5.76460752e17f;  // 2^59: of a sum: differences may have been cut

// A tile of weights, ${"bf16 in pairs of keys" if dtype == "bf16" else "one a lane"}.
struct WeightBlock {
  ScoreBlock scores;  // `scores` and `top` are not used
  float* weights;     // a row every WEIGHTS
  bool first;         // the tile begins with the first panel: bases come of it
  float* base;        // of each row
  vf* total;          // of each row's weights so far, lane by lane
};

// Stores N vectors of weights side by side.
template <int N>
INLINE void store_weights(float* row, const vf (&e)[N]) {
  //% if dtype == "bf16" and isa == "avx512bf16"
  UNROLL for (int j = 0; j + 1 < N; j += 2)
    store(row + j * W / 2, (vf)_mm512_cvtne2ps_pbh(e[j + 1], e[j]));
  if (N % 2) store_bf16((uint16_t*)row + (N - 1) * W, e[N - 1]);
  //% elif dtype == "bf16"
  UNROLL for (int j = 0; j < N; j++) store_bf16((uint16_t*)row + j * W, e[j]);
  //% else
  UNROLL for (int j = 0; j < N; j++) store(row + j * W, e[j]);
  //% endif
}

// Makes scores of products; partly masked tiles take the way of all scores through memory.
template <int MR, int NV>
INLINE void mask_tile(const ScoreBlock& s, vf (&c)[MR][NV * P]) {
  const vf scale = set1(s.scale);
  const Mask mask = s.m.mask;
  const bool all = sees_all(s.m, NV * PANEL);
  if (all && mask.kind == ADD) {
    UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
      c[i][j] = fma(c[i][j], scale, load(mask.data + i * mask.row + j * W));
    return;
  }
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
    c[i][j] = c[i][j] * scale;
  if (all && mask.kind == NONE) return;
  float scores[MR * KB];
  vf unused[MR];
  UNROLL for (int i = 0; i < MR; i++) {
    unused[i] = set1(-INF);
    UNROLL for (int j = 0; j < NV * P; j++) store(scores + i * KB + j * W, c[i][j]);
  }
  mask_scores(s.m, 0.0f, MR, NV * PANEL, scores, unused);
  UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
    c[i][j] = load(scores + i * KB + j * W);
}

template <int MR, int NV>
void weigh_at_once(const WeightBlock& s) {
  vf c[MR][NV * P];
  multiply<MR, NV>(s.scores, c);
  mask_tile<MR, NV>(s.scores, c);
  if (s.first)
    UNROLL for (int i = 0; i < MR; i++) {
      vf high = c[i][0];
      UNROLL for (int j = 1; j < P; j++) high = max(c[i][j], high);
      s.base[i] = reduce_max(high);
    }
  UNROLL for (int i = 0; i < MR; i++) {
    const vf base = set1(s.base[i]);
    vf total = s.total[i];
    UNROLL for (int j = 0; j < NV * P; j++) {
      c[i][j] = v_exp_fast(min(set1(HIGHEST), c[i][j] - base));
      total = total + c[i][j];
    }
    store_weights(s.weights + i * WEIGHTS, c[i]);
    s.total[i] = total;
  }
}
