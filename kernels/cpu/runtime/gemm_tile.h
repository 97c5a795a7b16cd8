// Tasks of a GEMM by register tiles: y = chain(x * w + bias), some panels times some rows each.
//
// Order inside a task: blocks of k outside, then panels, then row blocks, so that a panel of
// weights stays in L1 or L2 while rows stream by; the next panel is prefetched meanwhile.
// Weights that do not lie in panels are packed block by block.  A block of k takes up the sums
// where the last one left them: the order of additions does not depend on blocks.
#pragma once
#include <pthread.h>

#include "runtime/isa.h"
#include "runtime/slots.h"

namespace tracea {

constexpr int kMaxTile = 32 * 64;  // floats of the largest register tile
constexpr int64_t kPage = 4096;    // bytes
constexpr int64_t kMaxPrefetchLinesOfGemm = 9 * 1024;  // of the next product's weights: half of a small L2
constexpr int64_t kNearBytes = 32 << 10;   // of a product's weights that stay in L1 and L2 unaided
constexpr int64_t kFarFloats = 2 << 20;    // results of this size have left L2 when they are read

// Weights as codes that have a scale for each block of k.
struct NBitsMatrix {
  const uint8_t* codes;
  int64_t panel;  // bytes
  const uint8_t* zeros;  // integer zero points of the first panel, or null
  const float* scales;
  int64_t blocks;
  int32_t bits, block, scale_rows, zero;
};

struct GemmJob {
  const tracea_isa_table* isa;
  tracea_gemm_fn kernel;
  tracea_gemm_end_fn end;  // or null
  tracea_chain_fn chain;
  const tracea_chain_type* type;
  const TensorView *x, *w, *bias, *extra, *results;  // bias may be null
  int32_t parts;                              // results side by side; with a chain one
  int32_t outer;                              // leading axes: a batch of so many products
  int32_t mr, nv;          // largest register tile
  int32_t tall;            // rows of a tile of at most half as many panels; 0: no more than of others
  const float *row_scale, *column_scale;  // of 16-bit integers; else null
  const int32_t* row_sums;  // of 8-bit integers whose columns of w have zero points; else null
  const uint8_t* const* windows;  // of an image: rows of bytes, of `lines` lines each; else null
  int64_t lines, line;            // bytes from one line to the next
  int32_t zero, flip;       // zero point of 8-bit integers as unsigned ones; bits of x to invert
  int32_t whole_k;          // sums may not be kept in float32 between blocks of k
  int32_t rounds;           // kernels round sums of bytes to bytes, instead of the chain: as its type says
  int32_t fit;              // 1: before that, no sum times its factor exceeds 32 bits
  int64_t items, m, n, k;
  int64_t x_row, x_step;   // strides of x between rows and along k
  int64_t w_row, w_column; // strides of w along k and between columns; panels: 16 and 1
  int64_t w_panel;         // stride between panels; plain: 16 columns
  int32_t w_exact, packs, prefetch, split, streams;
  int64_t columns, per_group, groups, chunks, per_task;  // tasks: items / per_task * groups * chunks
  int64_t k_block, k_blocks;
  int64_t packed_floats, sum_row;  // one task's scratch: packed weights; floats between rows of sums
  WeightPrefetch next_weights;
  pthread_t caller;     // whose thread runs the first tasks
  int32_t joined;       // 1 once another thread runs some
  bool by_columns;      // tasks of the same columns are neighbours; else those of the same rows
  const NBitsMatrix* nbits;  // from which panels are packed, instead of w; or null
  Slots slots;
};

// The operands of one product.
struct Item {
  int64_t index;
  const float *x, *w;
  const char* extra[TRACEA_MAX_OPERANDS];
  char* result[TRACEA_MAX_RESULTS];  // without a chain: the first part
};

// Where item `at` of a view begins, in elements.
inline int64_t item_offset(const GemmJob& job, const TensorView& box, int64_t at) {
  int64_t offset = 0;
  for (int32_t axis = job.outer; axis-- > 0; at /= job.results[0].dims[axis])
    offset += at % job.results[0].dims[axis] * box.strides[axis];
  return offset;
}

inline Item item_of(const GemmJob& job, int64_t at) {
  Item item;
  item.index = at;
  item.x = job.x->f32() + item_offset(job, *job.x, at);
  item.w = job.w->f32() + item_offset(job, *job.w, at);
  const int32_t operands = job.type ? job.type->operands : 1;
  for (int32_t i = 1; i < operands; ++i)
    item.extra[i - 1] = job.extra[i - 1].data + item_offset(job, job.extra[i - 1], at) *
                                                    element_size(job.type->type[i]);
  for (int32_t i = 0; i < (job.type ? job.type->results : 1); ++i)
    item.result[i] = job.results[i].data + item_offset(job, job.results[i], at) *
                                               (job.type ? element_size(job.type->result[i]) : 4);
  return item;
}

// Matrix tiles take two panels of bytes; so few rows are multiplied in vectors, wider ones.
constexpr int32_t kRowsInVectors = 4, kPanelsInTiles = 2, kRowsOfTiles = 32;

// The kernel of products of bytes and its largest tile.
inline void multiply_bytes(GemmJob& job) {
  job.kernel = job.isa->gemm_int8;
  job.mr = job.isa->int8_mr, job.nv = job.isa->int8_nv;
  if (job.mr == kRowsOfTiles && job.m > kRowsInVectors) job.nv = kPanelsInTiles;
  const int level = level_of(job.isa->isa);
  if (level >= level_of("avx512") && level <= level_of("avx512bf16")) job.tall = 2 * job.mr;
}

// Divides the columns of a product of bytes, whose rows make `tasks` tasks, into groups for `wanted`.
// Groups have whole cache lines of results: tasks that write the same line wait for each other.
inline void divide_byte_columns(GemmJob& job, int64_t tasks, int64_t wanted) {
  job.columns = ceil_div(ceil_div(job.n, TRACEA_PANEL), job.nv);
  const int64_t lines = max(kAlign / (job.nv * TRACEA_PANEL), 1);
  const int64_t groups = max(min(ceil_div(wanted, max(tasks, 1)), job.columns / lines), 1);
  job.per_group = ceil_div(ceil_div(job.columns, groups), lines) * lines;
  job.groups = ceil_div(job.columns, job.per_group);
}

// Register-tile column `i` starts at this panel; tiles are of nearly equal width.
inline int64_t first_panel(const GemmJob& job, int64_t i) {
  return ceil_div(job.n, TRACEA_PANEL) * i / job.columns;
}

struct GemmTile {
  int64_t row, column;
  int32_t rows, columns;
};

inline void finish_tile(const GemmJob& job, const Item& item, const GemmTile& at, const float* c,
                        int64_t ldc) {
  tracea_chain_tile tile = {};
  tile.rows = at.rows;
  tile.cols = at.columns;
  tile.in[0] = c;
  tile.in_stride[0] = ldc;
  for (int32_t i = 1; i < job.type->operands; ++i) {
    const int64_t stride = job.extra[i - 1].strides[job.outer];
    const uint8_t kind = job.type->kind[i];
    const bool by_row = kind == TRACEA_FULL || kind == TRACEA_COL;
    const bool by_column = kind == TRACEA_FULL || kind == TRACEA_ROW;
    const int64_t first = (by_row ? at.row * stride : 0) + (by_column ? at.column : 0);
    tile.in[i] = item.extra[i - 1] + first * element_size(job.type->type[i]);
    tile.in_stride[i] = by_row ? stride : 0;
  }
  for (int32_t i = 0; i < job.type->results; ++i) {
    const int64_t stride = job.results[i].strides[job.outer];
    const int64_t first = at.row * stride + at.column;
    tile.out[i] = item.result[i] + first * element_size(job.type->result[i]);
    tile.out_stride[i] = stride;
  }
  job.chain(&tile);
}

// A finished tile whose columns belong to several results.
inline void split_tile(const GemmJob& job, int64_t item, const GemmTile& at, const float* c,
                       int64_t ldc) {
  int64_t first = 0;
  for (int32_t i = 0; i < job.parts; ++i) {
    const TensorView& box = job.results[i];
    const int64_t width = box.dims[job.outer + 1], stride = box.strides[job.outer];
    const int64_t from = max(at.column, first), to = min(at.column + at.columns, first + width);
    float* y = box.f32() + item_offset(job, box, item) + at.row * stride - first;
    for (int32_t r = 0; from < to && r < at.rows; ++r)
      memcpy(y + r * stride + from, c + r * ldc + from - at.column,
             static_cast<size_t>(to - from) * sizeof(float));
    first += width;
  }
}

// What becomes of a tile that is not finished where it lies.
inline void finish(const GemmJob& job, const Item& item, const GemmTile& at, const float* c,
                   int64_t ldc) {
  if (job.chain) finish_tile(job, item, at, c, ldc);
  else split_tile(job, item.index, at, c, ldc);
}

// Whether kernels for sums of bytes do what the chain of these sums does: 0, or as the chain's type
// says.
inline int32_t rounds_sums(const GemmJob& job) {
  const int level = level_of(job.isa->isa);
  const int32_t how = job.type ? job.type->rounds : 0;
  const char* last = how > 1 ? "avx512bf16" : "amxbf16";
  return level >= level_of("avx512") && level <= level_of(last) ? how : 0;
}

// Whether |x| <= most for n numbers; not if some are NaN.
inline bool all_within(const float* x, int64_t n, float most) {
  typedef uint32_t Four __attribute__((vector_size(16)));
  uint32_t limit;
  memcpy(&limit, &most, sizeof limit);
  Four over = {}, bits;
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    memcpy(&bits, x + i, sizeof bits);
    over |= limit - (bits & 0x7fffffff);  // below 0, that is, 2^31 and more
  }
  bits = Four{};
  memcpy(&bits, x + i, static_cast<size_t>(n - i) * sizeof *x);
  over |= limit - (bits & 0x7fffffff);
  return (over[0] | over[1] | over[2] | over[3]) >> 31 == 0;
}

