//% macro zero_parameters()
    //% if shifted
    const ${kind}* x_zero_at, i32 x_zero,
    //% endif
    //% if own_zeros
    const i8* w_zeros, i32 w_zeros_step,
    //% endif
//% endmacro
//% macro product()
  // Main loop over the tiles that `issue_x` and `issue_w` copy into the ring.  Constants are fetched
  // before waiting for the preceding kernel.
  const i32 tiles = (depth + ${k_bytes - 1}) / ${k_bytes};
  if (w_fixed) {
    ROLLED
    for (i32 tile = 0; tile < least(tiles, ${ring.prefetched}); tile++) issue_w(tile);
  }
  wait_for_grid();
  release_grid();
  //% if shifted
  zero = x_zero_at ? (i32)*x_zero_at : x_zero;
  //% endif
  const i32 lane = thread() % 32, warp = thread() / 32;
  const i32 warp_m = warp / ${warps_n} * ${wm}, warp_n = warp % ${warps_n} * ${wn};
  ${sum} sums[${wm // 16}][${wn // 8}][4];
  UNROLL
  for (i32 i = 0; i < ${wm // 16}; i++)
    UNROLL
    for (i32 j = 0; j < ${wn // 8}; j++)
      UNROLL
      for (i32 e = 0; e < 4; e++) sums[i][j][e] = 0;
  //% if shifted
  i32 w_sums[${wn // 8}] = {};  // of this lane's part of a column
  //% endif
  //% if own_zeros
  i32 x_sums[${wm // 16}][2] = {};
  //% endif
  const i32 first_a = place_a(warp_m + lane % 16, lane / 16);
  const i32 first_b = place_b(warp_n + lane % 8 + lane / 16 * 8, lane / 8 % 2);
  ROLLED
  for (i32 tile = 0; tile < ${ring.prefetched}; tile++) {
    if (tile < tiles) {
      issue_x(tile);
      if (!w_fixed) issue_w(tile);
    }
    commit_copies();
  }
  ROLLED
  for (i32 tile = 0; tile < tiles; tile++) {
    wait_copies<${ring.left}>();
    sync_block();  // this tile has arrived, and every warp has read the one before
    if (tile + ${ring.prefetched} < tiles) {
      issue_x(tile + ${ring.prefetched});
      issue_w(tile + ${ring.prefetched});
    }
    commit_copies();
    const u8* const at_a = ring + tile % ${ring.stages} * ${stage_bytes};
    const u8* const at_b = at_a + ${a_bytes};
    UNROLL
    for (i32 step = 0; step < ${k_bytes // 32}; step++) {
      u32 a[${wm // 16}][4], b[${wn // 16}][4];
      UNROLL
      for (i32 i = 0; i < ${wm // 16}; i++)
        load_blocks(a[i], at_a + ${a.moved("first_a", "step * 2")} + i * ${16 * a.pitch});
      UNROLL
      for (i32 j = 0; j < ${wn // 16}; j++)
        load_blocks(b[j], at_b + ${b.moved("first_b", "step * 2")} + j * ${16 * b.pitch});
      UNROLL
      for (i32 i = 0; i < ${wm // 16}; i++)
        UNROLL
        for (i32 j = 0; j < ${wn // 8}; j++)
          multiply_bytes(sums[i][j], a[i], &b[j / 2][j % 2 * 2]);
      //% if shifted
      UNROLL
      for (i32 j = 0; j < ${wn // 8}; j++)
        UNROLL
        for (i32 e = 0; e < 2; e++) w_sums[j] = add_w_bytes(w_sums[j], b[j / 2][j % 2 * 2 + e]);
      //% endif
      //% if own_zeros
      UNROLL
      for (i32 i = 0; i < ${wm // 16}; i++)
        UNROLL
        for (i32 e = 0; e < 4; e++) x_sums[i][e % 2] = add_x_bytes(x_sums[i][e % 2], a[i][e]);
      //% endif
    }
  }
  wait_copies<0>();
  sync_block();

${epilogue()}
  // Fragments of sums are rearranged into runs through shared memory, 16 rows of a warp at a time.
  float* const strip = (float*)ring + warp * ${strip.words};
  auto place = [](i32 row, i32 col) { return ${strip.expression("row", "col")}; };
  //% if shifted or own_zeros
  // Zero points: sum (x - z) (w - v) = sum x w - z (sum w - depth v) - v sum x.  Four lanes have a part
  // of each sum of bytes, all of which are below 2^24: exact as floats.
  //% if shifted
  UNROLL
  for (i32 j = 0; j < ${wn // 8}; j++) {
    float whole = (float)w_sums[j];
    whole += shuffle_xor(whole, 1);
    whole += shuffle_xor(whole, 2);
    if (lane % 4 == 0) strip[j * 8 + lane / 4] = whole;
  }
  sync_warp();
  //% endif
  //% if own_zeros
  UNROLL
  for (i32 i = 0; i < ${wm // 16}; i++)
    UNROLL
    for (i32 e = 0; e < 2; e++) {
      float whole = (float)x_sums[i][e];
      whole += shuffle_xor(whole, 1);
      whole += shuffle_xor(whole, 2);
      x_sums[i][e] = (i32)whole;
    }
  //% endif
  UNROLL
  for (i32 j = 0; j < ${wn // 8}; j++)
    UNROLL
    for (i32 e = 0; e < 2; e++) {
      const i32 column = j * 8 + ${fragment.col("lane")} + e;
      //% if own_zeros
      const i32 col = col0 + warp_n + column;
      const i32 own = col < cols ? (i32)w_zeros[(i64)col * w_zeros_step] : 0;
      //% else
      const i32 own = 0;
      //% endif
      const i32 less = ${"zero * ((i32)strip[column] - depth * own)" if shifted else "0"};
      UNROLL
      for (i32 i = 0; i < ${wm // 16}; i++)
        UNROLL
        for (i32 half = 0; half < 2; half++)
          sums[i][j][half * 2 + e] -= less${" + own * x_sums[i][half]" if own_zeros};
    }
  sync_warp();
  //% endif
  UNROLL
  for (i32 i = 0; i < ${wm // 16}; i++) {
    UNROLL
    for (i32 j = 0; j < ${wn // 8}; j++)
      UNROLL
      for (i32 e = 0; e < 4; e += 2) {
        float* const to = strip + place(${fragment.row("lane")} + e / 2 * 8, j * 8 + ${fragment.col("lane")});
        to[0] = (float)sums[i][j][e];
        to[1] = (float)sums[i][j][e + 1];
      }
    sync_warp();
    ROLLED
    for (i32 part = 0; part < ${16 * wn // (32 * run)}; part++) {
      const i32 at = part * 32 + lane, row = at / ${wn // run}, col = at % ${wn // run} * ${run};
      vf z[${run}];
      UNROLL
      for (i32 q = 0; q < ${run}; q += 4) {
        const run<float, 4> four = *(const run<float, 4>*)(strip + place(row, col + q));
        UNROLL
        for (i32 e = 0; e < 4; e++) z[q + e] = four.at[e];
      }
      finish(row0 + warp_m + i * 16 + row, col0 + warp_n + col, z);
    }
    sync_warp();
  }
//% endmacro
