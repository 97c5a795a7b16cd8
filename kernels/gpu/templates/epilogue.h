//% macro epilogue_parameters()
    //% if bias
    const float* bias, i32 bias_col,
    //% endif
    //% for t in tensors if not t.second
    ${t.qualified} ${t.name},
    //% for axis in range(batch)
    i32 ${t.name}_b${axis},
    //% endfor
    i32 ${t.name}_row,${" i32 " ~ t.name ~ "_col," if strided}
    //% endfor
//% endmacro
//% macro epilogue_batch()
  //% for t in tensors if not t.second
  ${t.name} += ${t.start};
  //% endfor
//% endmacro
//% macro epilogue_rows(col)
  // Rows and a bias, which all results of a thread share.
  //% if bias
  float held_bias[${run}];
  load_run(held_bias, bias + (i64)${col} * bias_col, bias_col, least(${run}, cols - ${col}),
           together<float, ${run}>(bias + ${col}, bias_col, least(${run}, cols - ${col})));
  //% endif
  //% for t in tensors if t.row
  ${t.element} held_${t.name}[${run}];
  load_run(held_${t.name}, ${t.name} + (i64)${col} * ${t.name}_col, ${t.name}_col, least(${run}, cols - ${col}),
           together<${t.element}, ${run}>(${t.name} + (i64)${col} * ${t.name}_col, ${t.name}_col, least(${run}, cols - ${col})));
  //% endfor
//% endmacro
//% macro epilogue()
  //% set held_rows = held_rows is defined and held_rows
  // Applies bias and the chain to a run of sums${" and those of a second matrix" if second is defined and second}, and stores the results.
  auto finish = [&](i32 row, i32 col, const vf (&sums)[${run}]${", const vf (&second)[" ~ run ~ "]" if second is defined and second}) {
    const i32 n = least(${run}, cols - col);
    if (row >= rows || n <= 0) return;
    //% if bias and not held_rows
    float w[${run}];
    load_run(w, bias + (i64)col * bias_col, bias_col, n, together<float, ${run}>(bias + col, bias_col, n));
    //% endif
    //% if norm is defined and norm != "none"
    const float own_mean = moments[(row - row0) * 2], own_inverse = moments[(row - row0) * 2 + 1];
    //% endif
    //% if norm is defined and norm == "layer"
    float s[${run}];
    load_run(s, column_sums + col, 1, n, together<float, ${run}>(column_sums + col, 1, n));
    //% endif
    //% for t in tensors if not t.second and not (held_rows and t.row)
    auto* at_${t.name} = ${t.name} + (i64)row * ${t.name}_row + (i64)col * ${t.name}_col;
    //% if t.operand
    //% if t.wide
    ${t.element} a_${t.name}[${run}];
    load_run(a_${t.name}, at_${t.name}, ${t.name}_col, n,
             together<${t.element}, ${run}>(at_${t.name}, ${t.name}_col, n));
    //% else
    const ${t.element} a_${t.name} = *at_${t.name};
    //% endif
    //% else
    ${t.element} a_${t.name}[${run}];
    //% endif
    //% endfor
    UNROLL
    for (i32 j = 0; j < ${run}; j++) {
      //% for y in results
      ${y.held} v${y.index};
      //% endfor
      //% set sum = "sums[j]"
      //% if norm is defined and norm == "layer"
      //% set sum = "fmaf(-own_mean, s[j], sums[j]) * own_inverse"
      //% elif norm is defined and norm == "rms"
      //% set sum = "sums[j] * own_inverse"
      //% endif
      apply(${sum}${" + held_bias[j]" if bias and held_rows}${" + w[j]" if bias and not held_rows}${" + spoilt[row - row0]" if spoilt is defined},
            //% for t in tensors
            //% if t.second
            second[j],
            //% elif t.operand
            number(${"held_" ~ t.name if held_rows and t.row else "a_" ~ t.name}${"[j]" if t.wide}),
            //% endif
            //% endfor
            //% for y in results
            v${y.index}${"," if not loop.last else ");"}
            //% endfor
      //% for y in results
      //% if whole_bytes is defined and whole_bytes
      a_y${y.index}[j] = (${y.element})float_bits(v${y.index} + 0x1.8p23f);  // whole: no conversion
      //% else
      assign(a_y${y.index}[j], v${y.index});
      //% endif
      //% endfor
    }
    //% for y in results
    store_run(at_y${y.index}, a_y${y.index}, y${y.index}_col, n,
              together<${y.element}, ${run}>(at_y${y.index}, y${y.index}_col, n));
    //% endfor
  };
//% endmacro
