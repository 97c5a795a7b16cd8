// A bit select, and differences of two pairs of fp16 numbers.
namespace tracea {

DEV u32 masked_or(u32 v, u32 mask, u32 bits) { return v & mask | bits; }

DEV u32 f16_differences(u32 a, u32 b) {
  float x[2], y[2];
  f16_numbers(a, x[0], x[1]);
  f16_numbers(b, y[0], y[1]);
  return f16_pair(x[0] - y[0], x[1] - y[1]);
}

}  // namespace tracea
