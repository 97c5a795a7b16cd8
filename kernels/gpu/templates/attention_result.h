//% macro store_result(runs="runs", end="queries")
      // 16 rows and 64 columns of a warp at a time turn from fragments into runs in shared memory.
      UNROLL
      for (i32 p = 0; p < ${panels_v}; p++) {
        UNROLL
        for (i32 j = 0; j < 8; j++) {
          if (p * 64 + j * 8 >= ${depth_v}) break;
          UNROLL
          for (i32 h = 0; h < 2; h++) {
            const i32 i = (p * 8 + j) * 4 + h * 2;
            //% if rounded
            const float part = share[h] * factor;
            float two[2] = {sums[i] * part, sums[i + 1] * part};
            //% else
            float two[2] = {sums[i] * share[h], sums[i + 1] * share[h]};
            //% endif
            //% if guarded
            if (share[h] == 0.0f) two[0] = two[1] = 0.0f;  // whatever lies in values
            //% endif
            set_pair(*(pair<${element}>*)(arena() + (pairs ^ ${exchange.pair})), two[0], two[1]);
          }
        }
        sync_warp();
        if (whole_y) {
          UNROLL
          for (i32 p8 = 0; p8 < 4; p8++) {
            const i32 row = top_row + lane / 8 + p8 * 4, col = p * 64 + lane % 8 * 8;
            if (row < ${end} && col < ${head_v})
              ${"store_rounded<" ~ element ~ ">(to + (row * y_row + col), " if rounded else "*(chunk*)(to + (row * y_row + col)) = "}*(const chunk*)(arena() + (${runs} ^ (${exchange.layout.expression("p8 * 4", "0")})))${")" if rounded};
          }
        } else {
          ROLLED
          for (i32 at = lane; at < 16 * 64; at += 32) {
            const i32 row = at / 64, col = at % 64, run = col / 8;
            if (top_row + row < ${end} && p * 64 + col < ${head_v})
              ${"assign(" if rounded}to[(i64)(top_row + row) * y_row + p * 64 + col]${", number(" if rounded else " ="}
                  ((const ${element}*)(arena() + strip + ${exchange.layout.expression("row", "run")}))[col % 8]${"))" if rounded};
          }
        }
        sync_warp();
      }
//% endmacro
