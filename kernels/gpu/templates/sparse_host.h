// 2:4 sparse products of a warp in the host dialect.
namespace tracea {

// 32 steps, of each four of which a has two; lanes 4i + 2 HALF and the next hold their positions.
template <int HALF>
DEV void multiply_sparse(float (&d)[4], const u32 (&a)[4], const u32 (&b)[4], u32 positions) {
  struct own {
    float* d;
    const u32 *a, *b;
    u32 positions;
  } mine = {d, a, b, positions};
  machine.meet_warp(
      [](void** all) {
        float left[16][32] = {}, right[32][8];
        auto position = [&](i32 row, i32 kept) {
          const u32 word = ((own*)all[row % 8 * 4 + 2 * HALF + kept / 8])->positions;
          return (i32)(word >> (row / 8 * 16 + kept % 8 * 2) & 3);
        };
        for (i32 lane = 0; lane < WARP_LANES; lane++) {
          const auto* x = (const u16*)((own*)all[lane])->a;
          const auto* y = (const u16*)((own*)all[lane])->b;
          //% for e in range(atom.a.count)
          {
            const i32 row = ${atom.a.row("lane", e)}, kept = ${atom.a.col("lane", e)};
            if (kept % 2 && position(row, kept) <= position(row, kept - 1))
              machine.fail("multiplies by numbers whose positions do not ascend", lane);
            left[row][kept / 2 * 4 + position(row, kept)] = ${kind}_number(x[${e}]);
          }
          //% endfor
          for (i32 e = 0; e < 8; e++)
            right[lane % 4 * 2 + e % 2 + e / 2 * 8][lane / 4] = ${kind}_number(y[e]);
        }
        for (i32 lane = 0; lane < WARP_LANES; lane++) {
          float* sums = ((own*)all[lane])->d;
          //% for e in range(atom.d.count)
          for (i32 k = 0; k < 32; k++)
            sums[${e}] += left[${atom.d.row("lane", e)}][k] * right[k][${atom.d.col("lane", e)}];
          //% endfor
        }
      },
      &mine);
}

}  // namespace tracea
