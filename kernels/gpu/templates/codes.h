//% include "codes_" ~ dialect ~ ".h"
// Codes of a block-quantized matrix.  A window is 64 steps of the depth of a column: four granules of 16
// steps, of which each of four lanes has four codes.  A lane's codes of a window are adjacent in memory.
namespace tracea {

// Codes 0 and 2 of a lane's four codes of a granule (`odd` = 0), or 1 and 3, in the halves of a word; the
// halves' other bits are those of `base`.
template <int WORDS>
DEV u32 two_codes(const u32 (&codes)[WORDS], i32 granule, i32 odd, u32 base = 0) {
  //% if bits == 8
  return masked_or(codes[granule] >> odd * 8, 0x00ff00ffu, base);
  //% elif bits == 4
  return masked_or(codes[granule / 2] >> (granule % 2 * 8 + odd * 4), 0x000f000fu, base);
  //% else
  const u32 own = codes[0] >> granule * 8 & 0xffu;
  return masked_or((own | own << 12) >> odd * 2, 0x00030003u, base);
  //% endif
}
// A code minus its zero point, exactly; `shift` is 2^23 plus the zero point.
DEV float low_code(u32 two, float shift) {
  return bits_float(0x4b000000u | (two & 0xffffu)) - shift;
}
DEV float high_code(u32 two, float shift) { return bits_float(0x4b000000u | two >> 16) - shift; }

}  // namespace tracea
