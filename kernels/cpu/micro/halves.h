// A vector as the sum of two in bf16 (ops/bf16.py).  Nothing lies below what is not finite.
INLINE void store_halves(uint16_t* upper, uint16_t* lower, vf v) {
  store_bf16(upper, v);
  const vf rounded = load_bf16(upper), rest = v - rounded;
  store_bf16(lower, select(is_nan(rounded - rounded), set1(0.0f), rest));
}
