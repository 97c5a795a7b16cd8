// The CUDA dialect: the templates' primitives in CUDA C++ and PTX.  Includes no header.
typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define DEV __device__ __forceinline__
#define METHOD DEV
#define SHARED_ARRAY(type, name, count) __shared__ __align__(16) type name[count]  // of fixed size
#define UNROLL _Pragma("unroll")
#define CONSTANT __constant__ const
#define ROLLED _Pragma("unroll 1")
#define UNROLL_TWO _Pragma("unroll 2")
#define UNROLL_FOUR _Pragma("unroll 4")
#define KERNEL(symbol, threads, blocks) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) symbol
#define CLUSTER_KERNEL(symbol, threads, blocks, cluster) \
  extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, blocks) symbol
#define EXPORT(symbol)
#define EXPORT_CLUSTER(symbol, cluster)
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)

extern __shared__ __align__(1024) u8 shared_bytes[];

namespace tracea {

DEV i32 thread() { return (i32)threadIdx.x; }
DEV i32 block_x() { return (i32)blockIdx.x; }
DEV i32 blocks_x() { return (i32)gridDim.x; }
DEV i32 block_y() { return (i32)blockIdx.y; }
DEV i32 block_z() { return (i32)blockIdx.z; }
DEV u8* arena() { return shared_bytes; }
DEV void sync_block() { __syncthreads(); }
DEV void sync_warp() { __syncwarp(); }
DEV float shuffle_xor(float v, i32 mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEV u32 high_product(u32 a, u32 b) { return __umulhi(a, b); }

// ---- values written by another block of the same grid that has signalled its arrival
DEV void make_seen() { __threadfence(); }
DEV i32 arrive(i32* p) { return atomicAdd(p, 1); }
DEV void keep_larger(i32* p, i32 v) { atomicMax(p, v); }
DEV void load_made(float (&to)[4], const float* p) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
               : "l"(p)
               : "memory");
}

// Waits for preceding kernels of the stream and makes their writes visible; releases the next kernel.
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

// ---- 16-bit floating-point types

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
DEV void f16_numbers(u32 two, float& low, float& high) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high)
      : "r"(two));
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
#if __CUDA_ARCH__ >= 800
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return (u32)f16_bits(low) | (u32)f16_bits(high) << 16;
#endif
}
DEV u32 bf16_pair(float low, float high) {
#if __CUDA_ARCH__ >= 800
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return (u32)bf16_bits(low) | (u32)bf16_bits(high) << 16;
#endif
}
DEV u32 float_bits(float v) { return __float_as_uint(v); }
DEV float bits_float(u32 v) { return __uint_as_float(v); }
#if __CUDA_ARCH__ >= 890
#define ROUNDS_TO_F8  // so that values.h does not
DEV u16 f8_pair(float low, float high) {
  u16 two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(high), "f"(low));
  return two;
}
DEV u8 f8_bits(float v) { return (u8)f8_pair(v, 0.0f); }
#endif
DEV float larger(float a, float b) {  // NaN if either is
#if __CUDA_ARCH__ >= 800
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return a != a || a > b ? a : b;
#endif
}
DEV float smaller(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
#else
  return a != a || a < b ? a : b;
#endif
}
DEV float exp2_fast(float v) {  // 2 ulp; 0 for -inf
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

DEV float inverse_root(float v) {  // 2^-22
  float r;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
DEV float tanh_fast(float v) {  // 2^-11
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}

// ---- asynchronous copies of 16 bytes to shared memory; bytes after the first `bytes` become zero

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
DEV void copy_word_async(void* to, const void* from) {  // 4 bytes
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
  *(u32*)to = *(const u32*)from;
#endif
}
DEV void prefetch_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
DEV void copy_pair_async(void* to, const void* from, i32 bytes) {  // 8 bytes, or as many zeros
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
               : "memory");
#else
  *(u64*)to = bytes ? *(const u64*)from : 0;
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

// ---- matrix fragments: ldmatrix (four 8 x 8 blocks from rows of 16 bytes) and mma

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
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  UNROLL
  for (i32 half = 0; half < 2; half++)
    asm(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}
#if __CUDA_ARCH__ >= 800
DEV void multiply_bf16(float (&d)[4], const u32 (&a)[4], const u32* b) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEV void multiply_tf32(float (&d)[4], const u32 (&a)[4], const u32* b) {
  asm(
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
#else
// Emulation by shuffles for architectures without the instruction; operands are not rounded.
DEV void multiply_tf32(float (&d)[4], const u32 (&a)[4], const u32* b) {
  const i32 lane = threadIdx.x % 32, group = lane / 4 * 4, col = lane % 4 * 2;
  UNROLL
  for (i32 half = 0; half < 2; half++) {
    ROLLED
    for (i32 k = 0; k < 4; k++) {
      float left[2], right[2];
      UNROLL
      for (i32 i = 0; i < 2; i++) {
        left[i] = __uint_as_float(__shfl_sync(0xffffffffu, a[half * 2 + i], group + k));
        right[i] = __uint_as_float(__shfl_sync(0xffffffffu, b[half], (col + i) * 4 + k));
      }
      UNROLL
      for (i32 e = 0; e < 4; e++) d[e] = __fmaf_rn(left[e / 2], right[e % 2], d[e]);
    }
  }
}
DEV u32 tf32_bits(float v) { return __float_as_uint(v); }
#endif

}  // namespace tracea
