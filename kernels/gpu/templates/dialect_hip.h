// The HIP dialect: the templates' primitives in HIP and LLVM's AMDGPU builtins.  Includes no header.
// Waves have 32 or 64 lanes; templates exchange numbers within aligned groups of 32 threads, which both
// hold.  Of the mathematical functions LLVM expands most; __ocml_ ones are AMD's device library.
typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define DEV static __attribute__((device, always_inline))
#define METHOD __attribute__((device, always_inline))
#define SHARED_ARRAY(type, name, count) __attribute__((shared, aligned(16))) static type name[count]
#define UNROLL _Pragma("unroll")
#define CONSTANT static __attribute__((constant)) const
#define ROLLED _Pragma("nounroll")
#define UNROLL_TWO _Pragma("unroll 2")
#define UNROLL_FOUR _Pragma("unroll 4")
#define KERNEL(symbol, threads, blocks) \
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads))) void symbol
#define EXPORT(symbol)

extern __attribute__((shared, aligned(16))) u8 shared_bytes[];

extern "C" {
__attribute__((device, const)) float __ocml_erf_f32(float);
__attribute__((device, const)) float __ocml_expm1_f32(float);
__attribute__((device, const)) float __ocml_log1p_f32(float);
__attribute__((device, const)) float __ocml_pow_f32(float, float);
__attribute__((device, const)) float __ocml_tanh_f32(float);
}

namespace tracea {

DEV i32 thread() { return (i32)__builtin_amdgcn_workitem_id_x(); }
DEV i32 block_x() { return (i32)__builtin_amdgcn_workgroup_id_x(); }
DEV i32 blocks_x() { return (i32)(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x()); }
DEV i32 block_y() { return (i32)__builtin_amdgcn_workgroup_id_y(); }
DEV i32 block_z() { return (i32)__builtin_amdgcn_workgroup_id_z(); }
DEV u8* arena() { return shared_bytes; }
DEV void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
DEV void sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
DEV u32 float_bits(float v) { return __builtin_bit_cast(u32, v); }
DEV float bits_float(u32 v) { return __builtin_bit_cast(float, v); }
DEV float shuffle_xor(float v, i32 mask) {
  const u32 lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
  const i32 from = (i32)(4 * (lane ^ (u32)mask));
  return bits_float((u32)__builtin_amdgcn_ds_bpermute(from, (i32)float_bits(v)));
}
DEV u32 high_product(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }

// ---- values written by another block of the same grid that has signalled its arrival
DEV void make_seen() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
DEV i32 arrive(i32* p) {
  return __hip_atomic_fetch_add(p, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEV void keep_larger(i32* p, i32 v) {
  __hip_atomic_fetch_max(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEV void load_made(float (&to)[4], const float* p) {
  UNROLL
  for (i32 i = 0; i < 4; i++)
    to[i] = __hip_atomic_load(p + i, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// Kernels of a stream run one after another.
DEV void wait_for_grid() {}
DEV void release_grid() {}

// ---- 16-bit floating-point types

DEV float f16_number(u16 bits) { return (float)__builtin_bit_cast(_Float16, bits); }
DEV u16 f16_bits(float v) { return __builtin_bit_cast(u16, (_Float16)v); }
DEV void f16_numbers(u32 two, float& low, float& high) {
  low = f16_number((u16)two);
  high = f16_number((u16)(two >> 16));
}
DEV float bf16_number(u16 bits) { return bits_float((u32)bits << 16); }
DEV u16 bf16_bits(float v) {
  const u32 u = float_bits(v);
  return v != v ? (u16)0x7fff : (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
DEV u32 f16_pair(float low, float high) { return (u32)f16_bits(low) | (u32)f16_bits(high) << 16; }
DEV u32 bf16_pair(float low, float high) { return (u32)bf16_bits(low) | (u32)bf16_bits(high) << 16; }

// ---- mathematical functions

DEV float fabsf(float v) { return __builtin_fabsf(v); }
DEV float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEV float fminf(float a, float b) { return __builtin_fminf(a, b); }
DEV float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
DEV float floorf(float v) { return __builtin_floorf(v); }
DEV float ceilf(float v) { return __builtin_ceilf(v); }
DEV float rintf(float v) { return __builtin_rintf(v); }
DEV float truncf(float v) { return __builtin_truncf(v); }
DEV float sqrtf(float v) { return __builtin_sqrtf(v); }
DEV float expf(float v) { return __builtin_expf(v); }
DEV float logf(float v) { return __builtin_logf(v); }
DEV float expm1f(float v) { return __ocml_expm1_f32(v); }
DEV float log1pf(float v) { return __ocml_log1p_f32(v); }
DEV float erff(float v) { return __ocml_erf_f32(v); }
DEV float powf(float a, float b) { return __ocml_pow_f32(a, b); }
DEV float tanhf(float v) { return __ocml_tanh_f32(v); }
DEV float larger(float a, float b) { return a != a || a > b ? a : b; }  // NaN if either is
DEV float smaller(float a, float b) { return a != a || a < b ? a : b; }
DEV float exp2_fast(float v) { return __builtin_amdgcn_exp2f(v); }  // 1 ulp; 0 for -inf
DEV float inverse_root(float v) { return __builtin_amdgcn_rsqf(v); }  // 1 ulp
DEV float tanh_fast(float v) {  // within 2e-7 of the result, which a GELU adds to 1
  const float power = exp2_fast(-2.8853900818f * fabsf(v));
  const float y = (1.0f - power) * __builtin_amdgcn_rcpf(1.0f + power);
  return __builtin_copysignf(y, v);
}

}  // namespace tracea
