// TMA copies, mbarriers and wgmma in the CUDA dialect, for sm_90a.
//% include "wgmma_descriptor.h"
namespace tracea {

#define GRID_CONSTANT __grid_constant__

struct alignas(128) tensor_map {
  u64 words[16];
};

// Hides a value from the optimizer: what depends on it is recomputed, not kept in registers.
DEV i32 computed_anew(i32 v) {
  asm volatile("" : "+r"(v));
  return v;
}
// Reads a number for all lanes of a warp: it and what depends on it may lie in registers of the warp.  Lane 0 reads,
// so that its later arrival at a barrier also says that the number was read.  A branch would make loops longer.
DEV i32 read_for_warp(const i32* from) {
  i32 v;
  asm volatile(
      "{ .reg .pred first; setp.eq.s32 first, %2, 0; mov.b32 %0, 0; @first ld.shared.b32 %0, [%1]; }"
      : "=r"(v) : "r"(shared_address(from)), "r"(thread() % 32) : "memory");
  return __shfl_sync(0xffffffffu, v, 0);
}
DEV float computed_before(float v) {  // and before the products that begin next
  asm volatile("" : "+f"(v));
  return v;
}
// Lets products that begin later read what this thread stored in shared memory.
DEV void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void keep_order() { asm volatile("" ::: "memory"); }

// ---- mbarriers: a phase completes when all arrivals and all expected bytes are there
DEV void set_barrier(u64* b, i32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals)
               : "memory");
}
DEV void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void announce(u64* b, i32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
               "r"(bytes)
               : "memory");
}
DEV void arrive_at(u64* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
DEV void wait_phase(u64* b, i32 parity) {
  u32 passed;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.b32 %0, 1, 0, p;\n}"
        : "=r"(passed)
        : "r"(shared_address(b)), "r"(parity)
        : "memory");
  } while (!passed);
}

// ---- TMA boxes: coordinates innermost first; elements outside the tensor become zero
DEV void prefetch_map(const tensor_map& m) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&m) : "memory");
}
//% for rank in range(2, 6)
DEV void load_box(void* to, const tensor_map& m, u64* b, const i32 (&at)[${rank}]) {
  asm volatile(
      "cp.async.bulk.tensor.${rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%${range(3, 3 + rank)|join(", %")}}], [%2];" ::"r"(shared_address(to)),
      "l"(&m), "r"(shared_address(b))
      //% for i in range(rank)
      , "r"(at[${i}])
      //% endfor
      : "memory");
}
// Copies a box to the same place in both blocks of a cluster; a barrier of each counts its bytes.
DEV void load_box_for_pair(void* to, const tensor_map& m, u64* b, const i32 (&at)[${rank}]) {
  asm volatile(
      "cp.async.bulk.tensor.${rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%${range(3, 3 + rank)|join(", %")}}], [%2], %${3 + rank};" ::"r"(
          shared_address(to)),
      "l"(&m), "r"(shared_address(b))
      //% for i in range(rank)
      , "r"(at[${i}])
      //% endfor
      , "h"((u16)3)
      : "memory");
}
//% endfor

// TMA im2col: consecutive pixels from a start position, each shifted by a filter tap.
DEV void load_pixels(void* to, const tensor_map& m, u64* b, const i32 (&at)[4], i32 w, i32 h) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(to)),
      "l"(&m), "r"(shared_address(b)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]),
      "h"((u16)w), "h"((u16)h)
      : "memory");
}
// The same of a volume.
DEV void load_pixels(void* to, const tensor_map& m, u64* b, const i32 (&at)[5], i32 w, i32 h, i32 d) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(shared_address(to)),
      "l"(&m), "r"(shared_address(b)), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]),
      "h"((u16)w), "h"((u16)h), "h"((u16)d)
      : "memory");
}

// ---- clusters and distributed shared memory
DEV i32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return (i32)rank;
}
DEV void sync_cluster() {  // call after show_barriers
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The two halves of sync_cluster: what is between them need not wait for blocks that begin later.
DEV void arrive_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEV void wait_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Ends a block that others of the cluster arrive at, or copy from: what it did there is done.
DEV void leave_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Arrives at the same barrier of a block of the cluster.
DEV void arrive_at_rank(u64* b, i32 rank) {
  asm volatile(
      "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [at];\n}" ::"r"(shared_address(b)),
      "r"(rank)
      : "memory");
}
// Stores four floats at the same offset in another block; its mbarrier counts the bytes.
DEV void send(void* to, u64* barrier, i32 rank, float a, float b, float c, float d) {
  asm volatile(
      "{\n.reg .b32 at, counts;\nmapa.shared::cluster.u32 at, %0, %2;\n"
      "mapa.shared::cluster.u32 counts, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [at], {%3, %4, %5, %6}, "
      "[counts];\n}" ::"r"(shared_address(to)),
      "r"(shared_address(barrier)), "r"(rank), "f"(a), "f"(b), "f"(c), "f"(d)
      : "memory");
}
// Copies bytes to the same place in another block, when products can see them; its mbarrier counts them.
DEV void copy_to_rank(void* at, i32 bytes, u64* barrier, i32 rank) {
  asm volatile(
      "{\n.reg .b32 to, counts;\nmapa.shared::cluster.u32 to, %0, %3;\n"
      "mapa.shared::cluster.u32 counts, %2, %3;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, "
      "[counts];\n}" ::"r"(shared_address(at)),
      "r"(bytes), "r"(shared_address(barrier)), "r"(rank)
      : "memory");
}
DEV void wait_sent(u64* b, i32 parity) {
  u32 passed;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.b32 %0, 1, 0, p;\n}"
        : "=r"(passed)
        : "r"(shared_address(b)), "r"(parity)
        : "memory");
  } while (!passed);
}

