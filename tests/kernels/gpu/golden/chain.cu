// tracea_f32_chain_21deffe49bed4ff3_rank2_256x16__sm_80
// From elementwise.cu.in.  Generated, do not edit.
// An elementwise chain over strided operands: each thread computes 8 adjacent columns of one row.
// full:f16,full:f16,row,col|mul(0,3);add(4,2);gelu(5);mul(6,1)|7:f16|fast-math
namespace tracea {

DEV void apply(
    const vf x0,
    const vf x1,
    const vf x2,
    const vf x3,
    vf& y0) {
  const vf v0 = x0 * x3;
  const vf v1 = fmaf(x0, x3, x2);
  const vf v2 = v_gelu_fast(v1);
  const vf v3 = v2 * x1;
  y0 = v3;
}

}  // namespace tracea
namespace tracea {

KERNEL(tracea_f32_chain_21deffe49bed4ff3_rank2_256x16__sm_80, 256, 1)(
    const f16* x0,
    const f16* x1,
    const float* x2,
    const float* x3,
    f16* y0,
    i32 x0_0,
    i32 x0_1,
    i32 x1_0,
    i32 x1_1,
    i32 x2_0,
    i32 x2_1,
    i32 x3_0,
    i32 x3_1,
    i32 y0_0,
    i32 y0_1,
    i32 rows, i32 cols, divisor runs) {
  wait_for_grid();
  release_grid();
  const i32 at = block_x() * 256 + thread();
  i32 row = quotient(at, runs);
  const i32 col = (at - row * (i32)runs.value) * 8;
  if (row >= rows) return;
  const i32 n = least(8, cols - col);
  const i32 i0 = row;
  const i64 at_x0 = (i64)i0 * x0_0 + (i64)col * x0_1;
  const i64 at_x1 = (i64)i0 * x1_0 + (i64)col * x1_1;
  const i64 at_x2 = (i64)i0 * x2_0 + (i64)col * x2_1;
  const i64 at_x3 = (i64)i0 * x3_0;
  const i64 at_y0 = (i64)i0 * y0_0 + (i64)col * y0_1;
  f16 a0[8];
  x0 += at_x0;
  load_run(a0, x0, x0_1, n,
           together<f16, 8>(x0, x0_1, n));
  f16 a1[8];
  x1 += at_x1;
  load_run(a1, x1, x1_1, n,
           together<f16, 8>(x1, x1_1, n));
  float a2[8];
  x2 += at_x2;
  load_run(a2, x2, x2_1, n,
           together<float, 8>(x2, x2_1, n));
  float a3[1];
  a3[0] = x3[at_x3];
  f16 b0[8];
  UNROLL
  for (i32 j = 0; j < 8; j++) {
    vf v0;
    apply(
        number(a0[j]),
        number(a1[j]),
        number(a2[j]),
        number(a3[0]),
        v0);
    assign(b0[j], v0);
  }
  y0 += at_y0;
  store_run(y0, b0, y0_1, n,
            together<f16, 8>(y0, y0_1, n));
}

}  // namespace tracea
EXPORT(tracea_f32_chain_21deffe49bed4ff3_rank2_256x16__sm_80)
