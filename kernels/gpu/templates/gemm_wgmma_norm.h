      // What the sums became stays in their registers.  Mean and squared deviations of this warpgroup's
      // columns of each row go to both blocks; those of the row follow from all four of them.
      float part[2][2];
      UNROLL
      for (i32 h = 0; h < 2; h++) {
        float total = 0.0f, squares = 0.0f;
        UNROLL
        for (i32 q = 0; q < ${n // 4}; q++) total += bits_float((u32)sums[0][q / 2 * 4 + h * 2 + q % 2]);
        UNROLL
        for (i32 mask = 1; mask < 4; mask *= 2) total += shuffle_xor(total, mask);
        part[h][0] = total * (1.0f / ${n}.0f);
        UNROLL
        for (i32 q = 0; q < ${n // 4}; q++) {
          const float away = bits_float((u32)sums[0][q / 2 * 4 + h * 2 + q % 2]) - part[h][0];
          squares = fmaf(away, away, squares);
        }
        UNROLL
        for (i32 mask = 1; mask < 4; mask *= 2) squares += shuffle_xor(squares, mask);
        part[h][1] = squares;
      }
      if (lane % 4 == 0)
        UNROLL
        for (i32 to = 0; to < 2; to++)
          send(received + (((rank * 2 + group) * 4 + warp) * 8 + lane / 4) * 4, sums_come, to,
               part[0][0], part[0][1], part[1][0], part[1][1]);
      wait_sent(sums_come, 0);
      float mean[2], scale[2];
      {
        run<float, 4> parts[4];
        UNROLL
        for (i32 i = 0; i < 4; i++)
          parts[i] = *(const run<float, 4>*)(received + ((i * 4 + warp) * 8 + lane / 4) * 4);
        UNROLL
        for (i32 h = 0; h < 2; h++) {
          mean[h] = 0.0f;
          UNROLL
          for (i32 i = 0; i < 4; i++) mean[h] = fmaf(parts[i].at[h * 2], 0.25f, mean[h]);
          float squares = 0.0f;
          UNROLL
          for (i32 i = 0; i < 4; i++) {
            const float away = parts[i].at[h * 2] - mean[h];
            squares += fmaf(away * away, ${n}.0f, parts[i].at[h * 2 + 1]);
          }
          scale[h] = 1.0f / sqrt(fmaf(squares, 1.0f / ${4 * n}.0f, epsilon));
        }
      }
      const float levels = 1.0f / level;
      //% set y = written[0]
${each_strip()|trim("\n")}
        const i32 top = row_of + i * 64, left = col0 + first;
        UNROLL
        for (i32 j = 0; j < ${wide // 8}; j++) {
          const i32 column = first + j * 8 + lane % 4 * 2;
          const pair<float> gamma = *(const pair<float>*)(staged_${gamma} + column);
          const pair<float> beta = *(const pair<float>*)(staged_${beta} + column);
          UNROLL
          for (i32 h = 0; h < 2; h++) {
            float two[2];
            UNROLL
            for (i32 e = 0; e < 2; e++) {
              const float made = (bits_float((u32)${sum_at()}) - mean[h]) * scale[h] * gamma.at[e] + beta.at[e];
              const float whole = (divided(made, level, levels) + 0x1.8p23f) - 0x1.8p23f + level_zero;
              two[e] = min(high, max(whole, low));
            }
            set_pair(*(pair<${y.element}>*)(ring + (pairs${y.size} ^ ${y.pair})), two[0], two[1]);
          }
        }
${store_strip(y, 16 // y.size, y.rounds, y.runs)|trim("\n")}
      }
${next_strips()|trim("\n")}