// Selections of bytes, and sums of four products of bytes.
namespace tracea {

// Four of the eight bytes of two words, by their numbers in `which`, the first in its last digit.
template <u32 which>
DEV u32 picked(u32 a, u32 b) {
  u32 made = 0;
  for (i32 i = 0; i < 4; i++) {
    const u32 own = which >> i * 4 & 7u;
    made |= ((own < 4 ? a : b) >> own % 4 * 8 & 255u) << i * 8;
  }
  return made;
}
DEV void add_dot(i32& sum, u32 bytes, u32 signed_bytes) {
  for (i32 i = 0; i < 4; i++) sum += (i32)(bytes >> i * 8 & 255u) * (i32)(i8)(signed_bytes >> i * 8 & 255u);
}

}  // namespace tracea
