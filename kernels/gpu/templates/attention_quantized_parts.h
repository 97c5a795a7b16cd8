// What both kernels of attention of 8-bit integers do: their arguments, and steps of scores, weights and results.
namespace tracea {

// The integer nearest to a * b, ties to even, if that is below 2^22; larger ones stay as large.
DEV float nearest(float a, float b) { return fmaf(a, b, 0x1.8p23f) - 0x1.8p23f; }

}  // namespace tracea
//% from "attention_result.h" import store_result with context
//% macro arguments()
    const GRID_CONSTANT tensor_map q_map, const GRID_CONSTANT tensor_map k_map,
    const GRID_CONSTANT tensor_map v_map,
    //% for x in inputs
    const ${x.element}* in${x.index}, i32 in${x.index}_b, i32 in${x.index}_h, ${"i32 in" ~ x.index ~ "_row, " if x.tall}i32 in${x.index}_col,
    //% endfor
    ${y_element}* y, i32 y_b, i32 y_h, i32 y_row,
    divisor runs, divisor heads, i32 queries, i32 keys, float weight_step, float weight_high,
    float factor, float y_step, float y_zero, float y_low, float y_high, i32 tiles, float unit_of_scores${", float " if literals}${literals|join(", float ")}${", float highest_score" if bounded}) {
//% endmacro
//% macro stage_keyed(count)
  //% if keyed
  //% for y in keyed
  ${y.element}* const keyed${y.index} = (${y.element}*)(arena() + ${y.at});
  //% endfor
  ROLLED
  for (i32 key = thread(); key < ${count}; key += ${threads}) {
    const i32 inside = least(key, keys - 1);
    //% for x in rows
    const ${inputs[x - 1].held} x${loop.index0} = number(in${x}[(i64)inside * in${x}_col]);
    //% endfor
    //% for y in keyed
    {
      //% for line in y.steps
      ${line}
      //% endfor
      assign(keyed${y.index}[key], ${y.result});
    }
    //% endfor
  }
  sync_block();
  //% endif
//% endmacro
//% macro finish_scores(low="", low_less="")
    //% if tall
    const i32 column = computed_anew(lane % 4 * 2);  // offsets of all keys leave no registers
    //% endif
    UNROLL
    for (i32 j = 0; j < ${keys // 8}; j++) {
      //% for y in keyed
      const pair<${y.element}> two${y.index} = *(const pair<${y.element}>*)(keyed${y.index} + ${low}j * 8 + lane % 4 * 2);
      //% endfor
      UNROLL
      for (i32 i = 0; i < 4; i++) {
        //% if tall
        const i64 key = least(${low}j * 8 + column + i % 2, keys - 1);
        const i64 row = least(top_row + lane / 4 + i / 2 * 8, queries - 1);
        //% endif
        vf made;
        apply(scores[j * 4 + i],
              //% for x in inputs if x.tall
              number(in${x.index}[row * in${x.index}_row + key * in${x.index}_col]),
              //% endfor
              //% for y in keyed
              number(two${y.index}.at[i % 2]),
              //% endfor
              //% for k in literals
              ${k},
              //% endfor
              made);
        scores[j * 4 + i] = made;
      }
      //% if tall
      if (j % 4 == 3) keep_order();  // registers do not hold all operands at once
      //% endif
    }
    if (keys < ${low}${keys}) {
      const i32 left = keys - ${low_less}lane % 4 * 2;
      UNROLL
      for (i32 i = 0; i < ${keys // 2}; i++)
        if (i / 4 * 8 + i % 2 >= left) scores[i] = -__builtin_inff();
    }
//% endmacro
//% macro weigh()
    // Weights are multiples of a step, which 16 bits hold exactly.
    UNROLL
    for (i32 i = 0; i < ${keys // 2}; i++) scores[i] = nearest(scores[i], share[i / 2 % 2]);
    if (weight_step * (weight_high + 0.5f) < 1.0f) {  // else no weight exceeds the bound
      UNROLL
      for (i32 i = 0; i < ${keys // 2}; i++) scores[i] = min(weight_high, scores[i]);
    }
    UNROLL
    for (i32 i = 0; i < ${keys // 4}; i++) weights[i / 4][i % 4] = ${kind}_pair(scores[2 * i], scores[2 * i + 1]);
//% endmacro
//% macro store_rounded()
    UNROLL
    for (i32 i = 0; i < ${depth_v // 2}; i++)
      //% if form == "plain"
      sums[i] *= times;
      //% else
      sums[i] = min(y_high, max(nearest(sums[i], times) + y_zero, y_low))${" * y_step" if form == "steps"};
      //% endif
    const i32 own = ${"computed_anew(thread())" if keys > 208 else "thread()"};  // scores leave no registers
    const i32 line = ${"computed_anew(y_row)" if keys > 208 else "y_row"};
    const i32 strip = ${strips_at} + own / 32 * ${strip_bytes};
    ${y_element}* const to = y + (i64)batch * y_b + (i64)head * y_h;
    //% if form in ("u8", "i8")
    // Bytes of 16 rows of a warp turn from fragments into runs in shared memory.
    const bool whole_y = in_chunks<1>(to, line, ${head_v}, ${"true" if head_v % 16 else "false"});
    UNROLL
    for (i32 j = 0; j < ${depth_v // 8}; j++)
      UNROLL
      for (i32 h = 0; h < 2; h++)
        set_pair(*(pair<${y_element}>*)(arena() + (strip + (own % 32 / 4 + h * 8) * ${byte_pitch} + j * 8 + own % 4 * 2)),
                 sums[j * 4 + h * 2], sums[j * 4 + h * 2 + 1]);
    sync_warp();
    const ${y_element}* const made = (const ${y_element}*)(arena() + strip);
    if (whole_y) {
      UNROLL
      for (i32 at = own % 32; at < ${depth_v}; at += 32) {
        const i32 row = at / ${depth_v // 16}, col = at % ${depth_v // 16} * 16;
        if (top_row + row < end && col < ${head_v})
          *(chunk*)(to + ((i64)(top_row + row) * y_row + col)) = *(const chunk*)(made + (row * ${byte_pitch} + col));
      }
    } else {
      ROLLED
      for (i32 at = own % 32; at < ${16 * depth_v}; at += 32) {
        const i32 row = at / ${depth_v}, col = at % ${depth_v};
        if (top_row + row < end && col < ${head_v}) to[(i64)(top_row + row) * y_row + col] = made[row * ${byte_pitch} + col];
      }
    }
    sync_warp();
    //% else
    const i32 pairs = strip + ${exchange.layout.expression("own % 32 / 4", "0")} + own % 4 * 4;
    const i32 runs_at = strip + ${exchange.layout.expression("own % 32 / 8", "own % 8")};
    const bool whole_y = in_chunks<2>(to, line, ${head_v}, ${"true" if head_v % 8 else "false"});
    share[0] = share[1] = 1.0f;
${store_result("runs_at", "end")}
    //% endif
//% endmacro
