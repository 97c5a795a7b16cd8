// The host dialect: the same templates as ordinary C++, one block or one cluster at a time.
//
// Each thread of a block is a fiber that runs until it must synchronise: at a block barrier or in a
// warp-wide instruction.  Every thread therefore runs as far ahead of the others as the kernel's
// barriers allow, in an order given by a seed.  Asynchronous copies poison their destination at
// once and complete as late as the waits allow.  What is undefined on a GPU ends the run with an
// error: diverged lanes in a warp-wide instruction, threads that never reach a barrier.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

typedef int8_t i8;
typedef uint8_t u8;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;

#define DEV static inline
#define METHOD inline
#define SHARED_ARRAY(type, name, count) alignas(16) static type name[count]  // blocks run in turn
#define UNROLL
#define CONSTANT static const
#define ROLLED
#define UNROLL_TWO
#define UNROLL_FOUR
#define KERNEL(symbol, threads, blocks) static void symbol
#define CLUSTER_KERNEL(symbol, threads, blocks, cluster) static void symbol
#define EXPORT(symbol) EXPORT_CLUSTER(symbol, 1)
#define EXPORT_CLUSTER(symbol, size)                                                      \
  extern "C" const char* symbol(void** arguments, const i32* grid, i32 threads, i32 shared, \
                                u32 seed) {                                               \
    tracea::machine.cluster = size;                                                       \
    return tracea::machine.run(tracea::symbol, arguments, grid, threads, shared, seed);   \
  }                                                                                       \
  extern "C" void symbol##_after(const tracea::left_behind* before, i32 count) {            \
    tracea::machine.before = before, tracea::machine.before_count = count;                \
  }                                                                                       \
  extern "C" i32 symbol##_parameters(i32* sizes) {                                        \
    return tracea::sizes_of(tracea::symbol, sizes);                                       \
  }

// Saves the callee-saved registers and resumes another fiber.
asm(R"(
.text
tracea_switch:
  push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
  ret
)");
extern "C" void tracea_switch(void** from, void* to) __asm__("tracea_switch");

namespace tracea {

enum { WARP_LANES = 32, STACK = 1 << 16, GUARD = 4096, MOST_BLOCKS = 8 };

struct async_copy {
  u8 *to, value[16];
  i32 size;
};

struct fiber {
  void* at = nullptr;  // the saved stack pointer
  std::unique_ptr<u8[]> stack;  // not filled: most of its pages are never touched
  enum { RUNS, GRID, BLOCK, CLUSTER, WARP, WAITS, DONE } state = RUNS;
  const void* met = nullptr;  // the warp-wide instruction it waits in
  void* argument = nullptr;
  std::vector<async_copy> open;
  std::vector<std::vector<async_copy>> groups;
};

// Results of the preceding grid: they appear when no fiber can continue without them.  Memory that
// the kernel itself writes must be unchanged until then.
struct left_behind {
  u8* to;
  const u8* from;
  i64 bytes;
  i32 written;
};

struct block_machine {
  const left_behind* before = nullptr;  // of the next launch
  i32 before_count = 0;
  i32 threads = 0, cluster = 1;  // threads of a block; blocks of a cluster
  i32 current = 0, block[3] = {}, across = 0;  // `current` also counts through the blocks of a cluster
  u32 random = 1;
  void* scheduler = nullptr;
  std::vector<fiber> fibers;
  std::vector<u8> memory[MOST_BLOCKS];
  u8 *shared = nullptr, *spaces[MOST_BLOCKS] = {};  // of the current block; of all blocks
  void (*body)(void*) = nullptr;
  void* call = nullptr;
  bool (*stalled)() = nullptr;  // called when no fiber can run: whether something arrived that unblocks one
  char message[200] = {};

  fiber& self() { return fibers[current]; }
  i32 rank() { return current / threads; }
  void leave() { tracea_switch(&self().at, scheduler); }
  void fail(const char* what, i32 who) {
    if (!message[0]) snprintf(message, sizeof message, "thread %d: %s", who % threads, what);
  }

  static void enter();

