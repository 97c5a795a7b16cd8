// How matrix tiles are laid out for a block of 2 x 2 accumulators (Intel SDM, LDTILECFG, palette 1):
// sums in tiles 0 to 3, rows of A in 4 and 5, panels of B in 6 and 7.
struct alignas(64) TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

// gcc's loads of tiles do not say that they read memory: what they read is written before this.
INLINE void written() { __asm__ __volatile__("" ::: "memory"); }

// Rows of each tile; bytes of a row in 4, and in 5.  Zeroes all tiles.
INLINE void set_shapes(const int (&rows)[8], int a_bytes, int half_bytes) {
  TileShapes s = {};
  s.palette = 1;
  const int bytes[8] = {64, 64, 64, 64, a_bytes, half_bytes, 64, 64};
  for (int i = 0; i < 8; i++) s.rows[i] = (uint8_t)rows[i], s.bytes[i] = rows[i] ? bytes[i] : 0;
  _tile_loadconfig(&s);
}

// `upper` and `lower` rows of A, `depth` lanes of 32 bits along k.
INLINE void set_shapes(int upper, int lower, int depth) {
  set_shapes({upper, upper, lower, lower, upper, lower, depth, depth}, 4 * depth, 4 * depth);
}

// So many rows of A for both runs, the second there or not; 4 and 6 take 16 lanes of k, 5 and 7 half.
INLINE void set_halves(int rows, bool tall) {
  const int lower = tall ? rows : 0;
  set_shapes({rows, rows, lower, lower, rows, rows, 16, 8}, 64, 32);
}

// The sums of a block begin as they lie at `upper`, as zero where that is null; the lower ones lie
// `lower` numbers behind, the second panel's `panel` numbers, rows `stride` bytes apart.
template <bool TALL, bool WIDE>
INLINE void begin_sums(const float* upper, int64_t lower, int64_t panel, int64_t stride) {
  if (upper) {
    _tile_loadd(0, upper, stride);
    if (WIDE) _tile_loadd(1, upper + panel, stride);
    if (TALL) _tile_loadd(2, upper + lower, stride);
    if (TALL && WIDE) _tile_loadd(3, upper + lower + panel, stride);
  } else {
    _tile_zero(0);
    if (WIDE) _tile_zero(1);
    if (TALL) _tile_zero(2);
    if (TALL && WIDE) _tile_zero(3);
  }
}

template <bool TALL, bool WIDE>
INLINE void end_sums(float* upper, int64_t lower, int64_t panel, int64_t stride) {
  _tile_stored(0, upper, stride);
  if (WIDE) _tile_stored(1, upper + panel, stride);
  if (TALL) _tile_stored(2, upper + lower, stride);
  if (TALL && WIDE) _tile_stored(3, upper + lower + panel, stride);
}