// Kernels round sums of bytes, if they do what the chain does.
inline void round_sums(GemmJob& job) {
  job.rounds = rounds_sums(job);
  if (job.rounds == 0 || job.rounds == 2) return;
  const int64_t columns = job.results[0].dims[job.outer + 1];  // of all groups
  if (job.rounds == 4) {
    const tracea_added_bytes& how = job.type->sum;
    const float largest = how.high > -how.low ? how.high : -how.low;
    job.fit = largest * how.times * how.added_times < 0x1p29f && how.added_times < 0x1p20f &&
              all_within(reinterpret_cast<const float*>(job.extra[1].data), columns,
                         0x1p29f / (how.added_times > 1 ? how.added_times : 1));
    return;
  }
  job.fit = all_within(reinterpret_cast<const float*>(job.extra[0].data), columns, 0.25f) &&
            all_within(reinterpret_cast<const float*>(job.extra[1].data), columns, 0x1p30f);
}

inline bool in_place(const GemmJob& job) { return !job.chain && job.parts == 1; }

// Whether the result goes past the caches: written the usual way, its lines would be read first.
inline bool streams(const GemmJob& job) {
  const TensorView& y = job.results[0];
  const int64_t row = y.strides[job.outer];
  return in_place(job) && job.items == 1 && job.m * job.n >= kFarFloats && row % TRACEA_PANEL == 0 &&
         reinterpret_cast<uintptr_t>(y.data) % kAlign == 0;
}

