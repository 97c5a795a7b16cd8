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
//% if "exp_fast" in needs and vectors_of != "avx512"

INLINE vf v_exp_fast(vf x) { return v_exp_neg(x); }
//% endif
//% if "mantissa" in needs

// m in [sqrt(1/2), sqrt(2)) and n with x = m * 2^n, for positive finite x.
INLINE vf mantissa(vf x, vf& n) {
  const vm small = less(x, set1(1.17549435e-38f));  // subnormal: scaled up by 2^23
  const vf y = select(small, x * set1(8388608.0f), x);
  const vi e = (bits(y) - 0x3f3504f3) >> 23;
  n = to_float(e) - select(small, set1(23.0f), set1(0.0f));
  return from_bits((vi)((vu)bits(y) - ((vu)e << 23)));
}
//% endif
//% if "log1" in needs

// ln (1 + f) + n ln 2 for 1 + f in [sqrt(1/2), sqrt(2)).
INLINE vf log1(vf f, vf n) {
  vf r = poly(f, 0.3333391f, -0.25001338f, 0.1996306f, -0.16577573f, 0.14914791f, -0.14267601f,
              0.087005146f);
  r = fma(n, set1(-2.12194440e-4f), r * f * f * f);
  return fma(n, set1(0.693359375f), fma(f * f, set1(-0.5f), r) + f);
}
//% endif
//% if "log" in needs

// ln x, 1.1 ulp; -inf for zero, NaN below.
INLINE vf v_log(vf x) {
  vf n;
  const vf m = mantissa(x, n);
  const vf infinity = set1(__builtin_inff());
  vf r = log1(m - set1(1.0f), n);
  r = select(less(x, infinity), r, x);  // NaN and infinity are their own logarithms
  r = select(less(x, set1(0.0f)), set1(__builtin_nanf("")), r);
  return select(less(set1(0.0f), abs(x)), r, select(is_nan(x), x, set1(0.0f) - infinity));
}
//% endif
//% if "erf" in needs

// erf x = x c + x P(x^2) / Q(x^2) up to 3.92, where it rounds to 1.  With c = erf(3.92) / 3.92 the
// quotient fades where results near 1 leave least room for its rounding.
INLINE vf v_erf(vf x) {
  x = max(set1(-3.92f), min(set1(3.92f), x));
  const vf t = x * x;
  const vf p = poly(t, 1.3634069f, 0.0968570933f, 0.0365538746f, -0.000114762646f,
                    -2.68358235e-05f, -1.21023695e-05f);
  const vf q = poly(t, 1.56611431f, 0.787892401f, 0.179411799f, 0.0235776566f, 0.00183345401f,
                    5.92493525e-05f);
  return max(set1(-1.0f), min(set1(1.0f), fma(x, set1(0.2578125f), x * p / q)));
}
//% endif
//% if "tanh" in needs or "sigmoid" in needs

struct Ratio {  // several of them share a division
  vf top, under;
};
//% endif
//% if "tanh" in needs

// tanh x = E / (E + 2), E = e^2x - 1 = 2^n (e^2h - 1) + (2^n - 1) with h = x - n ln 2 / 2: no
// digit cancels near zero, where n is 0.
INLINE Ratio tanh_ratio(vf x) {
  x = max(set1(-10.0f), min(set1(10.0f), x));
  const vf magic = set1(12582912.0f), one = set1(1.0f);
  const vf shifted = fma(x, set1(2.88539008f), magic);  // its low bits are n
  const vf h = fma(shifted - magic, set1(-0.346573590f), x);
  const vf p = poly(h, 1.99999988f, 1.33332193f, 0.666676581f, 0.267812312f, 0.0888449401f);
  const vf power = from_bits((vi)(((vu)bits(shifted) << 23) + 0x3f800000));
  const vf e = fma(power, fma(h * h, p, h + h), power - one);
  return {e, e + set1(2.0f)};
}
INLINE vf v_tanh(vf x) {
  const Ratio r = tanh_ratio(x);
  return r.top / r.under;
}
//% endif
//% if "sigmoid" in needs

// 1 / (1 + e^-x), 1.7e-7 absolute: 1/2 + z P(z^2) / Q(z^2) up to 18, the rational approximation
// (and its rounding) that ONNX Runtime uses, so that probabilities near 0 come out the same.
INLINE Ratio sigmoid_ratio(vf x) {  // less 1/2
  const vf z = max(set1(-18.0f), min(set1(18.0f), x));
  const vf t = z * z;
  const vf p = poly(t, 2.48287947e-01f, 8.51377133e-03f, 6.08574865e-05f, 1.15627324e-07f,
                    4.37031013e-11f);
  const vf q = poly(t, 9.93151921e-01f, 1.16817657e-01f, 1.70198817e-03f, 6.29106785e-06f,
                    5.76102137e-09f, 6.10247390e-13f);
  return {z * p, q};
}
INLINE vf v_sigmoid(vf x) {
  const Ratio r = sigmoid_ratio(x);
  return max(set1(0.0f), min(set1(1.0f), r.top / r.under + set1(0.5f)));
}
//% endif
//% if "gate" in needs and vectors_of != "avx512"

