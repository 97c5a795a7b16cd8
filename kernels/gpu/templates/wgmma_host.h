// TMA copies, mbarriers and wgmma in the host dialect.
//
// Copies poison their destination and complete when no fiber can continue without them, in an order
// given by the seed.  Products read shared memory as late as the waits for them allow.
//% include "wgmma_descriptor.h"
namespace tracea {

#define GRID_CONSTANT

struct tensor_map {  // as encoded by the test double of the driver; innermost axis first
  u64 address, dims[5], strides[4];
  u16 box[5];
  u8 rank, size;
  signed char lower[3], upper[3], steps[3];  // im2col bounding box: width, height, depth
  u16 pixels;
  u8 rounded, unused[23];
};
static_assert(sizeof(tensor_map) == 128, "a parameter of 128 bytes");

struct phase_barrier {
  u8 phase, arrivals, left, unused;
  i32 bytes;
};
static_assert(sizeof(phase_barrier) == 8, "lies in one word of shared memory");

struct coming_box {
  u8* to;
  std::vector<u8> value;
  u64* barrier;
};
struct named_barrier {
  i32 came = 0;
};
struct group_product {
  ${"i32" if kind in ("u8", "i8") else "float"}* d;
  u64 a, b;
  u32 held[4];  // fragment of a, if in registers
  i32 more, n;
  bool registers, by_depth;
  i32 half = -1;  // of the lanes that hold positions of a sparse operand
  u32 positions = 0;
};
struct group_machine {
  std::vector<coming_box> boxes;
  named_barrier named[16 * MOST_BLOCKS], wait[8 * MOST_BLOCKS];
  std::vector<std::vector<group_product>> products[4096];  // groups of each thread; the last is open
  const void* key[4096];  // the object each thread waits for
  i32 parity[4096];
  u32 random = 1;

