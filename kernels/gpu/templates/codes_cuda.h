// A bit select in one instruction, and differences of two pairs of fp16 numbers.
namespace tracea {

DEV u32 masked_or(u32 v, u32 mask, u32 bits) {  // v & mask | bits
  u32 found;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(found) : "r"(v), "r"(mask), "r"(bits));
  return found;
}

DEV u32 f16_differences(u32 a, u32 b) {
  u32 two;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(two) : "r"(a), "r"(b));
  return two;
}

}  // namespace tracea
