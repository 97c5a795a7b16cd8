// Elementwise functions over any vector type.  Bounds are the largest found over dense grids of
// float32 arguments against float64; every function maps NaN to NaN.

// E: poly(x, c0, c1, ...) = c0 + x * (c1 + ...), fused where the instruction set can.
INLINE vf poly(vf, float c) { return set1(c); }
template <typename... Rest>
INLINE vf poly(vf x, float c, Rest... rest) {
  return fma(poly(x, rest...), x, set1(c));
}
//% if "exp" in needs

// n = round(x / ln 2) without a conversion: the sum's low bits fall off.
INLINE vf round_exponent(vf x) {
  const vf magic = set1(12582912.0f);
  return fma(x, set1(1.44269504f), magic) - magic;
}

// e^x, 1.2 ulp; without AVX-512 results below 2.4e-38 are 0.
INLINE vf v_exp(vf x) {
  x = max(set1(EXP_LOW), min(set1(89.0f), x));
  const vf n = round_exponent(x);
  const vf r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), x));
  return scale(poly(r, 1.0f, 1.0f, 0.5f, 0.16666518f, 0.041666206f, 0.0083688879f, 0.0013950488f),
               n);
}
//% endif
//% if "exp_neg" in needs

// e^x for x <= 0 with fewer steps: 1.5e-7 absolute; of the result 2.4e-7 for x > -20 (without
// fused multiply-add 1.3e-6); 0 for -inf.
INLINE vf v_exp_neg(vf x) {
  x = max(set1(EXP_LOW), x);
  const vf magic = set1(12582912.0f);
  const vf n = fma(x, set1(1.44269504f), magic) - magic;
  const vf r = fma(n, set1(-0.69314718f), x);
  return scale(poly(r, 1.0f, 1.0f, 0.49999148f, 0.16666457f, 0.041898314f, 0.0083746463f), n);
}
//% endif
//% if "log" in needs

// ln x, 1.1 ulp; -inf for zero, NaN below.
INLINE vf v_log(vf x) {
  const vm small = less(x, set1(1.17549435e-38f));  // subnormal: scaled up by 2^23
  const vf y = select(small, x * set1(8388608.0f), x);
  const vi e = (bits(y) - 0x3f3504f3) >> 23;  // y = m * 2^e, m in [sqrt(1/2), sqrt(2))
  const vf n = to_float(e) - select(small, set1(23.0f), set1(0.0f));
  const vf f = from_bits(bits(y) - (e << 23)) - set1(1.0f);
  vf r = poly(f, 0.3333391f, -0.25001338f, 0.1996306f, -0.16577573f, 0.14914791f, -0.14267601f,
              0.087005146f);
  r = fma(n, set1(-2.12194440e-4f), r * f * f * f);
  r = fma(n, set1(0.693359375f), fma(f * f, set1(-0.5f), r) + f);
  const vf infinity = set1(__builtin_inff());
  r = select(less(x, infinity), r, x);  // NaN and infinity are their own logarithms
  r = select(less(x, set1(0.0f)), set1(__builtin_nanf("")), r);
  return select(less(set1(0.0f), abs(x)), r, select(is_nan(x), x, set1(0.0f) - infinity));
}
//% endif
//% if "erf" in needs

// erf x = x P(x^2) / Q(x^2) up to 3.92, where it rounds to 1: 2.3e-7 absolute, 4.3 ulp (without
// fused multiply-add 3.2e-7, 5.3 ulp).
INLINE vf v_erf(vf x) {
  x = max(set1(-3.92f), min(set1(3.92f), x));
  const vf t = x * x;
  const vf p = poly(t, 1.749366f, 0.30571717f, 0.083156988f, 0.0062882523f, 0.00045157218f,
                    3.09299e-06f);
  const vf q = poly(t, 1.5503355f, 0.78770924f, 0.18124731f, 0.024105331f, 0.0019113261f,
                    5.8692545e-05f);
  return max(set1(-1.0f), min(set1(1.0f), x * p / q));
}
//% endif
//% if "tanh" in needs

// tanh x = x P(x^2) / Q(x^2) up to 9.02, where it rounds to 1: 2.5e-7 absolute, 4.2 ulp (without
// fused multiply-add 3.4e-7, 5.7 ulp).
INLINE vf v_tanh(vf x) {
  x = max(set1(-9.02f), min(set1(9.02f), x));
  const vf t = x * x;
  const vf p = poly(t, 1.0738255f, 0.1436748f, 0.0037519804f, 2.2103019e-05f, 1.4302293e-08f);
  const vf q = poly(t, 1.0738255f, 0.50161642f, 0.027781008f, 0.0003525464f, 8.335027e-07f);
  return max(set1(-1.0f), min(set1(1.0f), x * p / q));
}
//% endif
//% if "sigmoid" in needs

// 1 / (1 + e^-x), 1.7e-7 absolute: 1/2 + z P(z^2) / Q(z^2) up to 18, the rational approximation
// (and its rounding) that ONNX Runtime uses, so that probabilities near 0 come out the same.
INLINE vf v_sigmoid(vf x) {
  const vf z = max(set1(-18.0f), min(set1(18.0f), x));
  const vf t = z * z;
  const vf p = poly(t, 2.48287947e-01f, 8.51377133e-03f, 6.08574865e-05f, 1.15627324e-07f,
                    4.37031013e-11f);
  const vf q = poly(t, 9.93151921e-01f, 1.16817657e-01f, 1.70198817e-03f, 6.29106785e-06f,
                    5.76102137e-09f, 6.10247390e-13f);
  return max(set1(0.0f), min(set1(1.0f), z * p / q + set1(0.5f)));
}
//% endif
//% if "silu" in needs

// x / (1 + e^-x), 2 ulp; NaN at -inf, as 0 * inf is.
INLINE vf v_silu(vf x) { return x / (set1(1.0f) + v_exp(set1(0.0f) - x)); }
//% endif
//% if "gelu" in needs

// x Phi(x), Phi(x) = 1/2 + x P(x^2) / Q(x^2) up to 5.5437, where it rounds to 0 or 1:
// 2.4 ulp for x > 0, 7e-7 absolute for x < 0 (without fused multiply-add 2.8 and 9e-7);
// exactly 0 below -5.5437; NaN at -inf, as 0 * inf is.
INLINE vf v_gelu(vf x) {
  const vf z = max(set1(-5.5437f), min(set1(5.5437f), x));
  const vf t = z * z;
  const vf p = poly(t, 0.521693528f, 0.0459935926f, 0.00622725859f, 0.000239073415f,
                    8.49572552e-06f, 2.87702981e-08f);
  const vf q = poly(t, 1.30769229f, 0.333234727f, 0.0384608172f, 0.00256698509f,
                    0.000102527018f, 1.55153327e-06f);
  return x * max(set1(0.0f), z * p / q + set1(0.5f));
}
//% endif
//% if "gelu_tanh" in needs

// x (1 + tanh u) / 2 = x / (1 + e^-2u) with u = sqrt(2/pi) (x + 0.044715 x^3): 1.5 ulp for
// x > 0, 4e-8 absolute below.
INLINE vf v_gelu_tanh(vf x) {
  const vf u = x * fma(x * x, set1(-0.0713548163f), set1(-1.59576912f));
  return x / (set1(1.0f) + v_exp(u));
}
//% endif
//% if "nan_max" in needs

// Maximum and minimum that are NaN when either argument is.
INLINE vf v_max(vf a, vf b) { return select(is_nan(a), a, max(a, b)); }
INLINE vf v_min(vf a, vf b) { return select(is_nan(a), a, min(a, b)); }
//% endif
