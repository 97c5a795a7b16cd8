//% set nth = "(begin + step)" if sharing > 1 else "step"
//% macro load_w(stage, step)
          //% set box = "load_box_for_pair" if halved == "w" else "load_box"
          //% set at_w = " + rank * " ~ (b.nbytes // 2 if b.by_depth else b.panel // 2) if halved == "w" else ""
          //% set half_n = " + rank * " ~ (n // 2) if halved == "w" else ""
          //% set half_step = " + rank * 32" if halved == "w" else ""
          //% set own_map = "own_w_map" if groups > 1 else "w_map"
          //% if blocks_of
          ${box}(ring + ${stage} * ${stage_bytes} + ${a.nbytes}${at_w}, w_map, full + ${stage},
                 {0, (begin + ${step}) * ${n}${half_n}});
          //% elif by_two
          ROLLED
          for (i32 half = 0; half < 2; half++)  // those of a tap behind the last one become zero
            load_box(ring + ${stage} * ${stage_bytes} + ${a.nbytes} + half * ${b.panel}, w_map, full + ${stage},
                     {0, 2 * ${step} + half, col0});
          //% elif conv
          const i32 tap = quotient(${step}, blocks_c), block = ${step} - tap * (i32)blocks_c.value;
          ${box}(ring + ${stage} * ${stage_bytes} + ${a.nbytes}${at_w}, w_map, full + ${stage},
                 {block * ${span}, tap, col0${half_n}${", i0" if batch}});
          //% elif normed
          UNROLL
          for (i32 half = 0; half < 2; half++)
            load_box(ring + ${stage} * ${stage_bytes} + ${a.nbytes} + half * ${b.nbytes}, w_map, full + ${stage},
                     {${step} * ${span}, col0 + half * ${n}});
          //% elif gated
          UNROLL
          for (i32 panel = 0; panel < ${[b.copies, 2]|max}; panel++)
            load_box(ring + ${stage} * ${stage_bytes} + ${a.nbytes} + panel * ${b.nbytes // [b.copies, 2]|max},
                     panel < ${[b.copies, 2]|max // 2} ? w_map : v_map, full + ${stage},
                     {${step ~ " * " ~ span ~ ", col0" if b.by_depth else "col0 + panel % " ~ b.copies // 2 ~ " * 64, " ~ step ~ " * 64"}});
          //% else
          UNROLL
          for (i32 panel = 0; panel < ${b.copies}; panel++)
            ${box}(ring + ${stage} * ${stage_bytes} + ${a.nbytes} + panel * ${b.panel}${at_w}, ${own_map}, full + ${stage},
                   {${step ~ " * " ~ span ~ ", col0" ~ half_n if b.by_depth else "col0 + panel * 64, " ~ step ~ " * 64" ~ half_step}${w_outer}});
          //% endif
//% endmacro
    give_registers<${producer_registers}>();
    if (own == 0) {
      prefetch_map(x_map);
      prefetch_map(w_map);
      //% if gated
      prefetch_map(v_map);
      //% endif
      //% for g in range(1, groups)
      prefetch_map(w_map_of_${g});
      //% endfor
      //% if pair
      const i32 rank = cluster_rank();
      //% endif
      i32 stage = 0, phase = 0, early = 0;
      ROLLED
${rounds()} {
        i32 row0, col0, whole${", begin, steps" if blocks_of};
        locate(tile, row0, col0, whole${", begin, steps" if blocks_of});
${outer()}
        //% if groups > 1
        const tensor_map& own_w_map =
${of_group("w_map", "w_map")}          ;
        const bool own_w_fixed =
${of_group("w_fixed", "w_fixed")}          ;
        //% endif
        if (tile == ${first_tile}) {  // constants come while the kernel before this one may still run
          early = ${"v_fixed && " if gated}${"own_" if groups > 1}w_fixed ? least(steps, ${ring.stages}) : 0;
          ROLLED
          for (i32 step = 0; step < early; step++) {
            announce(full + step, ${copied_bytes});
${load_w("step", nth)}
          }
          wait_for_grid();
        }
        //% if conv
        //% if volume
        const i32 image = quotient(row0, pixels), place = row0 - image * (i32)pixels.value;
        const i32 plane = quotient(place, pixels_hw), pixel = place - plane * (i32)pixels_hw.value;
        const i32 first_d = plane * stride_d - front;
        //% else
        const i32 image = quotient(row0, pixels), pixel = row0 - image * (i32)pixels.value;
        //% endif
        const i32 line = quotient(pixel, pixels_w);
        const i32 first_h = line * stride_h - top;
        const i32 first_w = (pixel - line * (i32)pixels_w.value) * stride_w - left;
        //% endif
        //% if blocks_of
        const i32* const ids = order + tiles_n + begin;
        const i32 first_id = col0 / ${n} * slices;
        i32 next = steps ? ids[0] : 0;  // is asked for a step early
        //% endif
        ROLLED
        for (i32 step = 0; step < steps; step++) {
          if (early > 0) {
            early--;
          } else {
            wait_phase(empty + stage, phase ^ 1);
            announce(full + stage, ${copied_bytes});
${load_w("stage", nth)}
          }
          //% if by_two
          ROLLED
          for (i32 half = 0; half < 2; half++) {
            const i32 tap = 2 * ${nth} + half, at = least(tap, (i32)taps.value - 1), r = quotient(at, taps_w);
            const i32 channel = tap > at ? ${span // 2} : 0;  // of none, which become zero
            //% if volume
            const i32 deep = quotient(r, taps_h);
            load_pixels(ring + stage * ${stage_bytes} + half * ${a.panel}, x_map, full + stage,
                        {channel, first_w, first_h, first_d, image}, (at - r * (i32)taps_w.value) * dilation_w,
                        (r - deep * (i32)taps_h.value) * dilation_h, deep * dilation_d);
            //% else
            load_pixels(ring + stage * ${stage_bytes} + half * ${a.panel}, x_map, full + stage,
                        {channel, first_w, first_h, image}, (at - r * (i32)taps_w.value) * dilation_w, r * dilation_h);
            //% endif
          }
          //% elif conv
          const i32 at = quotient(${nth}, blocks_c), r = quotient(at, taps_w);
          //% if volume
          const i32 deep = quotient(r, taps_h);
          load_pixels(ring + stage * ${stage_bytes}, x_map, full + stage,
                      {(${nth} - at * (i32)blocks_c.value) * ${span}${" + i0 * channels" if batch}, first_w, first_h, first_d, image},
                      (at - r * (i32)taps_w.value) * dilation_w, (r - deep * (i32)taps_h.value) * dilation_h,
                      deep * dilation_d);
          //% else
          load_pixels(ring + stage * ${stage_bytes}, x_map, full + stage,
                      {(${nth} - at * (i32)blocks_c.value) * ${span}${" + i0 * channels" if batch}, first_w, first_h, image},
                      (at - r * (i32)taps_w.value) * dilation_w, r * dilation_h);
          //% endif
          //% elif blocks_of
          const i32 from = (next - first_id) * ${span};
          if (step + 1 < steps) next = ids[step + 1];
          load_box(ring + stage * ${stage_bytes}, x_map, full + stage, {from, row0});
          //% else
          //% if halved == "x"
          load_box_for_pair(ring + stage * ${stage_bytes} + rank * ${a.nbytes // 2}, x_map, full + stage,
                            {${nth} * ${span}, row0 + rank * ${m // 2}${x_outer}});
          //% else
          load_box(ring + stage * ${stage_bytes}, x_map, full + stage, {${nth} * ${span}, row0${x_outer}});
          //% endif
          //% endif
          if (++stage == ${ring.stages}) stage = 0, phase ^= 1;
        }
      }
      //% if pair
      // This block ends when both blocks have read all that was copied: nobody arrives at it later.
      ROLLED
      for (i32 i = 0; i < ${ring.stages}; i++) {
        wait_phase(empty + stage, phase ^ 1);
        if (++stage == ${ring.stages}) stage = 0, phase ^= 1;
      }
      //% endif
    }
    //% if parts
    if (own >= 32) {
${split_w()}
    }
    //% endif
