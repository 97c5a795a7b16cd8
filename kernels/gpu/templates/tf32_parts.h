//% macro split_w()
      // The other warps write what is left of w beside it, as products read both from shared memory.
      i32 stage = 0, phase = 0;
      ROLLED
      for (i32 tile = block_x(); tile < all; tile += blocks_x()) {
        ROLLED
        for (i32 step = 0; step < steps; step++) {
          wait_phase(full + stage, phase);
          u8* const at = ring + stage * ${stage_bytes} + ${a.nbytes};
          UNROLL_FOUR
          for (i32 i = own - 32; i < ${b.nbytes // 16}; i += 96) {
            run<float, 4> four = *(const run<float, 4>*)(at + i * 16);
            UNROLL
            for (i32 e = 0; e < 4; e++) four.at[e] = bits_float(tf32_rest(float_bits(four.at[e])));
            *(run<float, 4>*)(at + ${b.nbytes} + i * 16) = four;
          }
          show_to_products();
          sync_warp();
          if (own % 32 == 0) arrive_at(ready + stage);
          if (++stage == ${ring.stages}) stage = 0, phase ^= 1;
        }
      }
//% endmacro
//% macro products()
        wait_phase(full + stage, phase);
        wait_phase(ready + stage, phase);
        const u8* const at_a = ring + stage * ${stage_bytes} + (group * 64 + warp * 16 + lane / 4) * 128 + lane % 4 * 4;
        u32 a[4][4], rest[4][4];  // products leave out the last 13 bits
        UNROLL
        for (i32 k = 0; k < 4; k++)
          UNROLL
          for (i32 e = 0; e < 4; e++) {
            a[k][e] = *(const u32*)(at_a + ((k * 2 + e / 2) ^ lane / 4) * 16 + e % 2 * 8 * 128);
            rest[k][e] = tf32_rest(a[k][e]);
          }
        const u64 b = descriptor(ring + stage * ${stage_bytes} + ${a.nbytes}, ${b.bits}ull);
        // These instructions truncate long sums, so each stage is accumulated separately.
        float part[${n // 2}];
        open_products();
        UNROLL
        for (i32 k = 0; k < 4; k++) {
          multiply_group(part, rest[k], b + k * ${b.step // 16}, k);
          multiply_group(part, a[k], b + ${b.nbytes // 16} + k * ${b.step // 16}, 1);
          multiply_group(part, a[k], b + k * ${b.step // 16}, 1);
        }
        commit_products();
//% endmacro
//% macro products_end()
        wait_products<0>();
        if (own == 0) arrive_at(empty + stage);
        if (++stage == ${ring.stages}) stage = 0, phase ^= 1;
        UNROLL
        for (i32 i = 0; i < ${n // 2}; i++) sums[0][i] = step ? sums[0][i] + part[i] : part[i];
//% endmacro
