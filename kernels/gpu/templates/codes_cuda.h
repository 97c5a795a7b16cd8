// Differences of two pairs of fp16 numbers.
namespace tracea {

DEV u32 f16_differences(u32 a, u32 b) {
  u32 two;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(two) : "r"(a), "r"(b));
  return two;
}

}  // namespace tracea