// What the kernels are to prefetch during one column: `segments` runs of cache lines.
struct PrefetchRange {
  const float* from;
  int64_t lines, segments, stride;
};

// The share of row block `b` of `blocks`: pieces of so many bytes, of one segment.
inline int32_t share_of(const PrefetchRange& wanted, int64_t piece, int64_t b, int64_t blocks,
                        const char** first) {
  if (!wanted.from) return 0;
  const int64_t s = wanted.segments > 1 ? b * wanted.segments / blocks : 0;
  const int64_t begin = s ? ceil_div(s * blocks, wanted.segments) : 0;
  const int64_t end = wanted.segments > 1 ? ceil_div((s + 1) * blocks, wanted.segments) : blocks;
  const int64_t pieces = ceil_div(wanted.lines * kAlign, piece), all = max(end - begin, 1);
  const int64_t from = pieces * (b - begin) / all, to = pieces * (b - begin + 1) / all;
  *first = reinterpret_cast<const char*>(wanted.from + s * wanted.stride) + from * piece;
  return static_cast<int32_t>(to - from);
}

// The shares of one row block after another.  Those of one segment need no division for each.
struct PrefetchShares {
  PrefetchRange wanted;
  int64_t piece, blocks, step, rest, due;
  const char* at;

  PrefetchShares(const PrefetchRange& all, int64_t bytes, int64_t row_blocks)
      : wanted(all), piece(bytes), blocks(max(row_blocks, 1)), due(0),
        at(reinterpret_cast<const char*>(all.from)) {
    const int64_t pieces = wanted.from ? ceil_div(wanted.lines * kAlign, piece) : 0;
    step = pieces / blocks, rest = pieces % blocks;
  }
  int32_t of_block(int64_t b, const char** first) {
    if (wanted.segments > 1) return share_of(wanted, piece, b, blocks, first);
    int64_t count = step;
    due += rest;
    if (due >= blocks) due -= blocks, ++count;
    *first = at;
    at += count * piece;
    return static_cast<int32_t>(count);
  }
};

