// Fragments of bytes (m16n8k32): integers with exact sums in int32, or 8-bit floats.
//% set type = "s8" if kind == "i8" else "u8"
//% set sign = "s32" if kind == "i8" else "u32"
namespace tracea {

//% set floats8 = {"f8": "e4m3", "f8e5": "e5m2"}
//% if kind in floats8
DEV void multiply_bytes(float (&d)[4], const u32 (&a)[4], const u32* b) {
  asm(
      "mma.sync.aligned.m16n8k32.row.col.f32.${floats8[kind]}.${floats8[right]}.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
//% else
DEV void multiply_bytes(i32 (&d)[4], const u32 (&a)[4], const u32* b) {
#if __CUDA_ARCH__ >= 800
  asm(
      "mma.sync.aligned.m16n8k32.row.col.s32.${type}.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else  // each half of the rows with each half of the depth
  UNROLL
  for (i32 e = 0; e < 4; e++)
    asm("mma.sync.aligned.m8n8k16.row.col.s32.${type}.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(d[e % 2 * 2]), "+r"(d[e % 2 * 2 + 1])
        : "r"(a[e]), "r"(b[e / 2]));
#endif
}
// Adds the four bytes of a word of x, or of w.
DEV i32 add_x_bytes(i32 sum, u32 four) {
  asm("dp4a.${sign}.${sign} %0, %1, %2, %0;" : "+r"(sum) : "r"(four), "r"(0x01010101u));
  return sum;
}
DEV i32 add_w_bytes(i32 sum, u32 four) {
  asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(four), "r"(0x01010101u));
  return sum;
}
//% endif

}  // namespace tracea