// x / (1 + e^-w), 2 ulp for w = x; NaN where both are -inf, as 0 * inf is.
INLINE vf gated(vf x, vf w) { return x / (set1(1.0f) + v_exp(set1(0.0f) - w)); }
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
  return gated(x, x * fma(x * x, set1(0.0713548163f), set1(1.59576912f)));
}
//% endif
//% if "gate_fast" in needs

// What follows is for results in bf16, which rounding puts off by up to 2^-8 anyway.
//% if vectors_of != "avx512"
// x / (1 + e^-w), within 2^-11 of it.
INLINE vf gated_fast(vf x, vf w) {
  const vf t = in_range(w * set1(-1.44269504f));
  const vf p = poly(fraction(t), 0.9999252f, 0.6958335f, 0.2260672f, 0.07802449f);
  return x * reciprocal_fast(set1(1.0f) + times_power(p, t));
}
//% endif
INLINE vf v_gelu_tanh_fast(vf x) {
  return gated_fast(x, x * fma(x * x, set1(0.0713548163f), set1(1.59576912f)));
}
//% endif
//% if "gelu_fast" in needs

// x Phi(x), Phi(x) = 1/2 + x P(x^2) up to 3.9: 2e-4 absolute; 0 below -3.9.
INLINE vf v_gelu_fast(vf x) {
  const vf z = max(set1(-3.9f), min(set1(3.9f), x));
  const vf p = poly(z * z, 0.398562342f, -0.0653676167f, 0.00910012983f, -0.000877826125f,
                    5.43196147e-05f, -1.91294112e-06f, 2.8872698e-08f);
  return x * max(set1(0.0f), fma(z, p, set1(0.499999f)));
}
//% endif
//% if "nan_max" in needs

// Maximum and minimum that are NaN when either argument is.
INLINE vf v_max(vf a, vf b) { return select(is_nan(a), a, max(a, b)); }
INLINE vf v_min(vf a, vf b) { return select(is_nan(a), a, min(a, b)); }
//% endif
//% if "elu" in needs

// x, below zero alpha (e^x - 1): alpha * 1.2e-7 absolute.  The difference is rounded as in ONNX
// Runtime, so that results near 0 come out the same.
INLINE vf v_elu(vf x, vf alpha) {
  return select(less(x, set1(0.0f)), alpha * (v_exp(x) - set1(1.0f)), x);
}
INLINE vf v_celu(vf x, vf alpha) {
  const vf y = alpha * (v_exp(x / alpha) - set1(1.0f));
  return max(set1(0.0f), x) + min(set1(0.0f), y);
}
//% endif
//% if "softplus" in needs

// ln (1 + e^x), 2 ulp; without AVX-512 results below 2.4e-38 are 0.
INLINE vf v_softplus(vf x) {
  const vf e = v_exp(set1(0.0f) - abs(x));
  const vm large = less(set1(0.41421354f), e);
  const vf f = select(large, fma(e, set1(0.5f), set1(-0.5f)), e);
  return max(set1(0.0f), x) + log1(f, select(large, set1(1.0f), set1(0.0f)));
}
//% endif
//% if "mish" in needs

// x tanh(ln(1 + e^x)) = x t / (t + 2) with t = e^x (e^x + 2), 3.9 ulp for x > -80, below
// that e^x is no normal number; NaN at -inf, as 0 * inf is.
INLINE vf v_mish(vf x) {
  const vf e = v_exp(min(set1(20.0f), x));
  const vf t = fma(e, e, e + e);
  return x * (t / (t + set1(2.0f)));
}
//% endif
//% if "hard" in needs

// The sum is rounded as in ONNX Runtime: the product first.
INLINE vf v_hard_sigmoid(vf x, vf alpha, vf beta) {
  return max(set1(0.0f), min(set1(1.0f), x * alpha + beta));
}
//% endif
//% if "sign" in needs

INLINE vf v_sign(vf x) {  // NaN for NaN
  const vf zero = set1(0.0f);
  return select(less(zero, x), set1(1.0f), select(less(x, zero), set1(-1.0f), x + zero));
}
//% endif
//% if "whole" in needs

// What a cast to an integer below `limit` leaves: the lowest one of what is out of range or NaN.
INLINE vf v_whole(vf x, vf limit) {
  return select(less(abs(x), limit), trunc(x) + set1(0.0f), -limit);  // no integer is -0
}
//% endif
//% if "turns" in needs

// 2/pi, most significant word first; its first bit counts 1/2.
constexpr uint32_t TWO_OVER_PI[] = {0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u,
                                    0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u};