// Rows [row, end) and register-tile columns [first, last) of one product.
struct Part {
  const Item& item;
  int64_t row, end, first, last;
  float *packed, *sums;  // this task's scratch
  int32_t* state;        // its kernel's

  int64_t panel(const GemmJob& job) const { return first_panel(job, first); }
};

// The panels of column `i` from step `k0` on: where they will be read.
inline const float* panels_at(const GemmJob& job, const Part& part, int64_t i, int64_t k0) {
  const int64_t p = first_panel(job, i);
  if (job.packs) return part.packed + (p - part.panel(job)) * job.k_block * TRACEA_PANEL;
  return part.item.w + p * job.w_panel + k0 * job.w_row;
}

// The column `i` columns behind the first one that this thread takes of the next product: the
// caller's thread begins at the front, another (of two) in the middle.
inline PrefetchRange column_after(const GemmJob& job, bool calls, int64_t i) {
  const WeightPrefetch& next = job.next_weights;
  const int64_t columns = ceil_div(next.panels, job.nv);
  const int64_t p = (calls || !columns ? 0 : next.panels * (columns / 2) / columns) + i * job.nv;
  const int64_t count = max(0, min(job.nv, next.panels - p));
  if (count == 0) return {};
  return {next.from + p * next.lines * TRACEA_PANEL, min(count * next.lines, kMaxPrefetchLinesOfGemm), 1, 0};
}

// Column `i`, which is `ahead` columns behind the one at hand, or what this thread multiplies by
// where its share of the columns has ended.
inline PrefetchRange column_or_next(const GemmJob& job, const Part& part, int64_t i, int64_t ahead) {
  // The next task has other rows of the same columns, or there is none.
  if (job.by_columns && i >= part.last && (part.end < job.m || i >= job.columns)) return {};
  const bool calls = pthread_equal(job.caller, pthread_self());
  const int64_t half = ceil_div(job.groups, 2) * job.per_group;
  const bool first = calls && i - ahead < half && __atomic_load_n(&job.joined, __ATOMIC_RELAXED);
  const int64_t end = first ? half : job.columns;
  const bool over = part.end == job.m && part.item.index + 1 == job.items;
  if (i >= end && over) return column_after(job, calls, i - end);
  i %= job.columns;  // past the last one: other rows by the same weights
  const int64_t panels = first_panel(job, i + 1) - first_panel(job, i);
  return {panels_at(job, part, i, 0), panels * job.k, 1, 0};
}

