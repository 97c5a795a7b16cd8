// Convolutions of bytes by 3 x 3 taps with a quarter of the products, and exact: F(4 x 4, 3 x 3)
// (Lavin and Gray, arXiv:1509.09308) at the points 0, 1, -1, 2, -1/2 and infinity, in integers.
//
// Transforms of bytes stay within 98 * 255 = 24990.  Those of filters are made 30 times as large in
// each direction, which leaves no fraction, and stay within 15 * 15 * 128 = 28800: both are numbers
// of 16 bits.  The transform back gives 900 times the sum, modulo 2^32; 225 has an inverse there, and
// four times the sum fits 32 bits.  With usual points, 576 times the sum would leave 26 bits of it.
//
// Numbers of 16 bits lie in pairs of channels, as the bytes of a four give them: the first and third
// of 16 fours, then the second and fourth.
typedef int16_t halves __attribute__((vector_size(64)));
// WIDE: panels of filters that are finished at once; GROUP: points whose filters lie in L1 at once.
enum { POINTS = 6, OUT = 4, WIDE = 2, BLOCK = 64, PAIRS = 32, TALLEST = 16, GROUP = 12 };

struct ByteTransforms {
  static INLINE_MEMBER void of_image(const halves (&d)[POINTS], halves (&v)[POINTS]) {
    const halves e = d[4] - d[2], f = d[3] - d[1], three_e = e + e + e, three_f = f + f + f;
    const halves sum = d[2] + d[3], difference = d[2] - d[3];
    const halves zero = d[0] - d[2] + e, ends = d[5] - d[3] - f, up = e + f, down = e - f;
    v[0] = zero + zero - three_f;
    v[1] = up + up - sum - sum - sum;
    v[2] = down + down + difference + difference + difference;
    v[3] = e + e + f;
    v[4] = e - f - f;
    v[5] = ends + ends - three_e;
  }
  static INLINE_MEMBER void of_filter(const halves (&g)[3], halves (&u)[POINTS]) {
    const halves outer = g[0] + g[2], plus = outer + g[1], minus = outer - g[1];
    const halves twice = g[1] + g[1];
    u[0] = (g[0] << 4) - g[0];
    u[1] = -(plus << 2) - plus;
    u[2] = (minus << 2) + minus;
    u[3] = g[0] + twice + (g[2] << 2);
    u[4] = twice - (g[0] << 2) - g[2];
    u[5] = (g[2] << 4) - g[2];
  }
  static INLINE_MEMBER void back(const vu (&m)[POINTS], vu (&y)[OUT]) {
    const vu sum = m[1] + m[2], difference = m[1] - m[2], twice = m[3] + m[3];
    y[0] = m[0] + sum + m[3] + (m[4] << 3);
    y[1] = difference + twice - (m[4] << 2);
    y[2] = sum + twice + twice + m[4] + m[4];
    y[3] = difference + (m[3] << 3) - m[4] + m[5];
  }
};

INLINE halves even_bytes(__m512i x) { return (halves)_mm512_and_si512(x, _mm512_set1_epi32(0x00ff00ff)); }
INLINE halves odd_bytes(__m512i x) { return (halves)_mm512_srli_epi16(x, 8); }

// Numbers between two points of 16 transformed filters, of a block's pairs, and of products: a few more
// than there are, so that those of all points are not in the same set of a cache.
enum { FILTER_POINT = PAIRS * W + W };
INLINE int64_t point_of(int64_t tiles) { return tiles * PAIRS + W; }
static_assert(PAIRS == WIDE * W, "pairs and products of a tile are equally many");

// Two rows of points of the filters' transforms along columns: 0 and 5, 1 and 2, or 3 and 4.
template <int ROWS_OF>
INLINE void filter_rows(const halves (&g)[3], halves (&u)[2]) {
  const halves twice = g[1] + g[1];
  if (ROWS_OF == 0) u[0] = g[0] * 15, u[1] = g[2] * 15;
  if (ROWS_OF == 1) u[0] = (g[0] + g[2] + g[1]) * -5, u[1] = (g[0] + g[2] - g[1]) * 5;
  if (ROWS_OF == 2) u[0] = g[0] + twice + (g[2] << 2), u[1] = twice - (g[0] << 2) - g[2];
}

// 16 filters in 64 channels: 12 points of theirs, from bytes of which two taps lie `taps` apart.
template <int ROWS_OF>
void transform_filters(const float* from, int64_t taps, int32_t* to) {
  for (int four = 0; four < BLOCK / 4; four++, from += PANEL, to += W) {
    halves rows[2][2][3];  // by parity, row and column
    UNROLL for (int s = 0; s < 3; s++) {
      halves x[3];
      UNROLL for (int r = 0; r < 3; r++) x[r] = (halves)_mm512_loadu_si512(from + (3 * r + s) * taps);
      UNROLL for (int odd = 0; odd < 2; odd++) {
        halves g[3], u[2];
        UNROLL for (int r = 0; r < 3; r++) g[r] = odd ? x[r] >> 8 : (x[r] << 8) >> 8;
        filter_rows<ROWS_OF>(g, u);
        rows[odd][0][s] = u[0], rows[odd][1][s] = u[1];
      }
    }
    UNROLL for (int odd = 0; odd < 2; odd++) UNROLL for (int i = 0; i < 2; i++) {
      halves u[POINTS];
      ByteTransforms::of_filter(rows[odd][i], u);
      UNROLL for (int j = 0; j < POINTS; j++)
        _mm512_storeu_si512(to + (i * POINTS + j) * FILTER_POINT + odd * (BLOCK / 4) * W, (__m512i)u[j]);
    }
  }
}

