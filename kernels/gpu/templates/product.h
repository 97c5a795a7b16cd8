//% from "epilogue.h" import epilogue with context
//% macro begin()
  // The tile of this block and its part of the depth.
  //% if cut
  const i32 whole = quotient(block_x(), parts), part_of = block_x() - whole * (i32)parts.value;
  //% else
  const i32 whole = block_x();
  //% endif
//% endmacro
//% macro share()
  //% if cut
  const i32 all = (depth + ${k - 1}) / ${k}, each = quotient(all + (i32)parts.value - 1, parts);
  const i32 first = part_of * each, tiles = least(each, all - first);
  //% else
  const i32 tiles = (depth + ${k - 1}) / ${k};
  //% endif
//% endmacro
//% macro gathered()
  // Split-K: partial sums go to memory; the last block to arrive adds them in a fixed order and
  // continues with the epilogue.
  if (parts.value > 1) {
    constexpr i32 TILE = ${m * n}, STEP = ${threads * 4};
    float* const own = partial + (i64)block_x() * TILE + thread() * 4;
    UNROLL
    for (i32 i = 0; i < ${wm // 16}; i++)
      UNROLL
      for (i32 j = 0; j < ${wn // 8}; j++) {
        run<float, 4> four;
        UNROLL
        for (i32 e = 0; e < 4; e++) four.at[e] = sums[i][j][e];
        *(run<float, 4>*)(own + (i * ${wn // 8} + j) * STEP) = four;
      }
    make_seen();
    sync_block();
    i32* const before = (i32*)ring;
    if (thread() == 0) *before = arrive(arrivals + whole);
    sync_block();
    if (*before != (i32)parts.value - 1) return;
    if (thread() == 0) arrivals[whole] = 0;  // reset, so that the launch can be repeated
    make_seen();
    sync_block();
    UNROLL
    for (i32 i = 0; i < ${wm // 16}; i++)
      UNROLL
      for (i32 j = 0; j < ${wn // 8}; j++)
        UNROLL
        for (i32 e = 0; e < 4; e++) sums[i][j][e] = 0.0f;
    ROLLED
    for (i32 part = 0; part < (i32)parts.value; part++) {
      const float* const other =
          partial + ((i64)whole * parts.value + part) * TILE + thread() * 4;
      UNROLL
      for (i32 i = 0; i < ${wm // 16}; i++)
        UNROLL
        for (i32 j = 0; j < ${wn // 8}; j++) {
          float four[4];
          load_made(four, other + (i * ${wn // 8} + j) * STEP);
          UNROLL
          for (i32 e = 0; e < 4; e++) sums[i][j][e] += four[e];
        }
    }
  }
//% endmacro
//% macro row_moments()
  float* const moments = (float*)(ring + ${moments_at});
  const bool whole_runs = fast_x && depth % 8 == 0;
  ROLLED
  for (i32 r = thread() / 32 * 4; r < ${m}; r += ${threads // 8}) {  // four rows of a warp at a time
    float total[4] = {}, squares[4] = {};
    ROLLED
    for (i32 k = thread() % 32 * (whole_runs ? 8 : 1); k < depth; k += whole_runs ? 256 : 32) {
      float v[4][8] = {};
      UNROLL
      for (i32 i = 0; i < 4; i++)
        if (row0 + r + i < rows) {
          const ${element}* const from = x + (i64)(row0 + r + i) * x_row + (i64)k * x_k;
          if (whole_runs)
            numbers<8>(v[i], *(const packed<${element}, 8>*)from);
          else
            v[i][0] = number(*from);
        }
      UNROLL
      for (i32 i = 0; i < 4; i++)
        UNROLL
        for (i32 j = 0; j < 8; j++) {
          total[i] += v[i][j];
          squares[i] = fmaf(v[i][j], v[i][j], squares[i]);
        }
    }
    UNROLL
    for (i32 i = 0; i < 4; i++) {
      UNROLL
      for (i32 mask = 16; mask; mask /= 2) {
        total[i] += shuffle_xor(total[i], mask);
        squares[i] += shuffle_xor(squares[i], mask);
      }
      const float own_mean = ${"total[i] * part" if norm == "layer" else "0.0f"};
      const float spread = fmaxf(fmaf(squares[i], part, -own_mean * own_mean), 0.0f);
      const float own_inverse = inverse_root(spread + epsilon);
      if (thread() % 32 == 0) {
        moments[(r + i) * 2] = own_mean, moments[(r + i) * 2 + 1] = own_inverse;
        if (inverse && col0 == 0 && row0 + r + i < rows${" && part_of == 0" if cut}) {
          if (mean) mean[row0 + r + i] = own_mean;
          inverse[row0 + r + i] = own_inverse;
        }
      }
    }
  }
//% endmacro
//% macro product()
  // Main loop over the tiles that `issue_x` and `issue_w` copy into the ring.  Constants are fetched
  // before waiting for the preceding kernel.
  if (w_fixed) {
    ROLLED
    for (i32 tile = 0; tile < least(tiles, ${ring.prefetched}); tile++) issue_w(tile);
  }
  wait_for_grid();
  release_grid();
  //% if norm != "none"
${row_moments()}
  //% endif
  const i32 lane = thread() % 32, warp = thread() / 32;
  const i32 warp_m = warp / ${warps_n} * ${wm}, warp_n = warp % ${warps_n} * ${wn};
  float sums[${wm // 16}][${wn // 8}][4];
  UNROLL
  for (i32 i = 0; i < ${wm // 16}; i++)
    UNROLL
    for (i32 j = 0; j < ${wn // 8}; j++)
      UNROLL
      for (i32 e = 0; e < 4; e++) sums[i][j][e] = 0.0f;

  // Double-buffered fragments: those of a step are loaded while the previous step is multiplied, also
  // across tiles.
  //% set steps = k_bytes // 32
  u32 a[2][${wm // 16}][4], b[2][${wn // 16}][4];
  const i32 first_a = place_a(warp_m + lane % 16, lane / 16);
  //% if layout == "nk"
  const i32 first_b = place_b(warp_n + lane % 8 + lane / 16 * 8, lane / 8 % 2);
  //% elif size == 2
  const i32 first_b = place_b(lane % 16, warp_n / 8 + lane / 16);
  //% else
  const i32 first_b = place_b(lane % 4, 0) + (warp_n + lane / 4) * 4;
  //% endif
  auto load = [&](u32 (&a)[${wm // 16}][4], u32 (&b)[${wn // 16}][4], i32 tile, i32 step) {
    const u8* const at_a = ring + tile % ${ring.stages} * ${stage_bytes};
    const u8* const at_b = at_a + ${a_bytes};
    UNROLL
    for (i32 i = 0; i < ${wm // 16}; i++)
      load_blocks(a[i], at_a + ${a.moved("first_a", "step * 2")} + i * ${16 * a.pitch});
    UNROLL
    for (i32 j = 0; j < ${wn // 16}; j++) {
      //% if layout == "nk"
      load_blocks(b[j], at_b + ${b.moved("first_b", "step * 2")} + j * ${16 * b.pitch});
      //% elif size == 2
      load_blocks_turned(b[j], at_b + ${b.moved("first_b", "j * 2")} + step * ${16 * b.pitch});
      //% else
      UNROLL
      for (i32 e = 0; e < 4; e++)
        b[j][e] = *(const u32*)(at_b + first_b + (step * 8 + e % 2 * 4) * ${b.pitch} +
                                (j * 16 + e / 2 * 8) * 4);
      //% endif
    }
  };
  ROLLED
  for (i32 tile = 0; tile < ${ring.prefetched}; tile++) {
    if (tile < tiles) {
      issue_x(tile);
      if (!w_fixed) issue_w(tile);
    }
    commit_copies();
  }
  wait_copies<${ring.left}>();
  sync_block();
  load(a[0], b[0], 0, 0);
  ROLLED
  for (i32 tile = 0; tile < tiles; tile++) {
    UNROLL
    for (i32 step = 0; step < ${steps}; step++) {
      const i32 now = step % 2, next = now ^ 1;
      if (step == ${steps - 1}) {  // the next tile has arrived and every warp has read this one
        wait_copies<${ring.left}>();
        sync_block();
      }
      load(a[next], b[next], step == ${steps - 1} ? tile + 1 : tile, (step + 1) % ${steps});
      if (step == 0) {
        if (tile + ${ring.prefetched} < tiles) {
          issue_x(tile + ${ring.prefetched});
          issue_w(tile + ${ring.prefetched});
        }
        commit_copies();
      }
      //% if rounded
      UNROLL
      for (i32 e = 0; e < 4; e++) {
        UNROLL
        for (i32 i = 0; i < ${wm // 16}; i++) a[now][i][e] = tf32_bits(bits_float(a[now][i][e]));
        UNROLL
        for (i32 j = 0; j < ${wn // 16}; j++) b[now][j][e] = tf32_bits(bits_float(b[now][j][e]));
      }
      //% endif
      //% if split
      u32 a_low[${wm // 16}][4], b_low[${wn // 16}][4];
      UNROLL
      for (i32 e = 0; e < 4; e++) {
        UNROLL
        for (i32 i = 0; i < ${wm // 16}; i++) split(a[now][i][e], a[now][i][e], a_low[i][e]);
        UNROLL
        for (i32 j = 0; j < ${wn // 16}; j++) split(b[now][j][e], b[now][j][e], b_low[j][e]);
      }
      //% endif
      UNROLL
      for (i32 i = 0; i < ${wm // 16}; i++)
        UNROLL
        for (i32 j = 0; j < ${wn // 8}; j++) {
          //% if split
          // these instructions truncate long sums, so each step is accumulated separately
          float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
          multiply_tf32(part, a_low[i], &b[now][j / 2][j % 2 * 2]);
          multiply_tf32(part, a[now][i], &b_low[j / 2][j % 2 * 2]);
          multiply_tf32(part, a[now][i], &b[now][j / 2][j % 2 * 2]);
          UNROLL
          for (i32 e = 0; e < 4; e++) sums[i][j][e] += part[e];
          //% else
          multiply_${kind}(sums[i][j], a[now][i], &b[now][j / 2][j % 2 * 2]);
          //% endif
        }
    }
  }
  wait_copies<0>();
  sync_block();
  //% if caller is defined
${caller()}
  //% endif
  //% if cut
${gathered()}
  //% endif

${epilogue()}
  // Fragments of sums are rearranged into runs through shared memory, 16 rows of a warp at a time.
  float* const strip = (float*)ring + warp * ${strip.words};
  auto place = [](i32 row, i32 col) { return ${strip.expression("row", "col")}; };
  UNROLL
  for (i32 i = 0; i < ${wm // 16}; i++) {
    UNROLL
    for (i32 j = 0; j < ${wn // 8}; j++)
      UNROLL
      for (i32 e = 0; e < 4; e += 2) {
        float* const to = strip + place(${fragment.row("lane")} + e / 2 * 8, j * 8 + ${fragment.col("lane")});
        to[0] = sums[i][j][e];
        to[1] = sums[i][j][e + 1];
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