// The column `ahead` columns after `i` in the order of the task, or of the next tasks: the lines
// its panels lie in.
inline PrefetchRange panels_ahead(const GemmJob& job, const Part& part, int64_t i, int64_t block,
                           int64_t ahead) {
  if (job.w_exact) return {};
  if (job.packs) {
    if (job.k_blocks > 1 || job.w_row != 1 || job.w_column != job.k) return {};
    i += (part.last - part.first) * ahead;
    if (i >= job.columns) return {};
    const int64_t n0 = first_panel(job, i) * TRACEA_PANEL;
    const int64_t n1 = min(job.n, first_panel(job, i + 1) * TRACEA_PANEL);
    return {part.item.w + n0 * job.k, (n1 - n0) * job.k / TRACEA_PANEL, 1, 0};
  }
  if (job.k_blocks == 1) return column_or_next(job, part, i + ahead, ahead);
  for (; ahead > 0; --ahead)
    if (++i == part.last) i = part.first, ++block;
  if (i >= job.columns || block >= job.k_blocks) return {};
  const int64_t panels = first_panel(job, i + 1) - first_panel(job, i), k0 = block * job.k_block;
  return {panels_at(job, part, i, k0), min(job.k_block, job.k - k0), panels, job.w_panel};
}

// Whether the product's own weights need no prefetch: so few bytes that the tiles which are rounded
// where they are take less time than it takes to divide the lines among them.
inline bool stays_near(const GemmJob& job, const Part& part, int64_t i, int64_t ahead) {
  const bool ends = part.end == job.m && i + ahead >= job.columns;
  return job.rounds && !ends && job.k * job.n * 4 <= kNearBytes;
}

// Lets a tile that begins at a row and column round its sums to bytes where the result lies.
template <typename T>
inline void round_into(const GemmJob& job, const Item& item, int64_t row, int64_t column, T& tile) {
  tile.factor = reinterpret_cast<const float*>(item.extra[0]) + column;
  tile.summand = reinterpret_cast<const float*>(item.extra[1]) + column;
  tile.bytes_row = job.results[0].strides[job.outer];
  tile.bytes = reinterpret_cast<uint8_t*>(item.result[0]) + row * tile.bytes_row + column;
  tile.bytes_zero = job.type->zero, tile.bytes_fit = job.fit;
}

// And adds other bytes to them.
inline void add_bytes(const GemmJob& job, const Item& item, int64_t row, int64_t column,
                      tracea_gemm_tile& tile) {
  tile.sum = &job.type->sum;
  tile.added_row = job.extra[2].strides[job.outer];
  tile.added = reinterpret_cast<const uint8_t*>(item.extra[2]) + row * tile.added_row + column;
}

