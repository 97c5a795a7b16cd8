// Stores of matrix fragments in the host dialect.
namespace tracea {

// Stores four 8 x 8 blocks whose transposes the fragments hold; lane 8 i + j gives row j of block i.
DEV void store_blocks_turned(void* p, const u32 (&r)[4]) {
  struct own {
    void* p;
    const u32* r;
  } mine = {p, r};
  machine.meet_warp(
      [](void** all) {
        for (i32 lane = 0; lane < WARP_LANES; lane++)
          for (i32 e = 0; e < 8; e++) {
            u16* const row = (u16*)((own*)all[e / 2 * 8 + lane % 4 * 2 + e % 2])->p;
            if ((uintptr_t)row % 16) machine.fail("stores blocks to an odd address", lane);
            row[lane / 4] = (u16)(((own*)all[lane])->r[e / 2] >> e % 2 * 16);
          }
      },
      &mine);
}

}  // namespace tracea
