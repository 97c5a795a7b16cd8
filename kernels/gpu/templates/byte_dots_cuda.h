// Selections of bytes, and sums of four products of bytes.
namespace tracea {

// Four of the eight bytes of two words, by their numbers in `which`, the first in its last digit.
template <u32 which>
DEV u32 picked(u32 a, u32 b) {
  u32 made;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(b), "n"(which));
  return made;
}
DEV void add_dot(i32& sum, u32 bytes, u32 signed_bytes) {
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(bytes), "r"(signed_bytes));
}

}  // namespace tracea
