// Records when a block runs and where; see kernels/gpu/block_times.py and runtime/block_times.h.
struct block_times {
  u64* at;  // numbers of blocks; null: nothing is recorded
  i32 across, tall;  // blocks of the grid along x and y
};

//% set member = "inline" if dialect == "host" else "__device__ __forceinline__"
//% if dialect == "cuda"
DEV u64 now() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
DEV u32 multiprocessor() {
  u32 n;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(n));
  return n;
}
DEV void keep_latest(u64* at, u64 t) { atomicMax(at, t); }
//% else
inline u64 passed = 0;
DEV u64 now() { return ++passed; }  // no clock, but an order
DEV u32 multiprocessor() { return (u32)block_x() % 2; }
DEV void keep_latest(u64* at, u64 t) { *at = t; }
//% endif

// Its life is that of each thread; a block ends with the last of its warps.
struct block_timer {
  const block_times& times;

  ${member} explicit block_timer(const block_times& own) : times(own) {
    if (times.at && thread() == 0) place()[0] = now(), place()[2] = multiprocessor();
  }
  ${member} ~block_timer() {
    if (times.at && thread() % 32 == 0) keep_latest(place() + 1, now());
  }
  ${member} u64* place() const {
    return times.at + 4 * (block_x() + (i64)times.across * (block_y() + times.tall * block_z()));
  }
};

