//% from "epilogue.h" import epilogue_batch with context
//% macro locate(whole)
  //% if batch
  // Groups of channels follow one another in x, in w, and in the bias and the results.
  i32 tile_m = quotient(${whole}, tiles_n);
  const i32 col0 = (${whole} - tile_m * (i32)tiles_n.value) * ${n};
  const i32 i0 = quotient(tile_m, tiles_m);
  tile_m -= i0 * (i32)tiles_m.value;
  x += ${start_x};
  w += ${start_w};
  //% if bias
  bias += (i64)i0 * cols * bias_col;
  //% endif
  //% else
  const i32 tile_m = quotient(${whole}, tiles_n);
  const i32 col0 = (${whole} - tile_m * (i32)tiles_n.value) * ${n};
  //% endif
  const i32 row0 = tile_m * ${m};
${epilogue_batch()}
//% endmacro
