  // The keys that queries see; nothing is written outside of the caches, whatever the model computes as positions.
  //% if appends
  const i32 start = place < 0 ? 0 : place < slots ? (i32)place : slots, end = least(start + rows, slots);
  const i32 last_of_all = start + quotient(least(first_query + ${queries - 1}, count - 1), group);
  auto last_of = [&](i32 j) { return start + quotient(least(first_query + j, count - 1), group); };
  // Only the blocks of the first queries read keys that no query of them sees, to copy these.
  const i32 reach = first_query ? least(last_of_all + 1, end) : end;
  //% else
  const i32 start = held;
  auto last_of = [&](i32) { return held; };
  //% if mask == "none"
  const i32 reach = held;  // of which a query sees all
  //% else
  auto mask_of = [&](i32 j) {
    const i32 query = least(first_query + j, count - 1), s = quotient(query, group);
    const i32 of = head * (i32)group.value + query - s * (i32)group.value;
    return mask + ((i64)item * mask_b + (i64)of * mask_h + (i64)s * mask_s);
  };
  // Keys behind the last one that a query sees are not read.  One that sees none weighs all keys.
  {
    const ${mask_element}* before = nullptr;
    i32 end = 0;
    ROLLED
    for (i32 j = 0; j < asked_rows; j++) {
      const ${mask_element}* const row = mask_of(j);
      if (row != before) {
        end = 0;
        const bool whole_mask = together<${mask_element}, ${mask_run}>(row, mask_t, ${mask_run});
        ROLLED
        for (i32 first = thread() * ${mask_run}; first < held; first += ${2 * mask_run * threads}) {
          ${mask_element} some[2][${mask_run}];
          UNROLL
          for (i32 u = 0; u < 2; u++) {
            const i32 t = first + u * ${mask_run * threads};
            load_run(some[u], row + (i64)t * mask_t, mask_t, held - t, whole_mask && t + ${mask_run} <= held);
          }
          UNROLL
          for (i32 e = 0; e < ${2 * mask_run}; e++) {
            const i32 t = first + e / ${mask_run} * ${mask_run * threads} + e % ${mask_run};
            const ${mask_element} one = some[e / ${mask_run}][e % ${mask_run}];
            if (t < held && (${"!(number(one) <= " ~ hidden ~ ")" if mask == "add" else "number(one) || !(fill <= " ~ hidden ~ ")"})) end = t + 1;
          }
        }
        ROLLED
        for (i32 m = 16; m; m /= 2) {
          const i32 other = (i32)float_bits(shuffle_xor(bits_float((u32)end), m));
          end = other > end ? other : end;
        }
      }
      before = row;
      if (lane == 0) ends_of(warp)[j] = end;
    }
  }
  sync_block();
  i32 reach = 0, blind = 0;  // blind: a bit for each query that sees no key
  ROLLED
  for (i32 j = 0; j < asked_rows; j++) {
    i32 end = 0;
    UNROLL
    for (i32 w = 0; w < ${warps}; w++) {
      const i32 other = ends_of(w)[j];
      end = other > end ? other : end;
    }
    if (!end) blind |= 1 << j;
    end = end ? end : held;
    reach = end > reach ? end : reach;
  }
  //% endif
  //% endif
