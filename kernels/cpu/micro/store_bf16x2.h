// Stores a vector as hi + lo terms in bf16 (ops/bf16.py); the lo term of a non-finite value is 0.
INLINE void store_bf16x2(uint16_t* upper, uint16_t* lower, vf v) {
  store_bf16(upper, v);
  const vf rounded = load_bf16(upper), rest = v - rounded;
  store_bf16(lower, select(is_nan(rounded - rounded), set1(0.0f), rest));
}
