// Softmax in one sweep: scores become weights e^(score - base) while they are still in registers,
// where a row's base is its largest score among the first panel of keys.  Softmax is the same for
// any base; that weights grow too large for this one shows in their sum.
constexpr float SCARCE = -1e29f;            // of a base: the first panel is masked
constexpr float HIGHEST = 41.5888308f;      // 60 ln 2: differences beyond it are cut
constexpr float ABUNDANT = 5.76460752e17f;  // 2^59: of a sum: differences may have been cut

// A tile of weights, ${"bf16 in pairs of keys" if dtype == "bf16" else "one a lane"}.
struct WeightBlock {
  ScoreBlock scores;  // its `top` is not used
  float* weights;     // a row every WEIGHTS
  bool first;         // the tile begins with the first panel: bases come of it
  float* base;        // of each row
  vf* total;          // of each row's weights so far, lane by lane
};

template <int MR, int NV>
OUTLINED void weigh_at_once(const WeightBlock& s) {
  vf c[MR][NV * P];
  multiply<MR, NV>(s.scores, c);
  if (!mask_tile<MR, NV>(s.scores, c))
    UNROLL for (int i = 0; i < MR; i++) UNROLL for (int j = 0; j < NV * P; j++)
      c[i][j] = load(s.scores.scores + i * KB + j * W);
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