// ---- named barriers: some threads wait, others only arrive
template <int THREADS>
DEV void sync_group(i32 id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
template <int THREADS>
DEV void leave_group(i32 id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}
template <int COUNT>
DEV void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
DEV void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- asynchronous products of a warpgroup (wgmma)
DEV u64 descriptor(const void* p, u64 bits) { return descriptor_at(shared_address(p), bits); }
DEV void open_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
DEV void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
//% set integers = kind in ("u8", "i8")
//% set floats8 = {"f8": "e4m3", "f8e5": "e5m2"}
//% for one in instructions if one.sparse
//% set sums = one.n // 2
// d = a b, or d + a b, of 32 steps, of each four of which a has two: lanes 4i + 2 HALF and the next hold
// their positions (see two_of_four_storage.py).
template <int HALF>
DEV void multiply_sparse_group(float (&d)[${sums}], u64 a, u64 b, u32 positions, i32 more) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %${sums + 4}, 0;\n"
      "wgmma.mma_async.sp.sync.aligned.m64n${one.n}k32.f32.${kind}.${kind} "
      //% for i in range(0, sums, 8)
      "${"{" if i == 0}%${range(i, [i + 8, sums]|min)|join(", %")}${"}" if i + 8 >= sums}, "
      //% endfor
      "%${sums}, %${sums + 1}, %${sums + 2}, %${sums + 3}, p, 1, 1, 0, ${0 if one.by_depth else 1};\n}"
      : "+f"(d[0])
      //% for i in range(1, sums)
      , "+f"(d[${i}])
      //% endfor
      : "l"(a), "l"(b), "r"(positions), "n"(HALF), "r"(more));
}
//% endfor
//% for one in instructions if not one.sparse
//% set sums = one.n // 2
//% set first = sums + (4 if one.registers else 1)
// d = a b, or d + a b, with 64 rows of a${" in registers" if one.registers} and ${one.n} columns of b.
DEV void ${one.name}(${"i32" if integers else "float"} (&d)[${sums}], ${"const u32 (&a)[4]" if one.registers else "u64 a"}, u64 b, i32 more) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %${first + 1}, 0;\n"
      //% if kind in floats8
      "wgmma.mma_async.sync.aligned.m64n${one.n}k32.f32.${floats8[kind]}.${floats8[right]} "
      //% elif kind == "tf32"
      "wgmma.mma_async.sync.aligned.m64n${one.n}k8.f32.tf32.tf32 "
      //% elif integers
      "wgmma.mma_async.sync.aligned.m64n${one.n}k32.s32.${"s8" if kind == "i8" else "u8"}.s8 "
      //% else
      "wgmma.mma_async.sync.aligned.m64n${one.n}k16.f32.${kind}.${kind} "
      //% endif
      //% for i in range(0, sums, 8)
      "${"{" if i == 0}%${range(i, [i + 8, sums]|min)|join(", %")}${"}" if i + 8 >= sums}, "
      //% endfor
      //% if one.registers
      "{%${range(sums, sums + 4)|join(", %")}}, %${first}, p, 1, 1${"" if kind == "tf32" else ", 0" if one.by_depth else ", 1"};\n}"
      //% else
      "%${sums}, %${first}, p${"" if integers else ", 1, 1" if kind in floats8 or kind == "tf32" else ", 1, 1, 0, 0" if one.by_depth else ", 1, 1, 0, 1"};\n}"
      //% endif
      //% set letter = '"+r"' if integers else '"+f"'
      : ${letter}(d[0])
      //% for i in range(1, sums)
      , ${letter}(d[${i}])
      //% endfor
      : ${'"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' if one.registers else '"l"(a)'}, "l"(b), "r"(more));
}
//% endfor

// x / 2 (1 + tanh(x (a + b x²))) of two numbers in fp16; `a` and `b` are pairs too.
DEV u32 gelu_pair(u32 x, u32 a, u32 b) {
  u32 p, half;
  asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(x) : "r"(0xfbfffbffu));  // finite, so that the result is 0
  asm("mul.f16x2 %0, %1, %1;" : "=r"(p) : "r"(x));
  asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(p) : "r"(b), "r"(a));
  asm("mul.f16x2 %0, %0, %1;" : "+r"(p) : "r"(x));
  asm("tanh.approx.f16x2 %0, %0;" : "+r"(p));
  asm("mul.f16x2 %0, %1, %2;" : "=r"(half) : "r"(x), "r"(0x38003800u));
  asm("fma.rn.f16x2 %0, %0, %1, %1;" : "+r"(p) : "r"(half));
  return p;
}
// Two numbers in fp16, times those of `factor`, in 8 bits.
DEV u16 f8_of_halves(u32 x, u32 factor) {
  u16 two;
  asm("mul.f16x2 %0, %0, %1;" : "+r"(x) : "r"(factor));
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(two) : "r"(x));
  return two;
}

}  // namespace tracea
