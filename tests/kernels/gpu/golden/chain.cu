// tracea_f32_chain_21deffe49bed4ff3_rank2_256__sm_80
// From elementwise.cu.in.  Generated, do not edit.
// The dialect of NVIDIA's GPUs: words of the templates as CUDA C++ and PTX.  Includes nothing.
typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define DEV __device__ __forceinline__
#define METHOD DEV
#define UNROLL _Pragma("unroll")
#define KERNEL(symbol, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) symbol
#define EXPORT(symbol)
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)

extern __shared__ __align__(1024) u8 shared_bytes[];

namespace tracea {

DEV i32 thread() { return (i32)threadIdx.x; }
DEV i32 block_x() { return (i32)blockIdx.x; }
DEV i32 block_y() { return (i32)blockIdx.y; }
DEV i32 block_z() { return (i32)blockIdx.z; }
DEV u8* arena() { return shared_bytes; }
DEV void sync_block() { __syncthreads(); }
DEV void sync_warp() { __syncwarp(); }
DEV float shuffle_xor(float v, i32 mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEV u32 high_product(u32 a, u32 b) { return __umulhi(a, b); }

// What came before in the stream is done and seen; what comes behind may start.
DEV void wait_for_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEV void release_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- numbers of 16 bits

DEV float f16_number(u16 bits) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
  return v;
}
DEV u16 f16_bits(float v) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}
DEV float bf16_number(u16 bits) { return __uint_as_float((u32)bits << 16); }
DEV u16 bf16_bits(float v) {
#if __CUDA_ARCH__ >= 800
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
#else
  const u32 u = __float_as_uint(v);
  return v != v ? (u16)0x7fff : (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
}
DEV u32 f16_pair(float low, float high) {
  return (u32)f16_bits(low) | (u32)f16_bits(high) << 16;
}
DEV u32 bf16_pair(float low, float high) {
  return (u32)bf16_bits(low) | (u32)bf16_bits(high) << 16;
}
DEV u32 float_bits(float v) { return __float_as_uint(v); }
DEV float bits_float(u32 v) { return __uint_as_float(v); }
DEV float exp2_fast(float v) {  // 2 ulp; 0 for -inf
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

// ---- copies to shared memory that do not wait: 16 bytes, of which the first `bytes` are read
//      and the others zero

DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
struct alignas(16) words4 {
  u32 w[4];
};
DEV void copy_async(void* to, const void* from, i32 bytes) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
#else
  words4 v = {{0, 0, 0, 0}};
  if (bytes == 16) {
    v = *(const words4*)from;
  } else {
    UNROLL
    for (i32 i = 0; i < 16; i++)
      if (i < bytes) v.w[i / 4] |= (u32)((const u8*)from)[i] << i % 4 * 8;
  }
  *(words4*)to = v;
#endif
}
DEV void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING>
DEV void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// ---- matrices: four blocks of 8 x 8 from rows of 16 bytes; products of a warp

DEV void load_blocks(u32 (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p))
               : "memory");
}
DEV void load_blocks_turned(u32 (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p))
               : "memory");
}
DEV void multiply_f16(float (&d)[4], const u32 (&a)[4], const u32* b) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  UNROLL
  for (i32 half = 0; half < 2; half++)
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}
#if __CUDA_ARCH__ >= 800
DEV void multiply_bf16(float (&d)[4], const u32 (&a)[4], const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void multiply_tf32(float (&d)[4], const u32 (&a)[4], const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV u32 tf32_bits(float v) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(v));
  return bits;
}
#endif

}  // namespace tracea
// Element types, runs of them in memory, and division by what is known before a launch.
namespace tracea {

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
struct truth {
  u8 byte;
};
typedef float vf;
typedef bool vm;

DEV vf number(float v) { return v; }
DEV vf number(f16 v) { return f16_number(v.bits); }
DEV vf number(bf16 v) { return bf16_number(v.bits); }
DEV vf number(i8 v) { return (float)v; }
DEV vf number(u8 v) { return (float)v; }
DEV vf number(i32 v) { return (float)v; }
DEV vf number(i64 v) { return (float)v; }
DEV vm number(truth v) { return v.byte != 0; }

DEV void assign(float& to, vf v) { to = v; }
DEV void assign(f16& to, vf v) { to.bits = f16_bits(v); }
DEV void assign(bf16& to, vf v) { to.bits = bf16_bits(v); }
DEV void assign(i8& to, vf v) { to = (i8)v; }
DEV void assign(u8& to, vf v) { to = (u8)v; }
DEV void assign(i32& to, vf v) { to = (i32)v; }
DEV void assign(i64& to, vf v) { to = (i64)v; }
DEV void assign(truth& to, vm v) { to.byte = v; }

struct yes {
  static constexpr bool value = true;
};
struct no {
  static constexpr bool value = false;
};

DEV i32 least(i32 a, i32 b) { return a < b ? a : b; }

// V elements in a row.  They are loaded and stored as a whole where they lie so (`together`).
template <typename T, int V>
struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) run {
  T at[V];
};
template <typename T, int V>
DEV bool together(const T* p, i32 step, i32 n) {
  return n >= V && step == 1 && ((u64)p & (alignof(run<T, V>) - 1)) == 0;
}
template <typename T, int V>
DEV void load_run(T (&x)[V], const T* p, i32 step, i32 n, bool whole) {
  if (whole) {
    const run<T, V> all = *(const run<T, V>*)p;
    UNROLL
    for (i32 j = 0; j < V; j++) x[j] = all.at[j];
  } else {
    UNROLL
    for (i32 j = 0; j < V; j++) x[j] = j < n ? p[(i64)j * step] : T();
  }
}
template <typename T, int V>
DEV void store_run(T* p, const T (&x)[V], i32 step, i32 n, bool whole) {
  if (whole) {
    run<T, V> all;
    UNROLL
    for (i32 j = 0; j < V; j++) all.at[j] = x[j];
    *(run<T, V>*)p = all;
  } else {
    UNROLL
    for (i32 j = 0; j < V; j++)
      if (j < n) p[(i64)j * step] = x[j];
  }
}