// A column of the windows of a row of tiles: its transforms along the column, of both kinds of pairs.
INLINE void transform_column(const tracea_winograd_image_tile* t, int64_t row, int64_t column,
                             int64_t channel, halves (&to)[2][POINTS]) {
  halves d[2][POINTS];
  const __m512i outside = _mm512_set1_epi8((char)t->padding), flip = _mm512_set1_epi32(t->flip);
  const bool in_line = column >= 0 && column < t->width;
  const uint8_t* from = t->x + row * t->line + column * t->pixel + channel;
  UNROLL for (int i = 0; i < POINTS; i++) {
    const bool inside = in_line && row + i >= 0 && row + i < t->height;
    const __m512i bytes = _mm512_xor_si512(inside ? _mm512_loadu_si512(from + i * t->line) : outside, flip);
    d[0][i] = even_bytes(bytes), d[1][i] = odd_bytes(bytes);
  }
  UNROLL for (int odd = 0; odd < 2; odd++) ByteTransforms::of_image(d[odd], to[odd]);
}

// The windows of all tiles, 64 channels at a time.  Two columns of a window are those of the next one.
INLINE void transform_image(const tracea_winograd_image_tile* t) {
  const int64_t point = point_of(t->tiles);
  int32_t* to = t->to;
  for (int64_t channel = 0; channel < t->channels; channel += BLOCK, to += POINTS * POINTS * point) {
    halves columns[8][2][POINTS];
    int64_t line = t->first / t->across, at = t->first % t->across;
    for (int64_t tile = 0; tile < t->tiles; tile++) {
      const int64_t row = line * OUT - t->top, column = at * OUT - t->left;
      for (int i = tile && at ? 2 : 0; i < POINTS; i++)
        transform_column(t, row, column + i, channel, columns[(at * OUT + i) % 8]);
      for (int i = 0; i < POINTS; i++) UNROLL for (int odd = 0; odd < 2; odd++) {
        halves d[POINTS], made[POINTS];
        UNROLL for (int s = 0; s < POINTS; s++) d[s] = columns[(at * OUT + s) % 8][odd][i];
        ByteTransforms::of_image(d, made);
        UNROLL for (int j = 0; j < POINTS; j++)
          _mm512_storeu_si512(to + (i * POINTS + j) * point + tile * PAIRS + odd * W, (__m512i)made[j]);
      }
      if (++at == t->across) at = 0, line++;
    }
  }
}

INLINE vi dot_pair(const int32_t* a, vi b, vi c) {
  //% if isa == "avx512"
  return (vi)_mm512_add_epi32((__m512i)c, _mm512_madd_epi16((__m512i)b, _mm512_set1_epi32(*a)));
  //% else
  return (vi)_mm512_dpwssd_epi32((__m512i)c, (__m512i)b, _mm512_set1_epi32(*a));
  //% endif
}

// The products of one point: MR tiles by 16 filters in 64 channels, added to those of other channels.
template <int MR>
void point_products(const int32_t* a, const int32_t* b, bool adds, int32_t* to) {
  vi c[MR];
  UNROLL for (int i = 0; i < MR; i++) c[i] = adds ? (vi)_mm512_loadu_si512(to + i * PAIRS) : vi{};
  _Pragma("GCC unroll 2") for (int k = 0; k < PAIRS; k++, a++, b += W) {
    const vi w = (vi)_mm512_loadu_si512(b);
    UNROLL for (int i = 0; i < MR; i++) c[i] = dot_pair(a + i * PAIRS, w, c[i]);
  }
  UNROLL for (int i = 0; i < MR; i++) _mm512_storeu_si512(to + i * PAIRS, (__m512i)c[i]);
}
constexpr decltype(&point_products<1>) POINT_PRODUCTS[TALLEST] = {
    //% for m in range(1, 17)
    point_products<${m}>,
    //% endfor
};

// Asks for a share of the bytes of 16 filters in 64 channels, which are transformed next.
INLINE void ask_for_filters(const float* w, int64_t taps, int share) {
  enum { LINES = 9 * (BLOCK / 4) / (POINTS * POINTS) };
  UNROLL for (int i = share * LINES; i < (share + 1) * LINES; i++)
    __builtin_prefetch(w + i / (BLOCK / 4) * taps + i % (BLOCK / 4) * PANEL, 0, 3);
}

