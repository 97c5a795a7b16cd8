//% set unrolled, normed = unrolled|default(0), normed|default(false)
//% macro store_pair(to, two)
//% if rounding
*(u16*)&${to} = f8_of_halves(gelu_pair(f16_pair(${two}[0], ${two}[1]), ${gelu[0]}, ${gelu[1]}), ${rounding});
//% elif table
${to}.at[0] = of_levels[float_bits(${two}[0] - ${table.low} + 0x1.8p23f) & 255u];
${to}.at[1] = of_levels[float_bits(${two}[1] - ${table.low} + 0x1.8p23f) & 255u];
//% elif gelu
*(u32*)&${to} = gelu_pair(f16_pair(${two}[0], ${two}[1]), ${gelu[0]}, ${gelu[1]});
//% else
set_pair(${to}, ${two}[0], ${two}[1]);
//% endif
//% endmacro
//% macro sum_at()
sums[i][(${"nth * " ~ wide // 8 if unrolled else "first / 8"} + j${" + " ~ n // 16 if gated}) * 4 + h * 2 + e]
//%- endmacro
//% macro next_strips()
      //% if unrolled
      //% set moved, left = unrolled * wide // 2, (n - unrolled * wide) // 2
      //% if normed
      i32 first_ones[${moved}];
      UNROLL
      for (i32 q = 0; q < ${moved}; q++) first_ones[q] = sums[0][q];
      //% endif
      UNROLL
      for (i32 q = 0; q < ${left}; q++) sums[0][q] = sums[0][q + ${moved}];
      //% if normed
      UNROLL
      for (i32 q = 0; q < ${moved}; q++) sums[0][${left} + q] = first_ones[q];
      //% endif
      }
      //% endif
//% endmacro
//% macro each_strip()
      //% if unrolled
      // ${strips // unrolled} times ${unrolled} strips: code that runs once for each tile takes longer to fetch than to run.
      // Registers have no index, so sums move to the first ones after each time.
      ROLLED
      for (i32 turn = 0; turn < ${strips}; turn += ${unrolled}) {
      UNROLL
      for (i32 nth = 0; nth < ${unrolled}; nth++) {
        const i32 i = 0, of = turn + nth, first = of * ${wide};
      //% else
      UNROLL
      for (i32 of = 0; of < ${tall * strips}; of++) {
        const i32 i = of / ${strips}, first = of % ${strips} * ${wide};
      //% endif
//% endmacro
//% macro store_strip(y, per, rounds, runs)
        sync_warp();
        if (whole_${y.name}) {
          UNROLL
          for (i32 p = 0; p < ${rounds}; p++) {
            const i32 row = top + lane / ${runs} + p * ${32 // runs}, col = left + lane % ${runs} * ${per};
            if (row < rows && col < cols)
              *(chunk*)(${y.name} + (row * ${y.name}_row + col)) =
                  *(const chunk*)(ring + (runs${y.size} ^ ${y.round}));
          }
        } else {
          //% if shifted
          store_window(top, of % ${strips});
          if (of % ${strips} == ${strips - 1}) store_window(top, ${strips});
          //% else
          UNROLL_FOUR  // so that stores do not wait for the load of one element each
          for (i32 k = 0; k < ${y.wide // 2}; k++) {
            const i32 row = k / ${y.wide // 32}, col = lane + k % ${y.wide // 32} * 32, run = col / ${per};
            if (top + row < rows && left + col < cols)
              ${y.name}[(i64)(top + row) * ${y.name}_row + left + col] =
                  ((const ${y.element}*)(ring + strip + ${y.layout.expression("row", "run")}))[col % ${per}];
          }
          //% endif
        }
        sync_warp();
//% endmacro
      //% if counted
      float totals[${tall}][2] = {}, squares[${tall}][2] = {};
      //% endif

      //% if shifted
      //% set y, per = written[0], 16 // written[0].size
      // Rows that are not 16 bytes apart are stored in runs of 64 aligned bytes all the same: a row of a
      // strip is a ring of 128 bytes, in which columns lie as many to the right as its first one lies
      // behind such a boundary in memory.
      i32 behind[2], place[2][2], turn[2][2];
      UNROLL
      for (i32 h = 0; h < 2; h++) {
        const i64 from = (i64)(row_of + lane / 4 + h * 8) * ${y.name}_row + col0;
        behind[h] = (i32)((u64)(${y.name} + from) / ${y.size} % ${wide});
        UNROLL
        for (i32 e = 0; e < 2; e++) {
          const i32 at = lane % 4 * 2 + e + behind[h];
          place[h][e] = strip + (lane / 4 + h * 8) * 128 + lane / 4 * 16 + at % ${per} * ${y.size};
          turn[h][e] = at / ${per} * 16;
        }
      }
      const i32 end = least(cols, col0 + ${own_n});
      auto store_window = [&](i32 top, i32 window) {  // of all strips, the one after them too
        UNROLL
        for (i32 h = 0; h < 2; h++) {
          const i32 row = top + lane / 4 + h * 8;
          const i32 col = col0 + window * ${wide} + lane % 4 * ${per} - behind[h];
          const i32 run = (window % 2 * 4 + lane % 4) ^ lane / 4;
          const chunk made = *(const chunk*)(ring + strip + (lane / 4 + h * 8) * 128 + run * 16);
          ${y.element}* const to = ${y.name} + ((i64)row * ${y.name}_row + col);
          if (row >= rows) continue;
          if (col >= col0 && col + ${per} <= end) {
            *(chunk*)to = made;
          } else {
            UNROLL
            for (i32 e = 0; e < ${per}; e++)
              if (col + e >= col0 && col + e < end) to[e] = ((const ${y.element}*)&made)[e];
          }
        }
      };
      //% endif
      // 16 rows and ${wide} columns of a warp at a time: tensors turn from runs into fragments and back
      // in shared memory.
${each_strip()|trim("\n")}
        const i32 top = row_of + i * 64, left = col0 + first;
        //% for e in sizes
        //% if crowded
        pairs${e.size} = computed_anew(pairs${e.size});  // sums leave no registers for all addresses
        runs${e.size} = computed_anew(runs${e.size});
        //% endif
        //% endfor
        //% for t in read
        //% set per, rounds, runs = 16 // t.size, t.rounds, t.runs
        //% if not t.ahead
        chunk now_${t.name}[${rounds}];
        ask_${t.name}(now_${t.name}, of);
        //% endif
        if (whole_${t.name}) {
          UNROLL
          for (i32 p = 0; p < ${rounds}; p++) {
            *(chunk*)(ring + (runs${t.size} ^ ${t.round})) = ${"coming_" ~ t.name ~ ("[0]" if unrolled else "[of % " ~ t.ahead ~ "]") if t.ahead else "now_" ~ t.name}[p];
          }
        } else {
          ROLLED
          for (i32 at = lane; at < ${16 * t.wide}; at += 32) {
            const i32 row = at / ${t.wide}, col = at % ${t.wide}, run = col / ${per};
            if (top + row < rows && left + col < cols)
              ((${t.element}*)(ring + strip + ${t.layout.expression("row", "run")}))[col % ${per}] =
                  ${t.name}[(i64)(top + row) * ${t.name}_row + left + col];
          }
        }
        //% if t.ahead
        //% if unrolled
        UNROLL
        for (i32 next = 1; next < ${t.ahead}; next++)
          UNROLL
          for (i32 p = 0; p < ${rounds}; p++) coming_${t.name}[next - 1][p] = coming_${t.name}[next][p];
        if (of + ${t.ahead} < ${strips}) ask_${t.name}(coming_${t.name}[${t.ahead - 1}], of + ${t.ahead});
        //% else
        if (of + ${t.ahead} < ${tall * strips}) ask_${t.name}(coming_${t.name}[of % ${t.ahead}], of + ${t.ahead});
        //% endif
        //% endif
        sync_warp();
        //% if t.name != in_place
        pair<${t.element}> part_${t.name}[${wide // 8}][2];
        UNROLL
        for (i32 j = 0; j < ${wide // 8}; j++)
          UNROLL
          for (i32 h = 0; h < 2; h++)
            part_${t.name}[j][h] = *(const pair<${t.element}>*)(ring + (pairs${t.size} ^ ${t.pair}));
        sync_warp();
        //% endif
        //% endfor
        // Results are stored when all are made, so that no load waits for a store, if registers suffice.
        //% set at_once = 1 if crowded or shifted else 0
        //% for y in written[at_once:] if not normed
        pair<${y.element}> made_${y.name}[${wide // 8}][2];
        //% endfor
        //% if norm != "none"
        const pair<float> own_rows[2] = {moments[i * 16 + lane / 4], moments[i * 16 + lane / 4 + 8]};
        //% endif
        UNROLL
        for (i32 j = 0; j < ${wide // 8}; j++) {
          const i32 column = first + j * 8 + lane % 4 * 2;
          //% for v in vectors
          const pair<${v.held}> at_${v.name} = *(const pair<${v.held}>*)(staged_${v.name} + column);
          //% endfor
          UNROLL
          for (i32 h = 0; h < 2; h++) {
            //% set y = written[0]
            //% for t in read
            const pair<${t.element}> two_${t.name} = ${"*(const pair<" ~ t.element ~ ">*)(ring + (pairs" ~ y.size ~ " ^ " ~ y.pair ~ "))" if t.name == in_place else "part_" ~ t.name ~ "[j][h]"};
            //% endfor
            //% for y in written
            ${y.held} two_${y.name}[2];
            //% endfor
            UNROLL
            for (i32 e = 0; e < 2; e++)
              //% set sum = sum_at()
              //% if integers
              //% set sum = "(float)(" ~ sum ~ (" - at_column_sums.at[e]" if zero_point else "") ~ ")"
              //% elif blocks_of
              //% set sum = sum ~ " + spoilt[i][h]"
              //% elif norm == "layer"
              //% set sum = "fmaf(-own_rows[h].at[0], at_column_sums.at[e], " ~ sum ~ ")"
              //% endif
              //% if norm != "none" and pingpong
              //% set sum = sum ~ " * own_rows[h].at[1]" ~ (" + at_bias.at[e]" if bias else "")
              //% elif norm != "none"
              //% set sum = "fmaf(" ~ sum ~ ", own_rows[h].at[1], " ~ ("at_bias.at[e]" if bias else "0.0f") ~ ")"
              //% elif bias
              //% set sum = sum ~ " + at_bias.at[e]"
              //% endif
              apply(${sum},
                    //% for t in operands_of
                    number(${t}),
                    //% endfor
                    //% for k in literals|default([])
                    ${k},
                    //% endfor
                    //% for y in written
                    two_${y.name}[e]${"," if not loop.last else ");"}
                    //% endfor
            //% if normed
            UNROLL
            for (i32 e = 0; e < 2; e++) ${sum_at()} = (i32)float_bits(two_${y.name}[e]);  // normalised later
            //% else
            //% if counted
            totals[i][h] += two_${y.name}[0] + two_${y.name}[1];
            squares[i][h] = fmaf(two_${y.name}[0], two_${y.name}[0],
                                 fmaf(two_${y.name}[1], two_${y.name}[1], squares[i][h]));
            //% endif
            //% for y in written[at_once:]
            ${store_pair("made_" ~ y.name ~ "[j][h]", "two_" ~ y.name)}
            //% endfor
            //% set y = written[0]
            //% if shifted
            if (!whole_${y.name}) {
              UNROLL
              for (i32 e = 0; e < 2; e++)
                assign(*(${y.element}*)(ring + (place[h][e] ^ (turn[h][e] + (first + j * 8) * ${y.size} & 112))), two_${y.name}[e]);
              continue;
            }
            //% endif
            //% if at_once
            ${store_pair("*(pair<" ~ y.element ~ ">*)(ring + (pairs" ~ y.size ~ " ^ " ~ y.pair ~ "))", "two_" ~ y.name)}
            //% endif
            //% endif
          }
        }
        //% if normed
        sync_warp();  // all have read this strip
        //% else
        //% for y in written
        //% set per, rounds, runs = 16 // y.size, y.rounds, y.runs
        //% if not (at_once and loop.first)
        UNROLL
        for (i32 j = 0; j < ${wide // 8}; j++)
          UNROLL
          for (i32 h = 0; h < 2; h++)
            *(pair<${y.element}>*)(ring + (pairs${y.size} ^ ${y.pair})) = made_${y.name}[j][h];
        //% endif
${store_strip(y, per, rounds, runs)|trim("\n")}
        //% endfor
        //% endif
      }
${next_strips()|trim("\n")}
      //% if normed
//% include "gemm_wgmma_norm.h"
      //% endif
      //% if counted
      UNROLL
      for (i32 i = 0; i < ${tall * 2}; i++) {
        pair<float> both = {{totals[i / 2][i % 2], squares[i / 2][i % 2]}};
        UNROLL
        for (i32 mask = 1; mask < 4; mask *= 2)
          UNROLL
          for (i32 e = 0; e < 2; e++) both.at[e] += shuffle_xor(both.at[e], mask);
        const i32 row = row_of + i / 2 * 64 + i % 2 * 8 + lane / 4;
        if (lane % 4 == 0 && row < rows)
          *(pair<float>*)(y_sums + ((i64)row * y_parts + col0 / ${own_n}) * 2) = both;
      }
      //% endif