  template <typename... A>
  const char* run(void (*kernel)(A...), void** arguments, const i32* grid, i32 count, i32 bytes,
                  u32 seed) {
    return run_indexed(kernel, arguments, grid, count, bytes, seed,
                       std::index_sequence_for<A...>());
  }
  template <typename... A, size_t... I>
  const char* run_indexed(void (*kernel)(A...), void** arguments, const i32* grid, i32 count,
                          i32 bytes, u32 seed, std::index_sequence<I...>) {
    std::tuple<void (*)(A...), void**> held(kernel, arguments);
    body = [](void* held_there) {
      auto [f, given] = *(std::tuple<void (*)(A...), void**>*)held_there;
      f(*(A*)given[I]...);
    };
    call = &held;
    message[0] = 0;
    random = seed * 2654435761u + 1;
    across = grid[0];
    for (block[2] = 0; block[2] < grid[2]; block[2]++)
      for (block[1] = 0; block[1] < grid[1]; block[1]++)
        for (i32 first = 0; first < grid[0] && !message[0]; first += cluster)
          run_blocks(first, count, bytes, seed);
    return message[0] ? message : nullptr;
  }

  void run_blocks(i32 first, i32 count, i32 bytes, u32 seed) {
    threads = count;
    if (first + cluster > across || cluster > 1 && count % WARP_LANES)
      return fail("the grid or the block does not fit clusters", 0);
    for (i32 b = 0; b < cluster; b++) {
      memory[b].assign(bytes + 2 * GUARD + 1024, 0xff);  // NaN of every type
      spaces[b] = (u8*)(((uintptr_t)memory[b].data() + GUARD + 1023) & ~(uintptr_t)1023);
    }
    fibers.resize(cluster * count);
    for (fiber& f : fibers) {
      if (!f.stack) f.stack.reset(new u8[STACK]);
      f.state = fiber::RUNS;
      f.open.clear();
      f.groups.clear();
      void** top = (void**)((uintptr_t)(f.stack.get() + STACK) & ~(uintptr_t)15);
      *--top = nullptr;  // keeps the stack alignment that calls expect
      *--top = (void*)&block_machine::enter;
      f.at = top - 6;
    }
    std::vector<i32> order(fibers.size());
    for (i32 i = 0; i < (i32)order.size(); i++) order[i] = i;
    while (!message[0]) {
      if (seed)  // a new order for every pass
        for (i32 i = (i32)order.size() - 1; i > 0; i--) {
          random = random * 1664525u + 1013904223u;
          std::swap(order[i], order[(random >> 8) % (i + 1)]);
        }
      bool ran = false;
      for (i32 i : order)
        if (fibers[i].state == fiber::RUNS && !message[0]) {
          current = i;
          shared = spaces[rank()];
          block[0] = first + rank();
          tracea_switch(&scheduler, self().at);
          ran = true;
        }
      if (message[0] || (!ran && !(stalled && stalled()) && !end_grid() && !release())) break;
    }
    for (i32 b = 0; b < cluster; b++)
      for (u8* p = memory[b].data(); p < memory[b].data() + memory[b].size(); p++)
        if ((p < spaces[b] || p >= spaces[b] + bytes) && *p != 0xff)
          return fail("wrote beyond the block's shared memory", 0);
  }

  // Completes the preceding grid and resumes fibers that wait for it; false if none does.
  bool end_grid() {
    const i32 count = before_count;
    for (fiber& f : fibers)
      if (f.state == fiber::GRID) f.state = fiber::RUNS, before_count = 0;
    for (i32 i = before_count; i < count; i++) {
      if (!before[i].written) memcpy(before[i].to, before[i].from, before[i].bytes);
      else if (memcmp(before[i].to, before[i].from, before[i].bytes)) fail("writes before it waits", 0);
    }
    return before_count != count;
  }

  // Every fiber waits or has ended: releases those at a block or cluster barrier.  False if all have
  // ended or none can continue.
  bool release() {
    i32 done = 0, together = 0;
    bool released = false;
    for (i32 b = 0; b < cluster; b++) {
      i32 waiting = 0;
      fiber* const own = &fibers[b * threads];
      for (i32 i = 0; i < threads; i++) {
        waiting += own[i].state == fiber::BLOCK;
        together += own[i].state == fiber::CLUSTER;
        done += own[i].state == fiber::DONE;
      }
      if (waiting != threads) continue;
      for (i32 i = 0; i < threads; i++) own[i].state = fiber::RUNS;
      released = true;
    }
    if (together == (i32)fibers.size()) {
      for (fiber& f : fibers) f.state = fiber::RUNS;
      released = true;
    }
    if (released || done == (i32)fibers.size()) return released;
    for (i32 i = 0; i < (i32)fibers.size(); i++)
      if (fibers[i].state == fiber::WARP)
        fail("waits for lanes of its warp that do not come", i);
      else if (fibers[i].state == fiber::BLOCK || fibers[i].state == fiber::CLUSTER)
        fail("waits at a barrier that others do not reach", i);
      else if (fibers[i].state == fiber::WAITS)
        fail("waits for what nobody brings", i);
    return false;
  }

