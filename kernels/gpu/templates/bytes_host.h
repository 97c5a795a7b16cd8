// Fragments of bytes (m16n8k32): integers with exact sums in int32, or 8-bit floats.
//% set floats8 = kind in ("f8", "f8e5")
namespace tracea {

DEV void multiply_bytes(${sum} (&d)[4], const u32 (&a)[4], const u32* b) {
  struct own {
    ${sum}* d;
    const u32 *a, *b;
  } mine = {d, a, b};
  machine.meet_warp(
      [](void** all) {
        ${sum} left[${atom.m}][${atom.k}], right[${atom.k}][${atom.n}];
        for (i32 lane = 0; lane < WARP_LANES; lane++) {
          const auto* x = (const ${"u8" if floats8 else kind}*)((own*)all[lane])->a;
          const auto* y = (const ${"u8" if floats8 else "i8"}*)((own*)all[lane])->b;
          //% for e in range(atom.a.count)
          left[${atom.a.row("lane", e)}][${atom.a.col("lane", e)}] = ${kind ~ "_number" if floats8}(x[${e}]);
          //% endfor
          //% for e in range(atom.b.count)
          right[${atom.b.row("lane", e)}][${atom.b.col("lane", e)}] = ${right ~ "_number" if floats8}(y[${e}]);
          //% endfor
        }
        for (i32 lane = 0; lane < WARP_LANES; lane++) {
          ${sum}* sums = ((own*)all[lane])->d;
          //% for e in range(atom.d.count)
          for (i32 k = 0; k < ${atom.k}; k++)
            sums[${e}] += left[${atom.d.row("lane", e)}][k] * right[k][${atom.d.col("lane", e)}];
          //% endfor
        }
      },
      &mine);
}
//% if not floats8
DEV i32 add_x_bytes(i32 sum, u32 four) {
  for (i32 i = 0; i < 4; i++) sum += ((const ${kind}*)&four)[i];
  return sum;
}
DEV i32 add_w_bytes(i32 sum, u32 four) {
  for (i32 i = 0; i < 4; i++) sum += ((const i8*)&four)[i];
  return sum;
}
//% endif

}  // namespace tracea
