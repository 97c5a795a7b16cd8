// Packing: a matrix of any strides into zero-padded panels of 16 columns.
enum { ROWS_AHEAD = 8 };

// Rows of B lie together: short runs of memory, which hardware does not prefetch.
void pack_rows(const tracea_gemm_pack_tile* t) {
  const int64_t whole = t->columns / PANEL * PANEL;
  for (int64_t k = 0; k < t->k; k++) {
    const float* from = t->from + k * t->row;
    float* to = t->to + k * PANEL;
    int64_t c = 0;
    if (W > 1)
      for (; c < t->columns; c += 16) __builtin_prefetch(from + ROWS_AHEAD * t->row + c, 0, 2);
    for (c = 0; c < whole; c += PANEL, to += t->panel)
      UNROLL for (int j = 0; j < P; j++) store(to + j * W, load(from + c + j * W));
    if (c < t->columns)
      UNROLL for (int j = 0; j < P; j++)
        store(to + j * W, load(from + c + j * W, first(t->columns - c - j * W)));
  }
}

// Columns of B lie together.
void pack_columns(const tracea_gemm_pack_tile* t) {
  for (int64_t c = 0; c < t->columns; c += PANEL) {
    const int wide = (int)least(PANEL, t->columns - c);
    float* to = t->to + c / PANEL * t->panel;
    for (int64_t k = 0; k < t->k; k += PANEL)
      transpose(t->from + c * t->column + k, t->column, wide, (int)least(PANEL, t->k - k),
                to + k * PANEL);
  }
}

void pack_any(const tracea_gemm_pack_tile* t) {
  for (int64_t c = 0; c < (t->columns + PANEL - 1) / PANEL * PANEL; c++) {
    float* to = t->to + c / PANEL * t->panel + c % PANEL;
    for (int64_t k = 0; k < t->k; k++)
      to[k * PANEL] = c < t->columns ? t->from[k * t->row + c * t->column] : 0.0f;
  }
}
