// tracea_f16_norm_layer_gamma_beta_4x32__sm_90a
// From rows.cu.in.  Generated, do not edit.
// Norms, softmax and reductions over rows: 4 rows per block, 32 threads per row, each of which
// holds 4 runs of 8 elements in registers.  Elements beyond these, and rows without whole
// runs, are read again in every pass.
// full:f16||0
namespace tracea {

DEV void apply(
    const vf x0,
    vf& y0) {
  y0 = x0;
}

}  // namespace tracea
namespace tracea {

// All-reduce (sum, maximum, minimum or product) over the threads of a row.
struct add {
  METHOD static float neutral() { return 0.0f; }
  METHOD float operator()(float a, float b) const { return a + b; }
};
struct multiply {
  METHOD static float neutral() { return 1.0f; }
  METHOD float operator()(float a, float b) const { return a * b; }
};
struct largest {
  METHOD static float neutral() { return -__builtin_inff(); }
  METHOD float operator()(float a, float b) const { return v_max(a, b); }
};
struct smallest {
  METHOD static float neutral() { return __builtin_inff(); }
  METHOD float operator()(float a, float b) const { return v_min(a, b); }
};
template <typename OP>
DEV float over_team(float v, OP op, float* scratch) {
  UNROLL
  for (i32 mask = 16; mask; mask /= 2) v = op(v, shuffle_xor(v, mask));
  return v;
}

KERNEL(tracea_f16_norm_layer_gamma_beta_4x32__sm_90a, 128, 5)(
    const f16* x0, i32 x0_row, i32 x0_col,
    const float* gamma, i32 gamma_col,
    const float* beta, i32 beta_col,
    f16* y, i32 y_row, i32 y_col,
    i32 rows, i32 cols, float epsilon) {
  wait_for_grid();
  release_grid();
  const i32 row = block_x() * 4 + thread() / 32, me = thread() % 32;
  if (row >= rows) return;
  float* const scratch = (float*)arena();
  x0 += (i64)row * x0_row;
  y += (i64)row * y_row;
  // Whether every run is contiguous, so that no run needs a check.
  const bool whole = cols % 8 == 0
      && together<f16, 8>(x0, x0_col, 8)
      && together<float, 8>(gamma, gamma_col, 8)
      && together<float, 8>(beta, beta_col, 8)
      && together<f16, 8>(y, y_col, 8)
      ;
  auto compute = [&](auto kind) {
    constexpr bool WHOLE = decltype(kind)::value;
    constexpr i32 RUN = WHOLE ? 8 : 1, HELD = WHOLE ? 4 : 0;
    // The elements of a run; those behind the row's end are unspecified.
    auto value = [&](vf (&z)[RUN], i32 col, bool first) {
      const i32 n = least(RUN, cols - col);
      f16 a0[RUN];
      load_run(a0, x0 + (i64)col * x0_col, x0_col, n, WHOLE);
      UNROLL
      for (i32 j = 0; j < RUN; j++) {
        apply(
            number(a0[j]),
            z[j]);
      }
    };
    vf held[HELD ? HELD : 1][RUN];
    UNROLL
    for (i32 k = 0; k < HELD; k++) {
      const i32 col = (k * 32 + me) * RUN;
      if (col < cols) value(held[k], col, true);
    }
    bool first = true;
    auto each = [&](auto&& take) {
      UNROLL
      for (i32 k = 0; k < HELD; k++) {
        const i32 col = (k * 32 + me) * RUN;
        if (col < cols) take(held[k], col, least(RUN, cols - col), true);
      }
      for (i32 col = (HELD * 32 + me) * RUN; col < cols; col += 32 * RUN) {
        vf z[RUN];
        value(z, col, first);
        take(z, col, least(RUN, cols - col), false);
      }
      first = false;
    };
    auto over_row = [&](auto op, auto&& of) {
      float all = decltype(op)::neutral();
      each([&](vf (&z)[RUN], i32, i32 n, bool) {
        UNROLL
        for (i32 j = 0; j < RUN; j++)
          if (WHOLE || j < n) all = op(all, of(z[j]));
      });
      return over_team(all, op, scratch);
    };
    
    auto store = [&](auto&& result) {
      each([&](vf (&z)[RUN], i32 col, i32 n, bool kept) {
        vf made[RUN];
        result(z, made, col, n, kept);
        f16 out[RUN];
        UNROLL
        for (i32 j = 0; j < RUN; j++) assign(out[j], made[j]);
        store_run(y + (i64)col * y_col, out, y_col, n, WHOLE);
      });
    };

    const float mean = over_row(add(), [](vf v) { return v; }) / (float)cols;
    const float spread =
        over_row(add(), [&](vf v) { return (v - mean) * (v - mean); }) / (float)cols;
    const float scale = 1.0f / sqrt(spread + epsilon);
    store([&](vf (&z)[RUN], vf (&made)[RUN], i32 col, i32 n, bool) {
      float w_gamma[RUN];
      load_run(w_gamma, gamma + (i64)col * gamma_col, gamma_col, n, WHOLE);
      float w_beta[RUN];
      load_run(w_beta, beta + (i64)col * beta_col, beta_col, n, WHOLE);
      UNROLL
      for (i32 j = 0; j < RUN; j++)
        made[j] = (z[j] - mean) * scale * w_gamma[j] + w_beta[j];
    });
  };
  if (whole)
    compute(yes());
  else
    compute(no());
}

}  // namespace tracea
EXPORT(tracea_f16_norm_layer_gamma_beta_4x32__sm_90a)
