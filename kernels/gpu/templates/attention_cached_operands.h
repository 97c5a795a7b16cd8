    const ${element}* q, i32 q_b, i32 q_h, i32 q_s, i32 q_d,
    //% for side in "kv" if appends
    const ${element}* new_${side}, i32 new_${side}_b, i32 new_${side}_h, i32 new_${side}_s, i32 new_${side}_d,
    //% endfor
    //% for side in "kv"
    const ${cache}* past_${side}, i32 past_${side}_b, i32 past_${side}_h, i32 past_${side}_t, i32 past_${side}_d,
    //% endfor
    //% if rotated
    const ${element}* cos, i32 cos_b, i32 cos_s, i32 cos_d, const ${element}* sin, i32 sin_b, i32 sin_s, i32 sin_d,
    //% endif
    ${"const float* q_gamma, const float* k_gamma, float epsilon," if normed}
    ${"const i64* positions, i32 positions_b," if appends}
    //% for side in "kv" if appends
    ${cache}* ${side}, i32 ${side}_b, i32 ${side}_h, i32 ${side}_t, i32 ${side}_d,
    //% endfor
    //% if page_size
    const ${index_element}* table, i32 table_b, i32 table_n, i32 pages,
    //% endif
    //% if mask != "none"
    const ${mask_element}* mask, i32 mask_b, i32 mask_h, i32 mask_s, i32 mask_t, float fill,
    //% endif
    ${element}* y, i32 y_b, i32 y_h, i32 y_s, i32 y_d,
    divisor tiles, divisor heads, divisor group, i32 count, i32 rows, i32 held, i32 slots, float scale,
    float softcap, i32 settled
