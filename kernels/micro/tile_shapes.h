// How matrix tiles are laid out for a block of 2 x 2 accumulators (Intel SDM, LDTILECFG, palette 1):
// sums in tiles 0 to 3, rows of A in 4 and 5, panels of B in 6 and 7.
struct alignas(64) TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

// gcc's loads of tiles do not say that they read memory: what they read is written before this.
INLINE void written() { __asm__ __volatile__("" ::: "memory"); }

// `upper` and `lower` rows of A, `depth` lanes of 32 bits along k.  Zeroes all tiles.
INLINE void set_shapes(int upper, int lower, int depth) {
  TileShapes s = {};
  s.palette = 1;
  const int rows[8] = {upper, upper, lower, lower, upper, lower, depth, depth};
  for (int i = 0; i < 8; i++) {
    s.rows[i] = (uint8_t)rows[i];
    s.bytes[i] = rows[i] ? i == 4 || i == 5 ? 4 * depth : 64 : 0;
  }
  _tile_loadconfig(&s);
}
