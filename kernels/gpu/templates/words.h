// Scalar functions of elementwise chains (kernels/chain_source.py).
namespace tracea {

// 2/pi, most significant word first; its first bit counts 1/2.
CONSTANT u32 TWO_OVER_PI[8] = {0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u,
                               0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u};

// a - n pi/2 by the 96 bits of 2/pi that matter for this exponent (Payne and Hanek).  The usual
// implementation keeps an array, which spills.
DEV float far_turns(float a, i32& n) {
  const u32 word = float_bits(a);
  const i32 exponent = (i32)(word >> 23 & 255) - 150;  // a = mantissa * 2^exponent
  n = 0;
  if (exponent > 104) return a - a;  // NaN of infinities
  const i32 start = exponent > 2 ? exponent - 2 : 0, at = start / 32, shift = start % 32;
  u32 window[3];
  UNROLL
  for (i32 i = 0; i < 3; i++) {
    const u64 two = (u64)TWO_OVER_PI[at + i] << 32 | TWO_OVER_PI[at + i + 1];
    window[i] = (u32)(two << shift >> 32);
  }
  const u64 mantissa = (word & 0x7fffffu) | 0x800000u;
  const u64 middle = window[1] * mantissa + (window[2] * mantissa >> 32);
  const u64 high = window[0] * mantissa + (middle >> 32);
  u64 fixed = high << 32 | (u32)middle;  // turns / 2^62
  if (exponent < 2) fixed = fixed >> (2 - exponent) | high >> 32 << (62 + exponent);
  const u64 whole = (fixed + ((u64)1 << 61)) >> 62;
  const float r = (float)((double)(i64)(fixed - (whole << 62)) * 0x1.921fb54442d18p-62);
  n = a < 0.0f ? -(i32)whole : (i32)whole;
  return a < 0.0f ? -r : r;
}

// sin(a + quarter pi/2), for every float.
DEV vf v_sin(vf a, i32 quarter) {
  i32 n;
  float r;
  if (fabsf(a) < 105615.0f) {  // pi/2 in three parts
    const float turns = rintf(a * 0x1.45f306p-1f);
    r = fmaf(turns, -0x1.921fb6p+0f, a);
    r = fmaf(turns, 0x1.777a5cp-25f, r);
    r = fmaf(turns, 0x1.ee59dap-50f, r);
    n = (i32)turns;
  } else {
    r = far_turns(a, n);
  }
  const i32 q = n + quarter;
  const float z = r * r;
  const float s = fmaf(r * z, fmaf(fmaf(-0.0001946232f, z, 0.008331751f), z, -0.16666648f), r);
  const float c = fmaf(z * z, fmaf(fmaf(2.4376768e-05f, z, -0.0013886805f), z, 0.041666634f),
                       fmaf(z, -0.5f, 1.0f));
  const float y = q & 1 ? c : s;
  return q & 2 ? -y : y;
}
DEV vf set1(float v) { return v; }
DEV vf select(vm m, vf a, vf b) { return m ? a : b; }
DEV vf min(vf a, vf b) { return smaller(a, b); }
DEV vf max(vf a, vf b) { return larger(a, b); }
DEV vf abs(vf a) { return fabsf(a); }
DEV vf floor(vf a) { return floorf(a); }
DEV vf ceil(vf a) { return ceilf(a); }
DEV vf round_even(vf a) { return rintf(a); }
DEV vf sqrt(vf a) { return sqrtf(a); }
DEV vm less(vf a, vf b) { return a < b; }
DEV vm at_most(vf a, vf b) { return a <= b; }
DEV vm equal(vf a, vf b) { return a == b; }
DEV vm is_nan(vf a) { return a != a; }
DEV vm both(vm a, vm b) { return a && b; }
DEV vm either(vm a, vm b) { return a || b; }
DEV vm differ(vm a, vm b) { return a != b; }
DEV vm invert(vm a) { return !a; }
DEV vf v_max(vf a, vf b) { return larger(a, b); }
DEV vf v_min(vf a, vf b) { return smaller(a, b); }
DEV vf v_sign(vf a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
DEV vf v_whole(vf a, vf limit) { return fabsf(a) < limit ? truncf(a) + 0.0f : -limit; }
DEV vf v_root(vf a) { return a == -bits_float(0x7f800000) ? -a : sqrtf(a) + 0.0f; }
DEV vf v_pow(vf a, vf b) { return powf(a, b); }
DEV vf v_exp(vf a) { return expf(a); }
DEV vf v_log(vf a) { return logf(a); }
DEV vf v_erf(vf a) { return erff(a); }
// a / by, given 1 / by: the quotient is corrected once by what is left (Markstein), without the branches of
// a division.  An infinity leaves NaN, and is the quotient itself.
DEV vf divided_finite(vf a, float by, float inverse) {
  const vf quotient = a * inverse;
  return fmaf(fmaf(-quotient, by, a), inverse, quotient);
}
DEV vf divided(vf a, float by, float inverse) {
  const vf better = divided_finite(a, by, inverse);
  return better == better ? better : a * inverse;
}
DEV vf v_tanh(vf a) { return tanhf(a); }
DEV vf gated(vf a, vf w) { return a / (1.0f + expf(-w)); }
DEV vf v_sigmoid(vf a) { return 1.0f / (1.0f + expf(-a)); }
DEV vf v_softplus(vf a) { return (a != a ? a : fmaxf(a, 0.0f)) + log1pf(expf(-fabsf(a))); }
DEV vf v_elu(vf a, vf alpha) { return a < 0.0f ? alpha * expm1f(a) : a; }
DEV vf v_celu(vf a, vf alpha) {
  return a != a ? a : fmaxf(a, 0.0f) + fminf(alpha * expm1f(a / alpha), 0.0f);
}
DEV vf v_hard_sigmoid(vf a, vf alpha, vf beta) {
  return min(1.0f, max(0.0f, alpha * a + beta));
}
DEV vf v_mish(vf a) { return a * tanhf(v_softplus(a)); }
DEV vf v_gelu(vf a) { return a * 0.5f * (1.0f + erff(a * 0x1.6a09e6p-1f)); }
DEV vf v_gelu_tanh(vf a) {
  return a * 0.5f * (1.0f + tanhf(0x1.988454p-1f * (a + 0x1.6e4e26p-5f * a * a * a)));
}
// erf fitted by tanh: error 3e-5 plus that of the tanh approximation, 2^-11 of the result.
DEV vf v_gelu_fast(vf a) {
  const float u = fminf(a * a, 50.0f);
  const float p = a * fmaf(fmaf(-3.51516837e-4f, u, 3.70056463e-2f), u, 0.797507884f);
  const float half = 0.5f * a;
  return fmaf(half, tanh_fast(p), half);
}
DEV vf v_gelu_tanh_fast(vf a) {
  const float half = 0.5f * a;
  return fmaf(half, tanh_fast(0x1.988454p-1f * fmaf(a * a * a, 0x1.6e4e26p-5f, a)), half);
}
DEV vf gated_fast(vf a, vf w) {
  const float half = 0.5f * a;
  return fmaf(half, tanh_fast(0.5f * w), half);
}

}  // namespace tracea