// All tiles by 16 filters, in two rows of points and 64 channels.
template <int ROWS_OF>
INLINE void multiply_points(const tracea_winograd_bytes_tile* t, const float* w, int64_t block, int32_t* to) {
  const int64_t taps = t->channels / 4 * PANEL, point = point_of(t->tiles);
  int32_t* filters = t->memory;
  transform_filters<ROWS_OF>(w + block * (BLOCK / 4) * PANEL, taps, filters);
  const int32_t* pairs = t->pairs + block * POINTS * POINTS * point;
  const int64_t blocks = (t->tiles + TALLEST - 1) / TALLEST;
  const bool more = block + 1 < t->channels / BLOCK;  // channels of these filters
  const float* next = more ? w + (block + 1) * (BLOCK / 4) * PANEL : w + t->w_panel;
  for (int i = 0; i < GROUP; i++, filters += FILTER_POINT) {
    ask_for_filters(next, taps, ROWS_OF * GROUP + i);
    const int row = ROWS_OF == 0 ? i / POINTS * 5 : 2 * ROWS_OF - 1 + i / POINTS;
    const int64_t at = (row * POINTS + i % POINTS) * point;
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t first = t->tiles * b / blocks, end = t->tiles * (b + 1) / blocks;
      POINT_PRODUCTS[end - first - 1](pairs + at + first * PAIRS, filters, block > 0,
                                      to + at + first * PAIRS);
    }
  }
}

// The sums of a tile of outputs in 16 filters, exact, less what the zero point adds to them.
INLINE void transform_back(const int32_t* from, int64_t point, vi less, vi (&to)[OUT * OUT][WIDE], int v) {
  constexpr uint32_t INVERSE = 2271560481u;  // of 225, modulo 2^32
  vu rows[OUT][POINTS];
  UNROLL for (int j = 0; j < POINTS; j++) {
    vu m[POINTS], y[OUT];
    UNROLL for (int i = 0; i < POINTS; i++) m[i] = (vu)_mm512_loadu_si512(from + (i * POINTS + j) * point);
    ByteTransforms::back(m, y);
    UNROLL for (int r = 0; r < OUT; r++) rows[r][j] = y[r];
  }
  UNROLL for (int r = 0; r < OUT; r++) {
    vu y[OUT];
    ByteTransforms::back(rows[r], y);
    UNROLL for (int s = 0; s < OUT; s++)
      to[r * OUT + s][v] = ((vi)(y[s] * (vu)set1_int((int32_t)INVERSE)) >> 2) - less;
  }
}

// 32 filters of all tiles: as bytes, or else their sums.
template <bool ROUNDS>
INLINE void finish_tiles(const tracea_winograd_bytes_tile* t, const int32_t* from, int64_t filter) {
  const Rounding<ROUNDS ? WIDE : 0> rounding(t, filter, first(W), true);
  const int64_t point = point_of(t->tiles);
  vi sums[OUT * OUT][WIDE], less[WIDE];
  UNROLL for (int v = 0; v < WIDE; v++)
    less[v] = (vi)((vu)load_ints(t->w + (filter / W + v) * t->w_panel + 9 * t->channels / 4 * PANEL) *
                   (vu)set1_int(t->zero));
  int64_t line = t->first / t->across, at = t->first % t->across;
  float* c = t->sums + filter;
  for (int64_t tile = 0; tile < t->tiles; tile++, from += WIDE * W) {
    for (int v = 0; v < WIDE; v++) transform_back(from + v * W, point, less[v], sums, v);
    if (!ROUNDS)
      for (int i = 0; i < OUT * OUT; i++, c += t->filters)
        UNROLL for (int v = 0; v < WIDE; v++) store(c + v * W, to_float(sums[i][v]));
    for (int64_t r = 0; ROUNDS && r < OUT && line * OUT + r < t->rows; r++)
      for (int64_t s = 0; s < OUT && at * OUT + s < t->columns; s++) {
        const int64_t pixel = (line * OUT + r) * t->columns + at * OUT + s;
        uint8_t* to = t->bytes + pixel * t->bytes_row + filter;
        if (rounding.fit) rounding.store_fitting(to, sums[r * OUT + s]);
        else rounding.store_row(to, sums[r * OUT + s], first(W), true);
      }
    if (++at == t->across) at = 0, line++;
  }
}

INLINE void multiply_tiles(const tracea_winograd_bytes_tile* t) {
  int32_t* products = t->memory + GROUP * FILTER_POINT;
  for (int64_t filter = 0; filter < t->filters; filter += WIDE * W) {
    for (int v = 0; v < WIDE; v++) {
      const float* w = t->w + (filter / W + v) * t->w_panel;
      for (int64_t block = 0; block < t->channels / BLOCK; block++) {
        multiply_points<0>(t, w, block, products + v * W);
        multiply_points<1>(t, w, block, products + v * W);
        multiply_points<2>(t, w, block, products + v * W);
      }
    }
    if (t->bytes) finish_tiles<true>(t, products, filter);
    else finish_tiles<false>(t, products, filter);
  }
}
