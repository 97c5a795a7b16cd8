// Pairs of elements as in matrix fragments, and chunks of 16 bytes.
namespace tracea {

struct alignas(16) chunk {
  u32 words[4];
};
template <typename T>
struct alignas(2 * sizeof(T)) pair {
  T at[2];
};
template <typename T, typename V>
DEV void set_pair(pair<T>& to, V a, V b) {
  assign(to.at[0], a);
  assign(to.at[1], b);
}
// Bytes of integers that they hold: those of a sum whose last bits are the integer's.
DEV u16 byte_pair(vf a, vf b) {
  return (u16)((float_bits(a + 0x1.8p23f) & 255u) | float_bits(b + 0x1.8p23f) << 8);
}
DEV void set_pair(pair<u8>& to, vf a, vf b) { *(u16*)&to = byte_pair(a, b); }
DEV void set_pair(pair<i8>& to, vf a, vf b) { *(u16*)&to = byte_pair(a, b); }
DEV void set_pair(pair<f16>& to, vf a, vf b) { *(u32*)&to = f16_pair(a, b); }
DEV void set_pair(pair<f8>& to, vf a, vf b) { *(u16*)&to = f8_pair(a, b); }
DEV void set_pair(pair<bf16>& to, vf a, vf b) { *(u32*)&to = bf16_pair(a, b); }
// Whether every 16-byte chunk of a tile's rows lies fully inside or fully outside the matrix.
template <i32 SIZE>
DEV bool in_chunks(const void* p, i32 step, i32 cols, bool last) {
  return ((u64)p | (u64)(i64)step * SIZE) % 16 == 0 && (!last || cols % (16 / SIZE) == 0);
}

}  // namespace tracea
