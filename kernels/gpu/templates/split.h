namespace tracea {
//% if split

// Splits a float into its upper bits and the remainder.
DEV void split(u32 bits, u32& upper, u32& lower) {
  upper = tf32_bits(bits_float(bits));
  lower = tf32_bits(bits_float(bits) - bits_float(upper));
}
//% endif

}  // namespace tracea