// x - n pi/2 for |x| >= 2^20 by multiplying with those 96 bits of 2/pi that are neither multiples
// of four turns nor too small to matter.
__attribute__((noinline, unused)) float far_turns(float x, float* n) {
  uint32_t word;
  __builtin_memcpy(&word, &x, sizeof word);
  const int exponent = (int)(word >> 23 & 255) - 150;  // x = mantissa * 2^exponent
  if (exponent > 104) return __builtin_nanf("");
  const int start = exponent > 2 ? exponent - 2 : 0, at = start / 32, shift = start % 32;
  unsigned __int128 window = 0;
  for (int i = 0; i < 4; i++) window = window << 32 | TWO_OVER_PI[at + i];
  window = window << shift >> 32;
  unsigned __int128 turns = window * ((word & 0x7fffffu) | 0x800000u);  // in turns / 2^94
  if (exponent < 2) turns >>= 2 - exponent;
  const uint64_t fixed = (uint64_t)(turns >> 32);
  const uint64_t whole = (fixed + (uint64_t(1) << 61)) >> 62;
  const float r = (float)((double)(int64_t)(fixed - (whole << 62)) * 0x1.921fb54442d18p-62);
  *n = x < 0.0f ? -(float)whole : (float)whole;
  return x < 0.0f ? -r : r;
}

// sin(x + quarter pi/2): 1.6 ulp for every float, also next to its zeros; NaN for infinities.
INLINE vf v_sin(vf x, int quarter) {
  const vf magic = set1(12582912.0f), near = set1(1048576.0f);
  vf n = fma(x, set1(0.636619772f), magic) - magic, r = minus_turns(x, n);
  if (__builtin_expect(any(less(near, abs(x))), 0)) {
    float xs[W], ns[W], rs[W];
    store(xs, x), store(ns, n), store(rs, r);
    for (int i = 0; i < W; i++)
      if (__builtin_fabsf(xs[i]) > 1048576.0f) rs[i] = far_turns(xs[i], &ns[i]);
    n = load(ns), r = load(rs);
  }
  const vi q = to_int(n) + quarter;
  const vf z = r * r;
  const vf s = fma(r * z, poly(z, -0.16666648f, 0.008331751f, -0.0001946232f), r);
  const vf c = fma(z * z, poly(z, 0.041666634f, -0.0013886805f, 2.4376768e-05f),
                   fma(z, set1(-0.5f), set1(1.0f)));
  const vf y = select(less(set1(0.5f), to_float(q & 1)), c, s);
  return from_bits((vi)((vu)bits(y) ^ ((vu)(q & 2) << 30)));
}
//% endif
//% if "root" in needs

// x^(1/2) as a power: +infinity for -infinity, +0 for -0.
INLINE vf v_root(vf x) {
  const vf infinity = set1(__builtin_inff());
  return sqrt(select(less(x, set1(-3.4028235e38f)), infinity, x)) + set1(0.0f);
}
//% endif
//% if "pow" in needs

// y (n + log2 m) in double precision, with 4e-12 of the logarithm.
INLINE vd times_log2(vd y, vd m, vd n) {
  const vd s = (m - 1.0) / (m + 1.0);
  const vd z = s * s;
  const vd p = 0.5770835849555295 + z * (0.41167271990863274 + z * 0.34073008499053853);
  return y * (n + s * (2.885390081790087 + z * (0.9617966733417563 + z * p)));
}

// x^y, 1.1 ulp (without fused multiply-add 1.3); without AVX-512 results below 2.4e-38 are 0.  Zeros, infinities, NaN and negative
// x as IEEE 754's pow has them.
INLINE vf v_pow(vf x, vf y) {
  const vf zero = set1(0.0f), one = set1(1.0f), infinity = set1(__builtin_inff());
  const vf ax = abs(x);
  vf n;
  const vf m = mantissa(ax, n);
  n = select(less(ax, infinity), n, ax);
  n = select(at_most(ax, zero), zero - infinity, n);
  const vd low_t = times_log2(low(y), low(m), low(n));
  const vd high_t = times_log2(high(y), high(m), high(n));
  const vf t = max(set1(EXP_LOW * 1.44269504f), min(set1(128.0f), join(low_t, high_t)));
  const vf k = round_even(t);
  const vf f = max(set1(-1.0f), min(one, join(low_t - low(k), high_t - high(k))));
  vf r = scale(poly(f * set1(0.693147182f), 1.0f, 1.0f, 0.5f, 0.16666518f, 0.041666206f,
                    0.0083688879f, 0.0013950488f), k);
  const vf half = y * set1(0.5f);
  const vm whole = equal(floor(y), y);
  const vm odd = both(whole, invert(equal(floor(half), half)));
  r = select(odd, from_bits(bits(r) | (bits(x) & INT32_MIN)), r);
  const vm finite_below = both(less(x, zero), less(ax, infinity));
  r = select(both(finite_below, invert(whole)), set1(__builtin_nanf("")), r);
  const vm ones = both(equal(ax, one), equal(abs(y), infinity));
  return select(either(ones, either(equal(x, one), equal(y, zero))), one, r);
}
//% endif
//% if "look_up" in needs and vectors_of != "avx512"

// Entries of a table of 256 bytes; lanes hold their places.
template <typename T>
INLINE vf look_up(const T* table, vf at) {
  float lanes[W];
  store(lanes, at);
  for (int i = 0; i < W; i++) lanes[i] = (float)table[(int)lanes[i]];
  return load(lanes);
}
//% endif
