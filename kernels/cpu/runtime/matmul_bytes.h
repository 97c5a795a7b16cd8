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
  bool copies;         // rows of x are copied: into whole fours, or because they lie apart
};

inline const char* matrix_at(const GemmJob& gemm, const TensorView& box, int64_t item) {
  return box.data + item_offset(gemm, box, item);
}

// Two bytes of each of two rows, side by side: (a0 b0 a1 b1 …) of four columns.
inline uint64_t in_turn(uint32_t a, uint32_t b) {
  const auto spread = [](uint64_t x) {
    x = (x | x << 16) & 0x0000ffff0000ffff;
    return (x | x << 8) & 0x00ff00ff00ff00ff;
  };
  return spread(a) | spread(b) << 8;
}

inline uint32_t word_at(const char* from) {
  uint32_t word;
  memcpy(&word, from, sizeof word);
  return word;
}

// Four rows of 16 columns that lie side by side.
inline void pack_columns(const char* from, int64_t row, uint32_t flip, uint32_t* to) {
  for (int c = 0; c < TRACEA_PANEL; c += 4, from += 4) {
    const uint64_t low = in_turn(word_at(from), word_at(from + row));
    const uint64_t high = in_turn(word_at(from + 2 * row), word_at(from + 3 * row));
    for (int i = 0; i < 4; ++i)
      to[c + i] = ((low >> 16 * i & 0xffff) | (high >> 16 * i & 0xffff) << 16) ^ flip;
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
  for (int64_t q = 0; q < whole; ++q, to += TRACEA_PANEL) {
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
  multiply_byte_rows(gemm, item_of(gemm, at), first, end, rows, job.depth, job.w_zero ? free : nullptr,
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
  const bool alike = gemm.m <= 1 || strides[0] % 4 == 0;
  job.copies = job.depth % 4 != 0 || (job.depth > 1 && strides[1] != 1) || !alike || strides[0] < 0;
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