// n / d for n below 2^31 by a product: d divides when `multiply` is 0.
struct divisor {
  u32 value, multiply, shift;
};
DEV i32 quotient(i32 n, divisor d) {
  return d.multiply ? (i32)(high_product((u32)n, d.multiply) >> d.shift) : n;
}

}  // namespace tracea
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
// A chain over operands of any strides: a thread computes a run of 8 columns of one row.
// full:f16,full:f16,row,col|mul(0,3);add(4,2);gelu(5);mul(6,1)|7:f16
namespace tracea {

DEV void apply(
    const vf x0,
    const vf x1,
    const vf x2,
    const vf x3,
    vf& y0) {
  const vf v0 = x0 * x3;
  const vf v1 = v0 + x2;
  const vf v2 = v_gelu(v1);
  const vf v3 = v2 * x1;
  y0 = v3;
}

}  // namespace tracea
namespace tracea {

KERNEL(tracea_f32_chain_21deffe49bed4ff3_rank2_256__sm_80, 256, 1)(
    const f16* x0,
    const f16* x1,
    const float* x2,
    const float* x3,
    f16* y0,
    i32 x0_0,
    i32 x0_1,
    i32 x1_0,
    i32 x1_1,
    i32 x2_0,
    i32 x2_1,
    i32 x3_0,
    i32 x3_1,
    i32 y0_0,
    i32 y0_1,
    i32 rows, i32 cols, divisor runs) {
  wait_for_grid();
  release_grid();
  const i32 at = block_x() * 256 + thread();
  i32 row = quotient(at, runs);
  const i32 col = (at - row * (i32)runs.value) * 8;
  if (row >= rows) return;
  const i32 n = least(8, cols - col);
  const i32 i0 = row;
  const i64 at_x0 = (i64)i0 * x0_0 + (i64)col * x0_1;
  const i64 at_x1 = (i64)i0 * x1_0 + (i64)col * x1_1;
  const i64 at_x2 = (i64)i0 * x2_0 + (i64)col * x2_1;
  const i64 at_x3 = (i64)i0 * x3_0;
  const i64 at_y0 = (i64)i0 * y0_0 + (i64)col * y0_1;
  f16 a0[8];
  x0 += at_x0;
  load_run(a0, x0, x0_1, n,
           together<f16, 8>(x0, x0_1, n));
  f16 a1[8];
  x1 += at_x1;
  load_run(a1, x1, x1_1, n,
           together<f16, 8>(x1, x1_1, n));
  float a2[8];
  x2 += at_x2;
  load_run(a2, x2, x2_1, n,
           together<float, 8>(x2, x2_1, n));
  float a3[1];
  a3[0] = x3[at_x3];
  f16 b0[8];
  UNROLL
  for (i32 j = 0; j < 8; j++) {
    vf v0;
    apply(
        number(a0[j]),
        number(a1[j]),
        number(a2[j]),
        number(a3[0]),
        v0);
    assign(b0[j], v0);
  }
  y0 += at_y0;
  store_run(y0, b0, y0_1, n,
            together<f16, 8>(y0, y0_1, n));
}

}  // namespace tracea
EXPORT(tracea_f32_chain_21deffe49bed4ff3_rank2_256__sm_80)
