// tracea_f16_gemm_nk_bias_0885e55344661902_64x64x64x3__sm_80
// From gemm.cu.in.  Generated, do not edit.
// y = epilogue(x · w + bias): tiles of 64 x 64, 128 bytes of the depth per step of a ring of
// 3 stages; 2 x 2 warps multiply fragments.
// full,full:f16,col|gelu(0);mul(3,2);add(4,1)|5:f16|fast-math
namespace tracea {

DEV void apply(
    const vf x0,
    const vf x1,
    const vf x2,
    vf& y0) {
  const vf v0 = v_gelu_fast(x0);
  const vf v1 = v0 * x2;
  const vf v2 = fmaf(v0, x2, x1);
  y0 = v2;
}

}  // namespace tracea
namespace tracea {

// Copies a tile of ROWS by RUNS runs of 16 bytes; elements outside the matrix become zero.  Rows whose
// runs are not aligned are gathered element by element.
template <typename T, int ROWS, int RUNS, int PITCH, typename PLACE>
DEV void copy_tile(u8* to, PLACE place, const T* from, i32 step, i32 along, i32 first, i32 rows,
                   i32 start, i32 length, bool fast) {
  constexpr i32 PER = 16 / sizeof(T), DOWN = 128 / RUNS;
  const i32 row = thread() / RUNS, piece = thread() % RUNS, col = start + piece * PER;
  if (128 % RUNS && row >= DOWN) return;  // threads without a row
  i32 count = least(PER, length - col);
  if (count < 0) count = 0;
#if __CUDA_ARCH__ >= 800
  UNROLL
#else
  UNROLL_FOUR  // what is not copied asynchronously takes registers
#endif
  for (i32 i = 0; i < (ROWS + DOWN - 1) / DOWN; i++) {
    if (ROWS % DOWN && i * DOWN + row >= ROWS) break;
    // The swizzle repeats every 16 rows, so one offset serves all rows of this thread.
    u8* const at = DOWN % 16 ? to + place(row + i * DOWN, piece)
                             : to + place(row, piece) + i * DOWN * PITCH;
    const i32 n = first + row + i * DOWN < rows ? count : 0;
    const T* const source = from + ((first + row + i * DOWN) * step + col * along);
    if (fast) {
      copy_async(at, n ? source : from, n * (i32)sizeof(T));
    } else {
      run<T, PER> v;
      UNROLL
      for (i32 j = 0; j < PER; j++) v.at[j] = j < n ? source[(i64)j * along] : T();
      *(run<T, PER>*)at = v;
    }
  }
}
template <typename T>
DEV bool in_runs(const T* p, i32 step, i32 along) {
  return along == 1 && (u64)p % 16 == 0 && step % (16 / (i32)sizeof(T)) == 0;
}

}  // namespace tracea
namespace tracea {
}  // namespace tracea
namespace tracea {

KERNEL(tracea_f16_gemm_nk_bias_0885e55344661902_64x64x64x3__sm_80, 128, 2)(
    const f16* x, const f16* w,
    i32 x_row, i32 x_k, i32 w_row, i32 w_col,
    const float* bias, i32 bias_col,
    const f16* x1,
    i32 x1_row, i32 x1_col,
    const float* x2,
    i32 x2_row, i32 x2_col,
    f16* y0,
    i32 y0_row, i32 y0_col,

    i32 rows, i32 cols, i32 depth, divisor tiles_m, divisor tiles_n,
    i32 w_fixed) {
  // The tile of this block and its part of the depth.
  const i32 whole = block_x();

  i32 rest = quotient(whole, tiles_n);
  const i32 col0 = (whole - rest * (i32)tiles_n.value) * 64;
  const i32 i_m = rest;
  rest = quotient(rest, tiles_m);
  const i32 row0 = (i_m - rest * (i32)tiles_m.value) * 64;
  x1 += 0;
  x2 += 0;
  y0 += 0;

  u8* const ring = arena();
  auto place_a = [](i32 row, i32 run) { return (row) * 128 + (((run) ^ ((row) & 7)) * 16); };
  auto place_b = [](i32 row, i32 run) { return (row) * 128 + (((run) ^ ((row) & 7)) * 16); };
  const bool fast_x = in_runs(x, x_row, x_k), fast_w = in_runs(w, w_row, w_col);
  const i32 tiles = (depth + 63) / 64;

  auto issue_x = [&](i32 tile) {
    u8* const stage = ring + tile % 3 * 16384;
    const i32 from = tile * 64;
    copy_tile<f16, 64, 8, 128>(stage, place_a, x, x_row, x_k, row0, rows,
                                                  from, depth, fast_x);
  };
  auto issue_w = [&](i32 tile) {
    u8* const stage = ring + tile % 3 * 16384;
    const i32 from = tile * 64;
    copy_tile<f16, 64, 8, 128>(stage + 8192, place_b, w, w_row, w_col,
                                                  col0, cols, from, depth, fast_w);
  };
  // Main loop over the tiles that `issue_x` and `issue_w` copy into the ring.  Constants are fetched
  // before waiting for the preceding kernel.
  if (w_fixed) {
    ROLLED
    for (i32 tile = 0; tile < least(tiles, 2); tile++) issue_w(tile);
  }
  wait_for_grid();
  release_grid();
  const i32 lane = thread() % 32, warp = thread() / 32;
  const i32 warp_m = warp / 2 * 32, warp_n = warp % 2 * 32;
  float sums[2][4][4];
  UNROLL
  for (i32 i = 0; i < 2; i++)
    UNROLL
    for (i32 j = 0; j < 4; j++)
      UNROLL
      for (i32 e = 0; e < 4; e++) sums[i][j][e] = 0.0f;

  // Double-buffered fragments: those of a step are loaded while the previous step is multiplied, also
  // across tiles.
  u32 a[2][2][4], b[2][2][4];
  const i32 first_a = place_a(warp_m + lane % 16, lane / 16);
  const i32 first_b = place_b(warp_n + lane % 8 + lane / 16 * 8, lane / 8 % 2);
  auto load = [&](u32 (&a)[2][4], u32 (&b)[2][4], i32 tile, i32 step) {
    const u8* const at_a = ring + tile % 3 * 16384;
    const u8* const at_b = at_a + 8192;
    UNROLL
    for (i32 i = 0; i < 2; i++)
      load_blocks(a[i], at_a + (first_a ^ (step * 2) * 16) + i * 2048);
    UNROLL
    for (i32 j = 0; j < 2; j++) {
      load_blocks(b[j], at_b + (first_b ^ (step * 2) * 16) + j * 2048);
    }
  };
  ROLLED
  for (i32 tile = 0; tile < 2; tile++) {
    if (tile < tiles) {
      issue_x(tile);
      if (!w_fixed) issue_w(tile);
    }
    commit_copies();
  }
  wait_copies<1>();
  sync_block();
  load(a[0], b[0], 0, 0);
  ROLLED
  for (i32 tile = 0; tile < tiles; tile++) {
    UNROLL
    for (i32 step = 0; step < 4; step++) {
      const i32 now = step % 2, next = now ^ 1;
      if (step == 3) {  // the next tile has arrived and every warp has read this one
        wait_copies<1>();
        sync_block();
      }
      load(a[next], b[next], step == 3 ? tile + 1 : tile, (step + 1) % 4);
      if (step == 0) {
        if (tile + 2 < tiles) {
          issue_x(tile + 2);
          issue_w(tile + 2);
        }
        commit_copies();
      }
      UNROLL
      for (i32 i = 0; i < 2; i++)
        UNROLL
        for (i32 j = 0; j < 4; j++) {
          multiply_f16(sums[i][j], a[now][i], &b[now][j / 2][j % 2 * 2]);
        }
    }
  }
  wait_copies<0>();
  sync_block();
  // Applies bias and the chain to a run of sums, and stores the results.
  auto finish = [&](i32 row, i32 col, const vf (&sums)[8]) {
    const i32 n = least(8, cols - col);
    if (row >= rows || n <= 0) return;
    float w[8];
    load_run(w, bias + (i64)col * bias_col, bias_col, n, together<float, 8>(bias + col, bias_col, n));
    auto* at_x1 = x1 + (i64)row * x1_row + (i64)col * x1_col;
    f16 a_x1[8];
    load_run(a_x1, at_x1, x1_col, n,
             together<f16, 8>(at_x1, x1_col, n));
    auto* at_x2 = x2 + (i64)row * x2_row + (i64)col * x2_col;
    const float a_x2 = *at_x2;
    auto* at_y0 = y0 + (i64)row * y0_row + (i64)col * y0_col;
    f16 a_y0[8];
    UNROLL
    for (i32 j = 0; j < 8; j++) {
      vf v0;
      apply(sums[j] + w[j],
            number(a_x1[j]),
            number(a_x2),
            v0);
      assign(a_y0[j], v0);
    }
    store_run(at_y0, a_y0, y0_col, n,
              together<f16, 8>(at_y0, y0_col, n));
  };

  // Fragments of sums are rearranged into runs through shared memory, 16 rows of a warp at a time.
  float* const strip = (float*)ring + warp * 640;
  auto place = [](i32 row, i32 col) { return (row) * 40 + (((col) / 4) ^ ((((col) / 4) / 8 ^ (row)) & 1)) * 4 + (col) % 4; };
  UNROLL
  for (i32 i = 0; i < 2; i++) {
    UNROLL
    for (i32 j = 0; j < 4; j++)
      UNROLL
      for (i32 e = 0; e < 4; e += 2) {
        float* const to = strip + place((lane >> 2) + e / 2 * 8, j * 8 + (lane & 3) * 2);
        to[0] = sums[i][j][e];
        to[1] = sums[i][j][e + 1];
      }
    sync_warp();
    ROLLED
    for (i32 part = 0; part < 2; part++) {
      const i32 at = part * 32 + lane, row = at / 4, col = at % 4 * 8;
      vf z[8];
      UNROLL
      for (i32 q = 0; q < 8; q += 4) {
        const run<float, 4> four = *(const run<float, 4>*)(strip + place(row, col + q));
        UNROLL
        for (i32 e = 0; e < 4; e++) z[q + e] = four.at[e];
      }
      finish(row0 + warp_m + i * 16 + row, col0 + warp_n + col, z);
    }
    sync_warp();
  }
}

}  // namespace tracea
EXPORT(tracea_f16_gemm_nk_bias_0885e55344661902_64x64x64x3__sm_80)
