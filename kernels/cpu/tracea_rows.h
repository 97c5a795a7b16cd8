// What the runtime hands to kernels that go through rows and columns: chains, norms, reductions,
// look-ups, attention, recurrent cells and copies.  tracea_kernels.h has the conventions.
#pragma once
#include <stdint.h>

#define TRACEA_MAX_OPERANDS 8  // of a chain
#define TRACEA_MAX_RESULTS 2
#define TRACEA_MAX_TABLES 4  // of an embedding

#ifdef __cplusplus
extern "C" {
#endif

// One elementwise chain over rows x cols.  Operand kinds and steps are compiled in:
// full and row operands advance by one element per column, col and scalar ones do not.
typedef struct {
  int64_t rows, cols;
  const void* in[TRACEA_MAX_OPERANDS];
  int64_t in_stride[TRACEA_MAX_OPERANDS];  // row stride: 0 for row and scalar operands
  void* out[TRACEA_MAX_RESULTS];           // may be the same memory as a full operand
  int64_t out_stride[TRACEA_MAX_RESULTS];
} tracea_chain_tile;
typedef void (*tracea_chain_fn)(const tracea_chain_tile*);

// y = (x - mean) / sqrt(var + eps) * gamma + beta over the last axis (layer), or
// y = x / sqrt(mean(x*x) + eps) * gamma (rms).  gamma, beta may be null.  y may be x, or null if
// only `rounded` is wanted: y in bf16.
// norm_group: over all of a piece of rows x cols, gamma and beta by row; norm_columns: over the
// rows of each column, gamma and beta by row.  Both read `layer`: 0 for rms.
typedef struct {
  int64_t rows, cols;
  const float* x;
  int64_t x_stride;
  const float* gamma;
  const float* beta;
  float eps;
  float* y;
  int64_t y_stride;
  int32_t layer;
  uint16_t* rounded;   // of norm_layer and norm_rms; or null
  int64_t rounded_stride;
} tracea_norm_tile;
typedef void (*tracea_norm_fn)(const tracea_norm_tile*);

// Reduces the columns of each row (reduce_rows) or the rows of each column (reduce_columns).  A
// reduction may take several tiles: each adds to `total` (and `rest`, the error of that sum), one
// entry per result; the first one begins them, the last one writes y instead.
enum { TRACEA_SUM, TRACEA_ABSOLUTE_SUM, TRACEA_SQUARE_SUM, TRACEA_MAX, TRACEA_MIN, TRACEA_PRODUCT };
typedef struct {
  int64_t rows, cols;
  const float* x;
  int64_t x_stride;
  float* total;
  float* rest;
  float* y;
  int64_t y_stride;   // of reduce_rows; columns' results lie side by side
  float divisor;      // of the result: 1, or the number of elements for a mean
  int32_t kind, first, last;
} tracea_reduce_tile;
typedef void (*tracea_reduce_fn)(const tracea_reduce_tile*);

// Where the largest, or `least` the smallest, of the columns of each row (arg_reduce_rows) or of the rows of
// each column (arg_reduce_columns) is: the first of equal ones, or the `latest`.  What is searched may take
// several tiles, from element `begin` on: each hands `best` and `place` on, one entry per result; the
// first one begins them, the last one writes y instead.  Elements are taken in order if they compare
// greater (smaller) than what was taken before; the very first always is.
typedef struct {
  int64_t rows, cols;
  const float* x;
  int64_t x_stride;
  float* best;
  int32_t* place;
  int64_t* y;
  int64_t y_stride;   // of arg_reduce_rows; columns' results lie side by side
  int32_t begin, least, latest, first, last;
} tracea_arg_reduce_tile;
typedef void (*tracea_arg_reduce_fn)(const tracea_arg_reduce_tile*);

// The `k` largest, or with `least` smallest, of the columns of each row, best first, and where they
// are; of equal ones the first comes first.  1 <= k <= cols.
typedef struct {
  int64_t rows, cols, k;
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t* place;     // rows of y and place lie behind each other
  int32_t least;
} tracea_top_k_tile;
typedef void (*tracea_top_k_fn)(const tracea_top_k_tile*);

// y = exp(x - m) / sum, m and sum over the columns of each row (softmax_rows) or the rows of each
// column (softmax_columns); with `log` its logarithm.  y may be x.
typedef struct {
  int64_t rows, cols;
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  int32_t log;
} tracea_softmax_tile;
typedef void (*tracea_softmax_fn)(const tracea_softmax_tile*);

// y[r] = sum over tables t of row[t][r] (each a pointer to `cols` floats); rows are prefetched ahead.
typedef struct {
  int64_t rows, cols;
  int32_t tables;
  const float* const* row[TRACEA_MAX_TABLES];
  float* y;
  int64_t y_stride;
} tracea_gather_tile;
typedef void (*tracea_gather_fn)(const tracea_gather_tile*);

// What a mask leaves of the keys for TRACEA_QUERIES query rows: keys [low, high) at most, and the
// largest element of an additive one among the keys behind the last in order.
#define TRACEA_QUERIES 24
typedef struct {
  int64_t low, high;
  float beyond;
} tracea_attention_range;

// Keys [low, high) of adjacent active tiles.
typedef struct {
  int64_t low, high;
} tracea_attention_span;

// Scaled dot-product attention for `heads` heads of q that share k and v, and query rows
// [0, queries) of each:
//   s = scale * q k^T, keys [0, keys); then softcap * tanh(s / softcap) if there is a cap
//   s = fill for keys from `seen + row * seen_step` on, if causal
//   s = -inf for keys before `place - window_left` and behind `place + window_right`,
//       if window_left >= 0, where
//       place = seen - 1 + row * seen_step; not for keys nor for places below `global_keys`
//   s = -inf for keys outside the spans of the row's tiles, if they mask: the spans of row `i` are
//       [starts[r], starts[r + 1]), ascending and apart, r = (first_query + i * seen_step) / tile_rows
//       Spans that do not mask say what a mask leaves: elsewhere it adds `beyond` or less, or drops.
//   y = softmax(s with the mask) v
// mask_kind: 0 none; 1 additive f32; 2 boolean bytes, true keeps the key (causal drops like false).
// A boolean mask drops keys to `fill`.  Rows without a usable score (see docs/verification.md), by
// zero_rows: 0 softmax as it is, NaN where all scores are -inf; 1 zeros where the weights are NaN;
// 2 zeros where every key is out of the window or has the lowest float or less added or in its
// score's place; 3 zeros where of several keys none scores above the lowest float; 4 as 2, but only
// with -inf.  Without any keys y is 0.
typedef struct {
  int64_t queries, keys, head, head_v;  // head: q/k width; head_v: v width; 1 .. 256
  int64_t heads;
  const float* q; int64_t q_stride, q_head;  // steps from row to row and from head to head;
  const float* k; int64_t k_stride, k_col;   // columns lie side by side, but either step of k is 1
  const float* v; int64_t v_stride;
  const void* mask; int64_t mask_row, mask_col, mask_head;  // mask_col is 0 or 1
  int64_t seen, seen_step;
  int64_t window_left, window_right, global_keys;
  int32_t mask_kind, causal, zero_rows;
  int32_t direct;                        // 1: few queries; k is read in place, not packed
  float scale, fill, softcap;
  void* y; int64_t y_stride, y_head;
  int32_t y_size;                        // bytes of an element: 4; in bf16 also 2
  void* scratch;                         // >= tracea_attention_scratch(...) bytes, 64-byte aligned
  const tracea_attention_range* ranges;  // by TRACEA_QUERIES rows, the same for all heads; or null
  const tracea_attention_span* spans;    // of active tiles, or null: all keys.  With spans no ranges
  const int64_t* starts;                 // by row of tiles, and one more
  int64_t tile_rows, first_query;
  int32_t tiles_mask;
  float beyond;
} tracea_attention_tile;
typedef void (*tracea_attention_fn)(const tracea_attention_tile*);
// The ranges of a tile's rows; of the tile only sizes, order, windows and the mask are looked at.
typedef void (*tracea_attention_ranges_fn)(const tracea_attention_tile*, tracea_attention_range*);
// attention_bf16: q, k and v are bf16; a column of q and k is a pair of them (`head` and all steps
// of q, k and v count pairs), k's columns lie side by side, nothing is read in place.
typedef int64_t (*tracea_attention_scratch_fn)(int64_t keys, int64_t head, int64_t head_v);

// One step of a recurrent cell for `rows` rows of a batch and `hidden` units, `blocks` panels of 16
// for each gate alone and then those that hold what is left of all (ops/recurrent.py has the
// formulas; of gru_before `blocks` is that of the first two gates): p is the input's part of the
// sums, r the state's matrix in panels.  The states h and c before may be null, for zeros; c may be
// c_next, h never y.
typedef struct {
  int64_t rows, hidden, blocks;
  const float* p;      // [rows][panels * 16]
  int64_t p_row;
  const float* r;      // [panels][hidden][16]
  const float* rest;   // of the gru: hidden values, up to a multiple of 16
  const float* h;
  int64_t h_row;
  const float* c;
  int64_t c_row;
  float* c_next;
  int64_t c_next_row;
  float* y;
  int64_t y_row;
  float* scratch;        // of gru_before: [rows][2][hidden, up to a multiple of 16]
  int64_t scratch_row;
} tracea_recurrent_tile;
typedef void (*tracea_recurrent_fn)(const tracea_recurrent_tile*);

// y = x for a matrix of elements of `size` bytes (1, 2, 4 or 8), both at any strides.
typedef struct {
  int64_t rows, cols;
  const void* x;
  int64_t x_row, x_col;
  void* y;
  int64_t y_row, y_col;
  int32_t size;
} tracea_copy_tile;
typedef void (*tracea_copy_fn)(const tracea_copy_tile*);

#ifdef __cplusplus
}
#endif
