// Where an item's heads lie, and the wait for what the kernel before has written.
  //% for side in "kv"
  //% if appends
  new_${side} += (i64)item * new_${side}_b + (i64)head * new_${side}_h;
  //% endif
  past_${side} += ${"" if page_size else "(i64)item * past_" ~ side ~ "_b + "}(i64)head * past_${side}_h;
  //% if appends
  ${side} += (i64)item * ${side}_b + (i64)head * ${side}_h;
  const bool writes_${side} = first_query == 0 && (past_${side} != ${side} || past_${side}_t != ${side}_t);
  //% endif
  //% endfor
  //% if rotated
  cos += (i64)item * cos_b;
  sin += (i64)item * sin_b;
  //% endif
  if (!settled) wait_for_grid();
  ${"const i64 place = *positions;" if appends}
