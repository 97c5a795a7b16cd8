// Matrix tiles in ordinary memory, for processors without them (Intel SDM: TILELOADD, TDPBSSD, TDPBF16PS).
// Shapes that an instruction would refuse end the process.
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace emulated {

struct Tiles {
  uint16_t bytes[8];
  uint8_t rows[8];
  alignas(64) uint8_t data[8][16][64];
};
static thread_local Tiles tiles;

static inline void require(bool fits) {
  if (!fits) __builtin_trap();
}
static inline void load_config(const void* config) {
  const uint8_t* words = static_cast<const uint8_t*>(config);
  require(words[0] == 1);
  memset(&tiles, 0, sizeof tiles);
  memcpy(tiles.bytes, words + 16, sizeof tiles.bytes);
  memcpy(tiles.rows, words + 48, sizeof tiles.rows);
  for (int t = 0; t < 8; t++) require(tiles.rows[t] <= 16 && tiles.bytes[t] <= 64 && tiles.bytes[t] % 4 == 0);
}
static inline void zero(int t) {
  require(tiles.rows[t]);
  memset(tiles.data[t], 0, sizeof tiles.data[t]);
}
static inline void load(int t, const void* from, int64_t stride) {
  zero(t);
  for (int r = 0; r < tiles.rows[t]; r++)
    memcpy(tiles.data[t][r], static_cast<const uint8_t*>(from) + r * stride, tiles.bytes[t]);
}
static inline void store(int t, void* to, int64_t stride) {
  require(tiles.rows[t]);
  for (int r = 0; r < tiles.rows[t]; r++)
    memcpy(static_cast<uint8_t*>(to) + r * stride, tiles.data[t][r], tiles.bytes[t]);
}
// d += a b of elements T and U, as many as fill a lane of 32 bits, summed as S.
template <class S, class T, class U, class NUMBER>
static inline void multiply(int d, int a, int b, NUMBER number) {
  enum { EACH = 4 / sizeof(T) };
  require(tiles.rows[d] == tiles.rows[a] && tiles.bytes[d] == tiles.bytes[b] &&
          tiles.bytes[a] == 4 * tiles.rows[b]);
  for (int m = 0; m < tiles.rows[d]; m++)
    for (int k = 0; k < tiles.rows[b]; k++) {
      S* sums = reinterpret_cast<S*>(tiles.data[d][m]);
      const T* left = reinterpret_cast<const T*>(tiles.data[a][m]) + EACH * k;
      const U* right = reinterpret_cast<const U*>(tiles.data[b][k]);
      for (int n = 0; n < tiles.bytes[d] / 4; n++)
        for (int e = 0; e < EACH; e++) sums[n] += number(left[e]) * number(right[EACH * n + e]);
    }
}
static inline float of_bf16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float number;
  memcpy(&number, &word, sizeof number);
  return number;
}
static inline int32_t whole(int32_t v) { return v; }

}  // namespace emulated

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbusd
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated::load_config
#define _tile_release() ((void)0)
#define _tile_zero(t) emulated::zero(t)
#define _tile_loadd(t, from, stride) emulated::load(t, from, stride)
#define _tile_stored(t, to, stride) emulated::store(t, to, stride)
#define _tile_dpbssd(d, a, b) emulated::multiply<int32_t, int8_t, int8_t>(d, a, b, emulated::whole)
#define _tile_dpbusd(d, a, b) emulated::multiply<int32_t, uint8_t, int8_t>(d, a, b, emulated::whole)
#define _tile_dpbf16ps(d, a, b) emulated::multiply<float, uint16_t, uint16_t>(d, a, b, emulated::of_bf16)