  void meet_block(bool all) {
    self().state = all ? fiber::CLUSTER : fiber::BLOCK;
    leave();
  }

  // Lanes of a warp meet in a warp-wide instruction; the last to arrive executes it for all.
  void meet_warp(void (*instruction)(void**), void* argument) {
    const i32 first = current / WARP_LANES * WARP_LANES;
    fiber* warp = &fibers[first];
    void* arguments[WARP_LANES];
    self().met = (const void*)instruction;
    self().argument = argument;
    self().state = fiber::WARP;
    for (i32 i = 0; i < WARP_LANES; i++) {
      if (first + i >= (i32)fibers.size() || warp[i].state != fiber::WARP) return leave();
      if (warp[i].met != self().met) {
        fail("is in another instruction than the other lanes of its warp", current);
        return leave();
      }
      arguments[i] = warp[i].argument;
    }
    instruction(arguments);
    for (i32 i = 0; i < WARP_LANES; i++) warp[i].state = fiber::RUNS;
  }
};

static block_machine machine;

// Sizes in bytes of a kernel's parameters, and their number.
template <typename... A>
i32 sizes_of(void (*)(A...), i32* sizes) {
  i32 count = 0;
  ((sizes[count++] = (i32)sizeof(A)), ...);
  return count;
}

inline void block_machine::enter() {
  machine.body(machine.call);
  if (!machine.self().open.empty() || !machine.self().groups.empty())
    machine.fail("ends with copies on their way", machine.current);
  machine.self().state = fiber::DONE;
  machine.leave();
}

DEV i32 thread() { return machine.current % machine.threads; }
DEV i32 block_x() { return machine.block[0]; }
DEV i32 blocks_x() { return machine.across; }
DEV i32 block_y() { return machine.block[1]; }
DEV i32 block_z() { return machine.block[2]; }
DEV u8* arena() { return machine.shared; }
DEV void sync_block() { machine.meet_block(false); }
DEV void sync_warp() {
  machine.meet_warp([](void**) {}, nullptr);
}
DEV float shuffle_xor(float v, i32 mask) {
  struct own {
    float v;
    i32 mask;
  } mine = {v, mask};
  machine.meet_warp(
      [](void** all) {
        float got[WARP_LANES];
        for (i32 i = 0; i < WARP_LANES; i++) got[i] = ((own*)all[i ^ ((own*)all[i])->mask])->v;
        for (i32 i = 0; i < WARP_LANES; i++) ((own*)all[i])->v = got[i];
      },
      &mine);
  return mine.v;
}
DEV u32 high_product(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
DEV void make_seen() {}
DEV i32 arrive(i32* p) { return (*p)++; }
DEV void keep_larger(i32* p, i32 v) {
  if (*p < v) *p = v;
}
DEV void load_made(float (&to)[4], const float* p) {
  for (i32 e = 0; e < 4; e++) to[e] = p[e];
}
DEV void wait_for_grid() {
  if (!machine.before_count) return;
  machine.self().state = fiber::GRID;
  machine.leave();
}
DEV void release_grid() {}

// ---- 16-bit floating-point types

DEV u32 float_bits(float v) {
  u32 bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}
DEV float bits_float(u32 bits) {
  float v;
  memcpy(&v, &bits, sizeof v);
  return v;
}
DEV float f16_number(u16 bits) {
  _Float16 v;
  memcpy(&v, &bits, sizeof v);
  return (float)v;
}
DEV u16 f16_bits(float v) {
  const _Float16 half = (_Float16)v;
  u16 bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}
DEV void f16_numbers(u32 two, float& low, float& high) {
  low = f16_number((u16)two);
  high = f16_number((u16)(two >> 16));
}
DEV float bf16_number(u16 bits) { return bits_float((u32)bits << 16); }
DEV u16 bf16_bits(float v) {
  const u32 u = float_bits(v);
  return v != v ? (u16)0x7fff : (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
DEV u32 f16_pair(float low, float high) {
  return (u32)f16_bits(low) | (u32)f16_bits(high) << 16;
}
DEV u32 bf16_pair(float low, float high) {
  return (u32)bf16_bits(low) | (u32)bf16_bits(high) << 16;
}
DEV float larger(float a, float b) { return a != a || a > b ? a : b; }  // NaN if either is
DEV float smaller(float a, float b) { return a != a || a < b ? a : b; }
DEV float exp2_fast(float v) { return exp2f(v); }
DEV float inverse_root(float v) { return 1.0f / sqrtf(v); }
DEV float tanh_fast(float v) { return tanhf(v); }

// ---- copies to shared memory

DEV void copy_async(void* to, const void* from, i32 bytes) {
  async_copy one = {(u8*)to, {}, 16};
  if ((uintptr_t)to % 16 || (bytes && (uintptr_t)from % 16))
    machine.fail("copies 16 bytes from or to an address that is no multiple of it",
                 machine.current);
  memcpy(one.value, from, bytes);
  memset(to, 0xff, 16);
  machine.self().open.push_back(one);
}
DEV void copy_word_async(void* to, const void* from) {
  async_copy one = {(u8*)to, {}, 4};
  memcpy(one.value, from, 4);
  memset(to, 0xff, 4);
  machine.self().open.push_back(one);
}
DEV void copy_pair_async(void* to, const void* from, i32 bytes) {
  async_copy one = {(u8*)to, {}, 8};
  if ((uintptr_t)to % 8 || (bytes && (uintptr_t)from % 8))
    machine.fail("copies 8 bytes from or to an address that is no multiple of it", machine.current);
  memcpy(one.value, from, bytes);
  memset(to, 0xff, 8);
  machine.self().open.push_back(one);
}
DEV void prefetch_line(const void*) {}
DEV void commit_copies() {
  machine.self().groups.push_back(std::move(machine.self().open));
  machine.self().open.clear();
}
template <int PENDING>
DEV void wait_copies() {
  auto& groups = machine.self().groups;
  while ((i32)groups.size() > PENDING) {
    for (const async_copy& one : groups.front()) memcpy(one.to, one.value, one.size);
    groups.erase(groups.begin());
  }
}

// ---- matrix fragments, laid out by semantic/fragment_layouts.py
//% macro blocks(name, places)

DEV void ${name}(u32 (&r)[4], const void* p) {
  struct own {
    u32* r;
    const u8* p;
  } mine = {r, (const u8*)p};
  machine.meet_warp(
      [](void** all) {
        static const u8 places[WARP_LANES][2][2] = {  // row and column of both elements of a pair
            ${places}};
        for (i32 lane = 0; lane < WARP_LANES; lane++)
          for (i32 e = 0; e < 8; e++) {
            const u8* place = places[lane][e % 2];
            const u16* row = (const u16*)((own*)all[e / 2 * 8 + place[0]])->p;
            if ((uintptr_t)row % 16) machine.fail("loads blocks from an odd address", lane);
            ((u16*)((own*)all[lane])->r)[e] = row[place[1]];
          }
      },
      &mine);
}
//% endmacro
${blocks("load_blocks", plain_places)}${blocks("load_blocks_turned", turned_places)}
DEV float tf32_number(float v) { return bits_float(float_bits(v) & 0xffffe000); }
//% for atom in atoms
//% set kind = atom.kind
//% set held = "float" if kind == "tf32" else "u16"

DEV void multiply_${kind}(float (&d)[4], const u32 (&a)[4], const u32* b) {
  struct own {
    float* d;
    const u32 *a, *b;
  } mine = {d, a, b};
  machine.meet_warp(
      [](void** all) {
        float left[${atom.m}][${atom.k}], right[${atom.k}][${atom.n}];
        for (i32 lane = 0; lane < WARP_LANES; lane++) {
          const auto* x = (const ${held}*)((own*)all[lane])->a;
          const auto* y = (const ${held}*)((own*)all[lane])->b;
          //% for e in range(atom.a.count)
          left[${atom.a.row("lane", e)}][${atom.a.col("lane", e)}] = ${kind}_number(x[${e}]);
          //% endfor
          //% for e in range(atom.b.count)
          right[${atom.b.row("lane", e)}][${atom.b.col("lane", e)}] = ${kind}_number(y[${e}]);
          //% endfor
        }
        for (i32 lane = 0; lane < WARP_LANES; lane++) {
          float* sums = ((own*)all[lane])->d;
          //% for e in range(atom.d.count)
          for (i32 k = 0; k < ${atom.k}; k++)
            sums[${e}] += left[${atom.d.row("lane", e)}][k] * right[k][${atom.d.col("lane", e)}];
          //% endfor
        }
      },
      &mine);
}
//% endfor
DEV u32 tf32_bits(float v) {  // to nearest, ties away from zero: 10 bits stay
  const u32 u = float_bits(v);
  return (u & 0x7f800000) == 0x7f800000 ? u : (u + 0x1000) & 0xffffe000;
}

}  // namespace tracea
