// The words of elementwise chains (kernels/chain_source.py) on one number.
namespace tracea {

DEV vf set1(float v) { return v; }
DEV vf select(vm m, vf a, vf b) { return m ? a : b; }
DEV vf min(vf a, vf b) { return a < b ? a : b; }  // b if either is NaN
DEV vf max(vf a, vf b) { return a > b ? a : b; }
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
DEV vf v_max(vf a, vf b) { return a != a ? a : max(a, b); }
DEV vf v_min(vf a, vf b) { return a != a ? a : min(a, b); }
DEV vf v_sign(vf a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
DEV vf v_whole(vf a, vf limit) { return fabsf(a) < limit ? truncf(a) + 0.0f : -limit; }
DEV vf v_root(vf a) { return a == -bits_float(0x7f800000) ? -a : sqrtf(a) + 0.0f; }
DEV vf v_pow(vf a, vf b) { return powf(a, b); }
DEV vf v_exp(vf a) { return expf(a); }
DEV vf v_log(vf a) { return logf(a); }
DEV vf v_erf(vf a) { return erff(a); }
DEV vf v_sin(vf a, i32 quarter) { return quarter ? cosf(a) : sinf(a); }
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
DEV vf v_gelu_rough(vf a) { return v_gelu(a); }
DEV vf v_gelu_tanh_rough(vf a) { return v_gelu_tanh(a); }
DEV vf gated_rough(vf a, vf w) { return gated(a, w); }

}  // namespace tracea
