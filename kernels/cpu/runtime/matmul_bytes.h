// The host loop of products of two computed matrices of bytes: a task packs the right one of a
// product into panels, as those of constant matrices are, and multiplies some rows by all of them.
#pragma once
#include "runtime/gemm.h"

namespace tracea {

constexpr int64_t kMostTerms = 1 << 15;         // whose sum fits 32 bits, whatever bytes they have
constexpr int64_t kRowBytes = 256 * 1024;       // of a task's rows, which stay in L2
constexpr int64_t kFewByteRows = 64;            // rows of a task at least, so that packing pays
constexpr int64_t kZeroRows = 2;                // of a panel, behind its fours: sums and zero points
constexpr uint32_t kHighBits = 0x80808080;

struct MatmulBytesJob {
  GemmJob gemm;  // k in fours
  const TensorView *x, *w;
  int64_t depth;       // terms of a sum
  int64_t panel;       // floats
  int64_t packed;      // bytes of all panels
  int32_t w_zero;      // of w as signed bytes
  uint32_t w_flip;     // bits of w to invert
  bool copies;         // rows of x are copied: into whole fours, or because they lie apart or anywhere
};

inline const char* matrix_at(const GemmJob& gemm, const TensorView& box, int64_t item) {
  return box.data + item_offset(gemm, box, item);
}

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint16_t Pairs8 __attribute__((vector_size(16)));
typedef uint32_t Fours4 __attribute__((vector_size(16)));
typedef uint64_t Eights2 __attribute__((vector_size(16)));

#if defined(__clang__)
#define TRACEA_SHUFFLE(V, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define TRACEA_SHUFFLE(V, a, b, ...) __builtin_shuffle(a, b, V{__VA_ARGS__})
#endif

// Elements of two vectors in turn: of their lower halves, or of their higher ones.
inline Bytes16 low_in_turn(Bytes16 a, Bytes16 b) {
  return TRACEA_SHUFFLE(Bytes16, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
inline Bytes16 high_in_turn(Bytes16 a, Bytes16 b) {
  return TRACEA_SHUFFLE(Bytes16, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
inline Pairs8 low_in_turn(Pairs8 a, Pairs8 b) {
  return TRACEA_SHUFFLE(Pairs8, a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
inline Pairs8 high_in_turn(Pairs8 a, Pairs8 b) {
  return TRACEA_SHUFFLE(Pairs8, a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}
inline Eights2 low_in_turn(Fours4 a, Fours4 b) {
  return (Eights2)TRACEA_SHUFFLE(Fours4, a, b, 0, 4, 1, 5);
}
inline Eights2 high_in_turn(Fours4 a, Fours4 b) {
  return (Eights2)TRACEA_SHUFFLE(Fours4, a, b, 2, 6, 3, 7);
}

inline Bytes16 load_bytes(const char* from) {
  Bytes16 bytes;
  memcpy(&bytes, from, sizeof bytes);
  return bytes;
}
inline void store_fours(uint32_t* to, Fours4 fours, uint32_t flip) {
  fours ^= flip;
  memcpy(to, &fours, sizeof fours);
}

inline uint32_t word_at(const char* from) {
  uint32_t word;
  memcpy(&word, from, sizeof word);
  return word;
}

// Four rows of 16 columns that lie side by side.
inline void pack_columns(const char* from, int64_t row, uint32_t flip, uint32_t* to) {
  const Bytes16 a = load_bytes(from), b = load_bytes(from + row);
  const Bytes16 c = load_bytes(from + 2 * row), d = load_bytes(from + 3 * row);
  const Pairs8 low = (Pairs8)low_in_turn(a, b), high = (Pairs8)high_in_turn(a, b);
  const Pairs8 low_behind = (Pairs8)low_in_turn(c, d), high_behind = (Pairs8)high_in_turn(c, d);
  store_fours(to, (Fours4)low_in_turn(low, low_behind), flip);
  store_fours(to + 4, (Fours4)high_in_turn(low, low_behind), flip);
  store_fours(to + 8, (Fours4)low_in_turn(high, high_behind), flip);
  store_fours(to + 12, (Fours4)high_in_turn(high, high_behind), flip);
}

// Sixteen bytes of each of 16 columns, which lie side by side.
inline void pack_rows(const char* from, int64_t column, uint32_t flip, uint32_t* to) {
  for (int c = 0; c < TRACEA_PANEL; c += 4, from += 4 * column, to += 4) {
    const Fours4 a = (Fours4)load_bytes(from), b = (Fours4)load_bytes(from + column);
    const Fours4 e = (Fours4)load_bytes(from + 2 * column), f = (Fours4)load_bytes(from + 3 * column);
    const Eights2 ab = low_in_turn(a, b), ab_behind = high_in_turn(a, b);
    const Eights2 ef = low_in_turn(e, f), ef_behind = high_in_turn(e, f);
    const auto store = [&](int q, Eights2 left, Eights2 right, uint64_t half) {
      store_fours(to + q * TRACEA_PANEL, (Fours4)Eights2{left[half], right[half]}, flip);
    };
    store(0, ab, ef, 0), store(1, ab, ef, 1);
    store(2, ab_behind, ef_behind, 0), store(3, ab_behind, ef_behind, 1);
  }
}

// `terms` bytes of a column, fewer than four where it ends.
inline uint32_t pack_four(const char* from, int64_t row, int64_t terms, uint32_t flip) {
  uint32_t four = 0;
  for (int64_t t = 0; t < terms; ++t)
    four |= ((static_cast<uint8_t>(from[t * row]) ^ flip) & 0xff) << 8 * t;
  return four;
}

// The fours of a panel of `columns` columns.
inline void pack_panel(const MatmulBytesJob& job, const char* from, int64_t columns, uint32_t* to) {
  const int64_t *strides = job.w->strides + job.gemm.outer, row = strides[0], column = strides[1];
  const int64_t whole = job.depth / 4, rest = job.depth % 4;
  int64_t q = 0;
  if (row == 1 && columns == TRACEA_PANEL)
    for (; q + 4 <= whole; q += 4, to += 4 * TRACEA_PANEL)
      pack_rows(from + 4 * q, column, job.w_flip, to);
  for (; q < whole; ++q, to += TRACEA_PANEL) {
    const char* four = from + 4 * q * row;
    if (column == 1 && columns == TRACEA_PANEL) {
      pack_columns(four, row, job.w_flip, to);
      continue;
    }
    if (row == 1)
      for (int64_t c = 0; c < columns; ++c) to[c] = word_at(four + c * column) ^ job.w_flip;
    else
      for (int64_t c = 0; c < columns; ++c) to[c] = pack_four(four + c * column, row, 4, job.w_flip);
    for (int64_t c = columns; c < TRACEA_PANEL; ++c) to[c] = 0;
  }
  if (!rest) return;
  for (int64_t c = 0; c < columns; ++c)
    to[c] = pack_four(from + 4 * whole * row + c * column, row, rest, job.w_flip);
  for (int64_t c = columns; c < TRACEA_PANEL; ++c) to[c] = 0;
}

// Behind the fours: what zero points need, the sums of the columns less their zero points, and these.
// Sums are products with a row of ones.
inline void add_sums(const MatmulBytesJob& job, float* packed, uint32_t* ones) {
  const GemmJob& gemm = job.gemm;
  alignas(64) float sums[kMaxTile];
  const int32_t nothing = 0;
  const int64_t panels = ceil_div(gemm.n, TRACEA_PANEL);
  for (int64_t q = 0; q < gemm.k; ++q) ones[q] = 0x01010101;
  for (int64_t p = 0; p < panels; ++p) {
    float* panel = packed + p * job.panel;
    int32_t* behind = reinterpret_cast<int32_t*>(panel + gemm.k * TRACEA_PANEL);
    memset(behind, 0, kZeroRows * TRACEA_PANEL * sizeof(int32_t));
    tracea_gemm_tile tile = {};
    tile.k = gemm.k, tile.a = reinterpret_cast<const float*>(ones), tile.a_step = 1;
    tile.b = panel, tile.b_panel = job.panel, tile.b_row = TRACEA_PANEL;
    tile.c = sums, tile.ldc = TRACEA_PANEL;
    tile.mr = 1, tile.nv = 1, tile.last = TRACEA_PANEL;
    tile.row_sums = &nothing;
    gemm.kernel(&tile);
    for (int64_t c = 0; c < TRACEA_PANEL; ++c) {
      behind[c] = static_cast<int32_t>(sums[c]) - job.w_zero * static_cast<int32_t>(job.depth);
      behind[TRACEA_PANEL + c] = job.w_zero;
    }
  }
}

inline void pack_matrix(const MatmulBytesJob& job, const char* from, float* packed, uint32_t* ones) {
  const int64_t column = job.w->strides[job.gemm.outer + 1];
  for (int64_t n = 0, p = 0; n < job.gemm.n; n += TRACEA_PANEL, ++p)
    pack_panel(job, from + n * column, min(job.gemm.n - n, TRACEA_PANEL),
               reinterpret_cast<uint32_t*>(packed + p * job.panel));
  add_sums(job, packed, ones);
}

// Rows of x with zeros behind them up to a whole four.
inline void copy_rows(const MatmulBytesJob& job, const char* from, int64_t rows, char* to) {
  const int64_t *strides = job.x->strides + job.gemm.outer, step = strides[1];
  const int64_t depth = job.depth, wide = 4 * job.gemm.k;
  for (int64_t r = 0; r < rows; ++r, from += strides[0], to += wide) {
    if (step == 1 || depth <= 1) memcpy(to, from, static_cast<size_t>(depth));
    else
      for (int64_t k = 0; k < depth; ++k) to[k] = from[k * step];
    memset(to + depth, 0, static_cast<size_t>(wide - depth));
  }
}

// A task: rows [first, end) of one product.
inline void matmul_bytes_task(void* usr, size_t index) {
  MatmulBytesJob& job = *static_cast<MatmulBytesJob*>(usr);
  const GemmJob& gemm = job.gemm;
  const int64_t task = static_cast<int64_t>(index), at = task / gemm.chunks;
  const int64_t chunk = task % gemm.chunks;
  const int64_t first = gemm.m * chunk / gemm.chunks, end = gemm.m * (chunk + 1) / gemm.chunks;
  const int slot = claim_slot(job.gemm.slots);
  char* memory = memory_of(job.gemm.slots, slot);
  float* packed = reinterpret_cast<float*>(memory);
  char* free = memory + job.packed;
  pack_matrix(job, matrix_at(gemm, *job.w, at), packed, reinterpret_cast<uint32_t*>(free));
  const TensorView& x = *job.x;
  const int64_t pitch = x.strides[gemm.outer];
  const char* rows = matrix_at(gemm, x, at) + first * pitch;
  if (job.copies) {
    copy_rows(job, rows, end - first, free);
    rows = free;
    free += (end - first) * 4 * gemm.k;
  }
  multiply_byte_rows(gemm, item_of(gemm, at), {first, end, 0}, rows, job.depth, job.w_zero ? free : nullptr,
                     packed);
  release_slot(job.gemm.slots, slot);
}

inline bool matmul_bytes_shapes(Run& run, const Call& call, const TensorView* views,
                                MatmulBytesJob& job) {
  GemmJob& gemm = job.gemm;
  const TensorView &x = *job.x, &w = *job.w, &y = gemm.results[0];
  const int32_t o = gemm.outer;
  gemm.m = x.dims[o], job.depth = x.dims[o + 1], gemm.n = y.dims[o + 1];
  bool ok = y.dims[o] == gemm.m && w.dims[o] == job.depth && w.dims[o + 1] == gemm.n;
  ok = ok && epilogue_lies(gemm);
  gemm.items = 1;
  for (int32_t axis = 0; ok && axis < o; ++axis) {
    gemm.items *= y.dims[axis];  // no more than the result has elements
    for (int32_t v = 0; v < call.view_count; ++v) ok = ok && views[v].dims[axis] == y.dims[axis];
  }
  if (!ok)
    return run.error.fail("The views of a product of bytes do not fit together (M %lld, N %lld, K %lld).",
                          static_cast<long long>(gemm.m), static_cast<long long>(gemm.n),
                          static_cast<long long>(job.depth));
  return job.depth <= kMostTerms ||
         run.error.fail("A product of bytes has sums of %lld terms, more than %lld, which may not "
                        "fit 32 bits.", static_cast<long long>(job.depth),
                        static_cast<long long>(kMostTerms));
}

// Chunks of rows: for every processor, and of a size that stays in cache.
inline int64_t byte_chunks(const Run& run, const MatmulBytesJob& job) {
  const GemmJob& gemm = job.gemm;
  const int64_t large = ceil_div(gemm.m * gemm.k * 4, kRowBytes);
  const int64_t wanted = run.threads() > 1 ? ceil_div(4 * run.threads(), gemm.items) : 1;
  const int64_t most = max(1, gemm.m / kFewByteRows);
  return max(1, min(most, max(wanted, large)));
}

// Whether all rows begin at a multiple of four bytes, as what reads four at a time needs.
inline bool rows_begin_at_fours(const TensorView& x, int32_t row_axis) {
  bool all = reinterpret_cast<uintptr_t>(x.data) % 4 == 0;
  for (int32_t axis = 0; axis <= row_axis; ++axis)
    all = all && (x.dims[axis] <= 1 || x.strides[axis] % 4 == 0);
  return all;
}

inline bool run_matmul_bytes(Run& run, const Call& call, const TensorView* views) {
  MatmulBytesJob job = {};
  GemmJob& gemm = job.gemm;
  gemm.isa = run.host.isa;
  gemm.type = call.chain_type();
  gemm.chain = gemm.type ? gemm.isa->chain[call.chain] : nullptr;
  job.x = &views[0], job.w = &views[1];
  gemm.extra = &views[2];
  gemm.results = gemm.extra + (gemm.type ? gemm.type->operands - 1 : 0);
  gemm.x = gemm.w = gemm.results;  // items are float32 there; those of bytes are found here
  gemm.parts = 1;
  gemm.outer = call.views[0].rank - 2;
  if (!matmul_bytes_shapes(run, call, views, job)) return false;
  if (gemm.items == 0 || gemm.m == 0 || gemm.n == 0) return true;
  gemm.zero = static_cast<int32_t>(call.ints[matmul_bytes_call::kZero]);
  if (call.views[0].type == ORT_I8) gemm.zero += 128, gemm.flip = static_cast<int32_t>(kHighBits);
  job.w_zero = static_cast<int32_t>(call.ints[matmul_bytes_call::kWZero]);
  if (call.views[1].type == ORT_U8) job.w_zero -= 128, job.w_flip = kHighBits;
  multiply_bytes(gemm);
  gemm.rounds = rounds_sums(gemm);
  gemm.k = ceil_div(job.depth, 4);
  gemm.k_block = gemm.k + kZeroRows, gemm.k_blocks = 1, gemm.whole_k = 1;
  gemm.packs = 1, gemm.w_panel = TRACEA_PANEL, gemm.per_task = 1, gemm.groups = 1;
  const int64_t panels = ceil_div(gemm.n, TRACEA_PANEL), *strides = views[0].strides + gemm.outer;
  gemm.columns = gemm.per_group = ceil_div(panels, gemm.nv);
  job.copies = job.depth % 4 != 0 || (job.depth > 1 && strides[1] != 1) || strides[0] < 0 ||
               !rows_begin_at_fours(views[0], gemm.outer);
  gemm.x_row = job.copies ? gemm.k : strides[0] / 4, gemm.x_step = 1;
  gemm.next_weights = run.next_weights;
  gemm.caller = pthread_self();
  gemm.chunks = byte_chunks(run, job);
  job.panel = gemm.k_block * TRACEA_PANEL;
  job.packed = panels * job.panel * 4;
  const int64_t rows = ceil_div(gemm.m, gemm.chunks);
  const int64_t beside = max(4 * gemm.k, (job.copies ? rows * 4 * gemm.k : 0) + rows * 4);
  Scratch scratch(run);
  const int64_t tasks = gemm.items * gemm.chunks;
  return make_slots(run, scratch, tasks, job.packed + beside, &gemm.slots) &&
         run.parallel(tasks, matmul_bytes_task, &job);
}

}  // namespace tracea