  void wait_until(const void* what, i32 which) {
    const i32 own = machine.current;
    key[own] = what;
    parity[own] = which;
    machine.self().state = fiber::WAITS;
    machine.leave();
  }
  void wake(const void* what, i32 which) {
    for (i32 i = 0; i < (i32)machine.fibers.size(); i++)
      if (machine.fibers[i].state == fiber::WAITS && key[i] == what && parity[i] == which)
        machine.fibers[i].state = fiber::RUNS;
  }
  void settle(u64* at) {
    phase_barrier& b = *(phase_barrier*)at;
    if (b.left || b.bytes) return;
    const i32 ended = b.phase;
    b.phase ^= 1;
    b.left = b.arrivals;
    wake(at, ended);
  }
  void meet(named_barrier& at, i32 threads, bool stays) {
    if (++at.came == threads) {
      at.came = 0;
      wake(&at, 0);
    } else if (stays) {
      wait_until(&at, 0);
    }
  }
};
static group_machine groups;

static bool deliver() {
  if (groups.boxes.empty()) return false;
  groups.random = groups.random * 1664525u + 1013904223u;
  const size_t i = machine.random == 1 ? 0 : (groups.random >> 8) % groups.boxes.size();
  coming_box one = std::move(groups.boxes[i]);
  groups.boxes.erase(groups.boxes.begin() + i);
  memcpy(one.to, one.value.data(), one.value.size());
  ((phase_barrier*)one.barrier)->bytes -= (i32)one.value.size();
  groups.settle(one.barrier);
  return true;
}

DEV i32 computed_anew(i32 v) { return v; }
DEV i32 read_for_warp(const i32* from) { return *from; }
DEV float computed_before(float v) { return v; }
DEV void show_to_products() {}
DEV void keep_order() {}
DEV void set_barrier(u64* at, i32 arrivals) {
  *(phase_barrier*)at = {0, (u8)arrivals, (u8)arrivals, 0, 0};
  machine.stalled = deliver;
  for (named_barrier& one : groups.named) one.came = 0;
}
DEV void show_barriers() {}
DEV void arrive_at(u64* at) {
  phase_barrier& b = *(phase_barrier*)at;
  if (!b.left) machine.fail("arrives where all have arrived", machine.current);
  b.left--;
  groups.settle(at);
}
DEV void announce(u64* at, i32 bytes) {
  ((phase_barrier*)at)->bytes += bytes;
  arrive_at(at);
}
DEV void wait_phase(u64* at, i32 which) {
  if (((phase_barrier*)at)->phase == which) groups.wait_until(at, which);
}
DEV void prefetch_map(const tensor_map&) {}
template <int RANK>
DEV std::vector<u8> box_of(void* to, const tensor_map& m, const i32 (&at)[RANK]) {
  if (m.rank != RANK) machine.fail("gives coordinates of another rank", machine.current);
  if ((u8*)to - machine.shared & 1023) machine.fail("copies a box to no line of 1024 bytes", machine.current);
  i32 count = 1;
  for (i32 i = 0; i < RANK; i++) count *= m.box[i];
  std::vector<u8> value(count * m.size);
  const i32 pitch = m.box[0] * m.size, ways = pitch / 16;
  for (i32 e = 0; e < count; e++) {
    u64 from = m.address;
    bool inside = true;
    for (i32 i = 0, rest = e; i < RANK; rest /= m.box[i++]) {
      const i64 place = (i64)at[i] + rest % m.box[i];
      inside = inside && place >= 0 && place < (i64)m.dims[i];
      from += place * (i ? (i64)m.strides[i - 1] : m.size);
    }
    const i32 row = e / m.box[0], byte = e % m.box[0] * m.size, line = row * pitch / 128;
    u8* const place = value.data() + row * pitch + (byte / 16 ^ line % ways) * 16 + byte % 16;
    if (inside) memcpy(place, (const void*)from, m.size);
    if (m.rounded) {
      float number;
      memcpy(&number, place, 4);
      const u32 bits = tf32_bits(number);
      memcpy(place, &bits, 4);
    }
  }
  return value;
}
// Where a block of the cluster has what lies at an address of this one's shared memory.
DEV u8* in_block(i32 rank, void* at) { return machine.spaces[rank] + ((u8*)at - machine.shared); }
DEV void load_bytes(void* to, u64* barrier, std::vector<u8> value) {
  memset(to, 0xff, value.size());
  groups.boxes.push_back({(u8*)to, std::move(value), barrier});
}
template <int RANK>
DEV void load_box(void* to, const tensor_map& m, u64* barrier, const i32 (&at)[RANK]) {
  load_bytes(to, barrier, box_of(to, m, at));
}
// Copies a box to the same place in both blocks of a cluster; a barrier of each counts its bytes.
template <int RANK>
DEV void load_box_for_pair(void* to, const tensor_map& m, u64* barrier, const i32 (&at)[RANK]) {
  for (i32 rank = 0; rank < 2; rank++)
    load_bytes(in_block(rank, to), (u64*)in_block(rank, barrier), box_of(to, m, at));
}
// Pixels of an image, or of a volume: of as many axes as coordinates are given.
template <int RANK>
DEV void copy_pixels(void* to, const tensor_map& m, u64* barrier, const i32 (&at)[RANK],
                     const i32 (&tap)[RANK - 2]) {
  constexpr i32 AXES = RANK - 2, FARTHEST = AXES == 3 ? 31 : 255;
  if (m.rank != RANK || !m.pixels) machine.fail("takes pixels of no image", machine.current);
  if ((u8*)to - machine.shared & 1023) machine.fail("copies pixels to no line of 1024 bytes", machine.current);
  for (i32 by : tap)
    if (by < 0 || by > FARTHEST) machine.fail("moves pixels too far", machine.current);
  const i32 line = m.box[0] * m.size, ways = line / 16;  // bytes of a pixel
  coming_box one = {(u8*)to, std::vector<u8>(m.pixels * line), barrier};
  i32 place[AXES + 1];
  for (i32 axis = 0; axis <= AXES; axis++) place[axis] = at[1 + axis];
  for (i32 pixel = 0; pixel < m.pixels; pixel++) {
    bool inside = true;
    u64 start = m.address;
    for (i32 axis = 0; axis <= AXES; axis++) {
      const i64 index = place[axis] + (axis < AXES ? tap[axis] : 0);
      inside = inside && index >= 0 && index < (i64)m.dims[1 + axis];
      start += index * (i64)m.strides[axis];
    }
    for (i32 c = 0; c < m.box[0]; c++)
      if (inside && at[0] + c < (i64)m.dims[0]) {
        const u64 from = start + (at[0] + c) * m.size;
        const i32 byte = c * m.size, run = byte / 16 ^ pixel * line / 128 % ways;
        memcpy(one.value.data() + pixel * line + run * 16 + byte % 16, (const void*)from, m.size);
      }
    for (i32 side = 0; side < AXES; side++) {
      if ((place[side] += m.steps[side]) <= (i64)m.dims[1 + side] - 1 + m.upper[side]) break;
      place[side] = m.lower[side];
      if (side == AXES - 1) place[AXES]++;
    }
  }
  memset(to, 0xff, one.value.size());
  groups.boxes.push_back(std::move(one));
}
DEV void load_pixels(void* to, const tensor_map& m, u64* b, const i32 (&at)[4], i32 w, i32 h) {
  copy_pixels(to, m, b, at, {w, h});
}
DEV void load_pixels(void* to, const tensor_map& m, u64* b, const i32 (&at)[5], i32 w, i32 h, i32 d) {
  copy_pixels(to, m, b, at, {w, h, d});
}
// ---- clusters and distributed shared memory
DEV i32 cluster_rank() { return machine.rank(); }
DEV void sync_cluster() { machine.meet_block(true); }
DEV void arrive_cluster() { machine.meet_block(true); }
DEV void wait_cluster() {}
DEV void leave_cluster() { machine.meet_block(true); }
DEV void arrive_at_rank(u64* at, i32 rank) { arrive_at((u64*)in_block(rank, at)); }
// Stores four floats at the same offset in another block; its mbarrier counts the bytes.
DEV void send(void* to, u64* barrier, i32 rank, float a, float b, float c, float d) {
  const float four[4] = {a, b, c, d};
  coming_box one = {in_block(rank, to), std::vector<u8>(16), (u64*)in_block(rank, barrier)};
  if ((uintptr_t)to % 16) machine.fail("sends to an address that is no multiple of 16", machine.current);
  memcpy(one.value.data(), four, 16);
  groups.boxes.push_back(std::move(one));
}
// Copies bytes to the same place in another block, when products can see them; its mbarrier counts them.
DEV void copy_to_rank(void* at, i32 bytes, u64* barrier, i32 rank) {
  if (((uintptr_t)at | bytes) % 16) machine.fail("copies to a block what is no multiple of 16", machine.current);
  load_bytes(in_block(rank, at), (u64*)in_block(rank, barrier), std::vector<u8>((u8*)at, (u8*)at + bytes));
}
DEV void wait_sent(u64* at, i32 which) { wait_phase(at, which); }

template <int THREADS>
DEV void sync_group(i32 id) {
  groups.meet(groups.named[machine.rank() * 16 + id], THREADS, true);
}
template <int THREADS>
DEV void leave_group(i32 id) {
  groups.meet(groups.named[machine.rank() * 16 + id], THREADS, false);
}
template <int COUNT>
DEV void take_registers() {}
template <int COUNT>
DEV void give_registers() {}

DEV u64 descriptor(const void* p, u64 bits) {
  return descriptor_at((u32)machine.rank() << 24 | (u32)((const u8*)p - machine.shared), bits);
}
//% set integers = kind in ("u8", "i8")
//% set bytes = integers or kind in ("f8", "f8e5")
//% if bytes
// Reads a byte from swizzled shared memory: rows of 128 bytes in groups of eight.
DEV u8 operand_byte(u64 bits, i32 at, i32 k) {
  const i32 start = (i32)(bits & 0x3fff) << 4, stride = (i32)(bits >> 32 & 0x3fff) << 4;
  const i32 linear = start + at / 8 * stride + at % 8 * 128 + k;
  return machine.shared[linear ^ (linear / 128 % 8) * 16];
}
//% elif kind == "tf32"
// Reads a float from swizzled shared memory, as tensor cores do: without its last 13 bits.
DEV float operand_float(u64 bits, i32 at, i32 k) {
  const i32 start = (i32)(bits & 0x3fff) << 4, stride = (i32)(bits >> 32 & 0x3fff) << 4;
  const i32 linear = start + at / 8 * stride + at % 8 * 128 + k * 4;
  u32 word;
  memcpy(&word, machine.shared + (linear ^ (linear / 128 % 8) * 16), 4);
  word &= 0xffffe000u;
  float value;
  memcpy(&value, &word, 4);
  return value;
}
//% else
// Reads an element from swizzled shared memory: rows of 128 or 64 bytes in groups of eight.
DEV float operand_number(u64 bits, bool by_depth, i32 at, i32 k) {
  const i32 start = (i32)(bits & 0x3fff) << 4, leading = (i32)(bits >> 16 & 0x3fff) << 4;
  const i32 stride = (i32)(bits >> 32 & 0x3fff) << 4, row = by_depth ? at : k;
  const i32 ways = bits >> 62 == 1 ? 8 : 4;
  const i32 linear = start + row / 8 * stride + row % 8 * ways * 16 + 2 * (by_depth ? k : at % 64) +
                     (by_depth ? 0 : at / 64 * leading);
  return ${kind}_number(*(const u16*)(machine.shared + (linear ^ (linear / 128 % ways) * 16)));
}
//% endif
DEV void open_products() {}
DEV void add_product(const group_product& one) {
  auto& own = groups.products[machine.current];
  if (own.empty()) own.emplace_back();
  own.back().push_back(one);
}
//% for one in instructions if one.sparse
template <int HALF>
DEV void multiply_sparse_group(float (&d)[${one.n // 2}], u64 a, u64 b, u32 positions, i32 more) {
  add_product({d, a, b, {}, more, ${one.n}, false, ${"true" if one.by_depth else "false"}, HALF, positions});
}
//% endfor
//% for one in instructions if not one.sparse
DEV void ${one.name}(${"i32" if integers else "float"} (&d)[${one.n // 2}], ${"const u32 (&a)[4]" if one.registers else "u64 a"}, u64 b, i32 more) {
  //% if one.registers
  add_product({d, 0, b, {a[0], a[1], a[2], a[3]}, more, ${one.n}, true, ${"true" if one.by_depth else "false"}});
  //% else
  add_product({d, a, b, {}, more, ${one.n}, false, ${"true" if one.by_depth else "false"}});
  //% endif
}
//% endfor
DEV void commit_products() { groups.products[machine.current].emplace_back(); }
//% if kind == "tf32"
// Element (row, k) of a from registers, distributed over four lanes as in an mma fragment.
DEV float held_float(i32 thread, size_t group, size_t place, i32 half, i32 k) {
  const u32 word = groups.products[thread / 4 * 4 + k % 4][group][place].held[half + k / 4 * 2];
  return bits_float(word & 0xffffe000u);
}
//% elif not bytes
// Element (row, k) of a from registers, distributed over four lanes as in an mma fragment.
DEV float held_number(i32 thread, size_t group, size_t place, i32 half, i32 k) {
  const i32 lane = thread / 4 * 4 + k % 8 / 2;
  const u32 word = groups.products[lane][group][place].held[half + k / 8 * 2];
  return ${kind}_number((u16)(k % 2 ? word >> 16 : word));
}
// Position in its group of four of number `kept` of a sparse operand's row, which two lanes of four hold.
DEV i32 kept_at(i32 thread, size_t group, size_t place, i32 half, i32 kept) {
  const group_product& own = groups.products[thread][group][place];
  const i32 holder = thread / 4 * 4 + 2 * own.half + kept / 8;
  return (i32)(groups.products[holder][group][place].positions >> (half * 16 + kept % 8 * 2) & 3);
}
//% endif
DEV void compute(i32 thread, size_t group, size_t place) {
  const group_product& one = groups.products[thread][group][place];
  const i32 own = thread % machine.threads;
  const i32 row = own % 32 / 4 + own / 32 % 4 * 16, col = own % 4 * 2;
  //% if bytes
  for (i32 e = 0; e < one.n / 2; e++) {
    ${"i32" if integers else "float"} sum = one.more ? one.d[e] : 0;
    for (i32 k = 0; k < 32; k++)
      //% if integers
      sum += (i32)(${kind})operand_byte(one.a, row + e / 2 % 2 * 8, k) *
             (i32)(i8)operand_byte(one.b, col + e / 4 * 8 + e % 2, k);
      //% else
      sum += ${kind}_number(operand_byte(one.a, row + e / 2 % 2 * 8, k)) *
             ${right}_number(operand_byte(one.b, col + e / 4 * 8 + e % 2, k));
      //% endif
    one.d[e] = sum;
  }
  //% elif kind == "tf32"
  for (i32 e = 0; e < one.n / 2; e++) {
    float sum = one.more ? one.d[e] : 0.0f;
    for (i32 k = 0; k < 8; k++)
      sum += (one.registers ? held_float(thread, group, place, e / 2 % 2, k)
                            : operand_float(one.a, row + e / 2 % 2 * 8, k)) *
             operand_float(one.b, col + e / 4 * 8 + e % 2, k);
    one.d[e] = sum;
  }
  //% else
  if (one.half >= 0) {
    float a[2][32] = {};
    for (i32 h = 0; h < 2; h++)
      for (i32 k = 0; k < 16; k++) {
        const i32 at = kept_at(thread, group, place, h, k);
        if (k % 2 && at <= kept_at(thread, group, place, h, k - 1))
          machine.fail("multiplies by numbers whose positions do not ascend", thread);
        a[h][k / 2 * 4 + at] = operand_number(one.a, true, row + h * 8, k);
      }
    for (i32 e = 0; e < one.n / 2; e++) {
      float sum = one.more ? one.d[e] : 0.0f;
      for (i32 k = 0; k < 32; k++)
        sum += a[e / 2 % 2][k] * operand_number(one.b, one.by_depth, col + e / 4 * 8 + e % 2, k);
      one.d[e] = sum;
    }
    return;
  }
  float a[2][16];
  for (i32 k = 0; k < 16; k++)
    for (i32 h = 0; h < 2; h++)
      a[h][k] = one.registers ? held_number(thread, group, place, h, k)
                              : operand_number(one.a, true, row + h * 8, k);
  for (i32 e = 0; e < one.n / 2; e++) {
    float sum = one.more ? one.d[e] : 0.0f;
    for (i32 k = 0; k < 16; k++)
      sum += a[e / 2 % 2][k] * operand_number(one.b, one.by_depth, col + e / 4 * 8 + e % 2, k);
    one.d[e] = sum;
  }
  //% endif
}
template <int PENDING>
DEV void wait_products() {
  named_barrier& all = groups.wait[machine.rank() * 8 + tracea::thread() / 128];
  groups.meet(all, 128, true);
  auto& own = groups.products[machine.current];
  const size_t open = own.empty() ? 0 : own.size() - 1, ended = open > PENDING ? open - PENDING : 0;
  for (size_t group = 0; group < ended; group++)
    for (size_t place = 0; place < own[group].size(); place++) compute(machine.current, group, place);
  groups.meet(all, 128, true);
  own.erase(own.begin(), own.begin() + ended);
}

// x / 2 (1 + tanh(x (a + b x²))) of two numbers in fp16; `a` and `b` are pairs too.
DEV u32 gelu_pair(u32 x, u32 a, u32 b) {
  _Float16 numbers[2], first[2], second[2];
  memcpy(numbers, &x, 4);
  memcpy(first, &a, 4);
  memcpy(second, &b, 4);
  for (i32 i = 0; i < 2; i++) {
    const float v = numbers[i] < -65504.0f ? -65504.0f : (float)numbers[i];
    const float p = (_Float16)((_Float16)((_Float16)(v * v) * (float)second[i] + (float)first[i]) * v);
    numbers[i] = (_Float16)(v * 0.5f * (float)(_Float16)tanhf(p) + v * 0.5f);
  }
  memcpy(&x, numbers, 4);
  return x;
}
// Two numbers in fp16, times those of `factor`, in 8 bits.
DEV u16 f8_of_halves(u32 x, u32 factor) {
  const float by = f16_number((u16)factor);
  return f8_pair(f16_number((u16)x) * by, f16_number((u16)(x >> 16)) * by);
}

}  // namespace tracea