// One register-tile column over the rows of the part and one block of k.
inline void gemm_column(const GemmJob& job, const Part& part, int64_t i, int64_t block) {
  alignas(64) float finished[kMaxTile];
  const int64_t p0 = first_panel(job, i), p1 = first_panel(job, i + 1), n0 = p0 * TRACEA_PANEL;
  const int64_t most = job.tall && 2 * (p1 - p0) <= job.nv ? job.tall : job.mr;
  const int64_t rows = part.end - part.row, blocks = ceil_div(rows, most);
  const int64_t k0 = block * job.k_block, columns = min(p1 * TRACEA_PANEL, job.n) - n0;
  const bool begins = block == 0, ends = block + 1 == job.k_blocks;
  PrefetchRange wanted = {};
  if (job.prefetch && !stays_near(job, part, i, 1)) wanted = panels_ahead(job, part, i, block, 1);
  // Of what will be prefetched a column later, one line of every page.  Where that is in memory is
  // then known: prefetches that had to look it up would wait in line, and the loads behind them.
  const int64_t far = job.prefetch ? 2 : 1;
  const PrefetchRange later =
      stays_near(job, part, i, far) ? PrefetchRange{} : panels_ahead(job, part, i, block, far);
  float* y = reinterpret_cast<float*>(part.item.result[0]);
  const int64_t y_row = job.results[0].strides[job.outer];
  // Sums between blocks of k: where the result will be, or in scratch if more is to follow.
  const int64_t ld = in_place(job) ? y_row : job.sum_row;
  float* sums = !in_place(job) ? part.sums + n0 - part.panel(job) * TRACEA_PANEL : y + part.row * ld + n0;
  tracea_gemm_tile tile = {};
  tile.k = min(job.k_block, job.k - k0);
  tile.lda = job.x_row;
  tile.a_step = job.x_step;
  tile.b = panels_at(job, part, i, k0);
  tile.b_panel = job.packs ? job.k_block * TRACEA_PANEL : job.w_panel;
  tile.b_row = job.packs ? TRACEA_PANEL : job.w_row;
  tile.nv = static_cast<int32_t>(p1 - p0);
  tile.last = static_cast<int32_t>(columns - (tile.nv - 1) * TRACEA_PANEL);
  tile.b_exact = job.w_exact;
  tile.zero = job.zero;
  tile.flip = job.flip;
  tile.state = part.state;
  tile.lines = job.lines, tile.line = job.line;
  const bool finishes = ends && !in_place(job);
  tile.streams = job.streams && ends;
  // Finished tiles are held until there are some: what becomes of them then takes one call.
  const int64_t wide = tile.nv * TRACEA_PANEL, room = kMaxTile / wide;
  const int64_t each = rows / blocks, longer = rows % blocks;
  int32_t held = 0;
  int64_t row = part.row;
  PrefetchShares lines(wanted, kAlign, blocks), pages(later, kPage, blocks);
  // Kernels go on to tiles as high by themselves, where nothing is to be prefetched meanwhile.
  const bool goes_on = job.tall && job.rounds && !wanted.from && !later.from;
  for (int64_t b = 0; b < blocks; ++b) {
    tile.mr = static_cast<int32_t>(each + (b < longer));
    tile.a = part.item.x + row * job.x_row + k0 * job.x_step;
    tile.prefetch_lines = lines.of_block(b, &tile.prefetch);
    tile.look_up_pages = pages.of_block(b, &tile.look_up);
    float* sum = sums + (row - part.row) * ld;
    tile.init = !begins ? sum : job.bias ? job.bias->f32() + n0 : nullptr;
    tile.init_stride = begins ? 0 : ld;
    if (job.row_scale) tile.row_scale = job.row_scale + row, tile.column_scale = job.column_scale + n0;
    if (job.row_sums) tile.row_sums = job.row_sums + row;
    if (job.windows) tile.windows = job.windows + row;
    tile.c = finishes ? finished + held * wide : sum;
    tile.ldc = finishes ? wide : ld;
    if (job.rounds) round_into(job, part.item, row, n0, tile);
    if (job.rounds == 2) add_bytes(job, part.item, row, n0, tile);
    if (job.rounds > 2) tile.table = job.type->table;
    if (job.rounds == 4) tile.sum = &job.type->sum;
    if (goes_on) {
      tile.further = (b < longer ? longer : blocks) - b - 1;
      b += tile.further;
      row += tile.further * tile.mr;
    }
    job.kernel(&tile);
    row += tile.mr;
    if (!finishes || job.rounds) continue;
    held += tile.mr;
    if (b + 1 < blocks && held + most <= room) continue;
    finish(job, part.item, {row - held, n0, held, static_cast<int32_t>(columns)}, finished, wide);
    held = 0;
  }
}

// The same from codes.
inline void unpack_block(const GemmJob& job, const Part& part, int64_t block) {
  const NBitsMatrix& w = *job.nbits;
  const int64_t p0 = part.panel(job), k0 = block * job.k_block;
  tracea_nbits_unpack_tile tile = {};
  tile.k0 = k0, tile.k = min(job.k_block, job.k - k0);
  tile.blocks = w.blocks, tile.block = w.block, tile.panels = first_panel(job, part.last) - p0;
  tile.bits = w.bits, tile.scale_rows = w.scale_rows, tile.zero = w.zero;
  tile.b = w.codes + p0 * w.panel, tile.b_panel = w.panel;
  tile.b_scale = w.scales + p0 * w.blocks * w.scale_rows * TRACEA_PANEL;
  tile.b_zero = w.zeros ? w.zeros + p0 * w.panel : nullptr;
  tile.to = part.packed, tile.to_panel = job.k_block * TRACEA_PANEL;
  job.isa->unpack_nbits(&tile);
}

