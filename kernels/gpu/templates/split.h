namespace tracea {
//% if split

// Splits a float into its upper bits and the remainder.
DEV void split(u32 bits, u32& upper, u32& lower) {
  upper = tf32_bits(bits_float(bits));
  lower = tf32_bits(bits_float(bits) - bits_float(upper));
}
//% if kind == "tf32" and instructions is defined

// What is left of a number where products leave out its last 13 bits, as tf32.
DEV u32 tf32_rest(u32 bits) {
  return tf32_bits(bits_float(bits) - bits_float(bits & 0xffffe000u));
}
//% endif
//% endif

}  // namespace tracea
