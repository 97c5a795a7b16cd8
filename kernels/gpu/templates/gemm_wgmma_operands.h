      //% for t in read + written
      const bool whole_${t.name} = in_chunks<${t.size}>(${t.name}, ${t.name}_row, cols, col0 + ${own_n} > cols);
      //% endfor
      const i32 row_of = row0 + ${"" if pingpong or normed else "group * " ~ 64 * tall ~ " + "}warp * 16;
      // What the epilogue reads is asked for before the products are waited for.
      //% for v in vectors
      ${v.element} ahead_${v.name}[${(own_n + 127) // 128}];
      UNROLL
      for (i32 i = 0; i < ${(own_n + 127) // 128}; i++) {
        const i32 col = own + i * 128;
        ahead_${v.name}[i] = col < ${own_n} && col0 + col < cols ? ${v.name}[${"(i64)(col0 + col" ~ (" + i0 * cols" if conv and batch) ~ ") * bias_col" if v.name == "bias" and conv and batch else "col0 + col" ~ (" * (i64)bias_col" if v.name == "bias" else "")}] : ${v.element}();
      }
      //% endfor
      //% for t in narrow
      ${t.element} ahead_${t.name}[${tall}][2];
      UNROLL
      for (i32 i = 0; i < ${tall * 2}; i++) {
        const i32 row = row_of + i / 2 * 64 + i % 2 * 8 + lane / 4;
        if (row < rows) ahead_${t.name}[i / 2][i % 2] = ${t.name}[(i64)row * ${t.name}_row];
      }
      //% endfor
      //% if blocks_of
      float spoilt[${tall}][2];  // NaN if a row of x has a number that is not finite, else 0
      UNROLL
      for (i32 i = 0; i < ${tall * 2}; i++) {
        const i32 row = row_of + i / 2 * 64 + i % 2 * 8 + lane / 4;
        spoilt[i / 2][i % 2] = row < rows ? odd[row] : 0.0f;
      }
      //% endif
      //% if norm != "none"
      pair<float> ahead_parts[${most_parts}];  // of a lane's row
      const i32 own_row = lane < ${16 * tall} ? row_of + lane / 16 * 64 + lane % 16 : rows;
      UNROLL
      for (i32 i = 0; i < ${most_parts}; i++) {
        ahead_parts[i].at[0] = ahead_parts[i].at[1] = 0.0f;
        if (own_row < rows && i < x_parts)
          ahead_parts[i] = *(const pair<float>*)(x_sums + ((i64)own_row * x_parts + i) * 2);
      }
      //% endif
      //% for t in read
      //% set per, rounds = 16 // t.size, t.rounds
      //% if t.ahead
      chunk coming_${t.name}[${t.ahead}][${rounds}];
      //% endif
      auto ask_${t.name} = [&](chunk (&to)[${rounds}], i32 of) {
        UNROLL
        for (i32 i = 0; i < ${rounds}; i++) {
          const i32 row = row_of + of / ${strips} * 64 + lane / ${t.runs} + i * ${32 // t.runs};
          const i32 col = col0 + of % ${strips} * ${wide} + lane % ${t.runs} * ${per};
          if (whole_${t.name} && row < rows && col < cols)
            to[i] = *(const chunk*)(${t.name} + (row * ${t.name}_row + col));
        }
      };
      //% if t.ahead and not asked_late
      //% if not pingpong
      if (steps) wait_phase(full + stage, phase);  // the first products' operands come first
      //% endif
      UNROLL
      for (i32 of = 0; of < ${t.ahead}; of++) ask_${t.name}(coming_${t.name}[of], of);
      //% endif
      //% endfor
