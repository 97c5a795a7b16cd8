// Chunks of eight numbers that are stored in 8 bits (e4m3).
namespace tracea {

// Whether rows of 8-bit numbers start at multiples of eight bytes.
DEV bool in_eighths(const void* p, i32 step) { return ((u64)p | (u64)(i64)step) % 8 == 0; }
// Stores eight numbers of 16 bits in 8 bits.
template <typename T>
DEV void store_rounded(f8* to, chunk from) {
  const T* const x = (const T*)&from;
  const u32 low = f8_pair(number(x[0]), number(x[1])) | (u32)f8_pair(number(x[2]), number(x[3])) << 16;
  const u32 high = f8_pair(number(x[4]), number(x[5])) | (u32)f8_pair(number(x[6]), number(x[7])) << 16;
  *(u64*)to = low | (u64)high << 32;
}

}  // namespace tracea
