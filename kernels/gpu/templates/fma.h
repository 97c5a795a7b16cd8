//% from "epilogue.h" import epilogue with context
//% macro fma_product()
  //% if layout == "nk"
  const i32 w_n = w_row, w_k = w_col;
  //% else
  const i32 w_n = w_col, w_k = w_row;
  //% endif
  float* const a = (float*)arena();             // [k][m + 4]
  float* const b = a + ${k * (m + 4)};  // [k][n + 4]
  float next_a[${m * k // threads}], next_b[${n * k // threads}];
  // Adjacent threads read along the contiguous axis.
  auto fetch = [&](i32 k0) {
    UNROLL
    for (i32 i = 0; i < ${m * k // threads}; i++) {
      const i32 at = i * ${threads} + thread(), row = row0 + at / ${k}, kk = k0 + at % ${k};
      next_a[i] = row < rows && kk < depth ? left_number(row, kk) : 0.0f;
    }
    UNROLL
    for (i32 i = 0; i < ${n * k // threads}; i++) {
      const i32 at = i * ${threads} + thread();
      //% if layout == "nk"
      const i32 col = col0 + at / ${k}, kk = k0 + at % ${k};
      //% else
      const i32 col = col0 + at % ${n}, kk = k0 + at / ${n};
      //% endif
      next_b[i] = col < cols && kk < depth ? w[(i64)col * w_n + (i64)kk * w_k] : 0.0f;
    }
  };
  auto keep = [&]() {
    UNROLL
    for (i32 i = 0; i < ${m * k // threads}; i++) {
      const i32 at = i * ${threads} + thread();
      a[at % ${k} * ${m + 4} + at / ${k}] = next_a[i];
    }
    UNROLL
    for (i32 i = 0; i < ${n * k // threads}; i++) {
      const i32 at = i * ${threads} + thread();
      //% if layout == "nk"
      b[at % ${k} * ${n + 4} + at / ${k}] = next_b[i];
      //% else
      b[at / ${n} * ${n + 4} + at % ${n}] = next_b[i];
      //% endif
    }
  };
  // A thread has ${m // 64} x ${n // 64} squares of 4 x 4 numbers.
  const i32 down = thread() / 16 * 4, across = thread() % 16 * 4;
  float sums[${m // 16}][${n // 16}];
  UNROLL
  for (i32 i = 0; i < ${m // 16}; i++)
    UNROLL
    for (i32 j = 0; j < ${n // 16}; j++) sums[i][j] = 0.0f;
  fetch(0);
  ROLLED
  for (i32 k0 = 0; k0 < depth; k0 += ${k}) {
    sync_block();
    keep();
    sync_block();
    if (k0 + ${k} < depth) fetch(k0 + ${k});
    UNROLL
    for (i32 kk = 0; kk < ${k}; kk++) {
      run<float, 4> left[${m // 64}], right[${n // 64}];
      UNROLL
      for (i32 i = 0; i < ${m // 64}; i++)
        left[i] = *(const run<float, 4>*)(a + kk * ${m + 4} + i * 64 + down);
      UNROLL
      for (i32 j = 0; j < ${n // 64}; j++)
        right[j] = *(const run<float, 4>*)(b + kk * ${n + 4} + j * 64 + across);
      UNROLL
      for (i32 i = 0; i < ${m // 16}; i++)
        UNROLL
        for (i32 j = 0; j < ${n // 16}; j++)
          sums[i][j] = fmaf(left[i / 4].at[i % 4], right[j / 4].at[j % 4], sums[i][j]);
    }
  }

${epilogue()}
  UNROLL
  for (i32 i = 0; i < ${m // 16}; i++)
    UNROLL
    for (i32 j = 0; j < ${n // 16}; j += 4) {
      vf z[4];
      UNROLL
      for (i32 e = 0; e < 4; e++) z[e] = sums[i][j + e];
      finish(row0 + i / 4 * 64 + down + i % 4, col0 + j / 4 * 64 + across, z);
    }
//% endmacro