// Block `block` of k of the part's columns, into panels.
inline void pack_block(const GemmJob& job, const Part& part, int64_t block) {
  if (job.nbits) return unpack_block(job, part, block);
  const int64_t n0 = part.panel(job) * TRACEA_PANEL, k0 = block * job.k_block;
  tracea_gemm_pack_tile tile;
  tile.k = min(job.k_block, job.k - k0);
  tile.columns = min(first_panel(job, part.last) * TRACEA_PANEL, job.n) - n0;
  tile.from = part.item.w + k0 * job.w_row + n0 * job.w_column;
  tile.row = job.w_row;
  tile.column = job.w_column;
  tile.to = part.packed;
  tile.panel = job.k_block * TRACEA_PANEL;
  job.isa->gemm_pack(&tile);
}

// Follows the last tile of a task: releases what the kernel has set up.
inline void end_tiles(const GemmJob& job, int32_t state) {
  if (job.end) return job.end();
  if (!state) return;
  tracea_gemm_tile none = {};
  job.kernel(&none);
}

// Rows [first, end) of an item and a group of its register-tile columns.
struct ByteRows {
  int64_t first, end, group;
};

// Multiplies bytes of some rows of an item, which lie in scratch or elsewhere from `rows` on, by a group of columns.
// With room for `sums`, those of the `depth` bytes of each row come first.
inline void multiply_byte_rows(GemmJob job, Item item, const ByteRows& at, const char* rows, int64_t depth,
                               char* sums, float* packed) {
  const int64_t first = at.first, end = at.end;
  if (sums) {
    int32_t* made = reinterpret_cast<int32_t*>(sums);
    const tracea_sum_rows_tile tile = {end - first, depth, reinterpret_cast<const uint8_t*>(rows),
                                       4 * job.x_row, job.flip & 0xff, made};
    job.isa->sum_rows_int8(&tile);
    job.row_sums = made - first;
  }
  item.x = reinterpret_cast<const float*>(rows) - first * job.x_row;
  int32_t state = 0;
  const int64_t last = min(job.columns, (at.group + 1) * job.per_group);
  const Part part = {item, first, end, at.group * job.per_group, last, packed, nullptr, &state};
  for (int64_t i = part.first; i < last; ++i) gemm_column(job, part, i, 0);
  end_tiles(job, state);
}

inline void gemm_task(void* usr, size_t index) {
  GemmJob& job = *static_cast<GemmJob*>(usr);
  int64_t task = static_cast<int64_t>(index);
  if (!pthread_equal(job.caller, pthread_self())) __atomic_store_n(&job.joined, 1, __ATOMIC_RELAXED);
  const int64_t group = job.by_columns ? task / job.chunks : task % job.groups;
  const int64_t chunk = job.by_columns ? task % job.chunks : task / job.groups % job.chunks;
  const int64_t first = task / job.groups / job.chunks * job.per_task;
  const bool scratch = job.slots.bytes > 0;
  const int slot = scratch ? claim_slot(job.slots) : 0;
  float* memory = scratch ? reinterpret_cast<float*>(memory_of(job.slots, slot)) : nullptr;
  int32_t state = 0;
  for (int64_t at = first; at < min(job.items, first + job.per_task); ++at) {
    const Item item = item_of(job, at);
    const Part part = {item,
                       job.m * chunk / job.chunks,
                       job.m * (chunk + 1) / job.chunks,
                       group * job.per_group,
                       min(job.columns, (group + 1) * job.per_group),
                       memory,
                       memory + job.packed_floats,
                       &state};
    for (int64_t block = 0; block < job.k_blocks; ++block) {
      if (job.packs) pack_block(job, part, block);
      for (int64_t i = part.first; i < part.last; ++i) gemm_column(job, part, i, block);
    }
  }
  end_tiles(job, state);
  if (job.streams) end_streams();
  if (scratch) release_slot(job.slots, slot);
}

}  // namespace tracea
