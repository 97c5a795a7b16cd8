// The binary contract between the library's runtime (plans, drivers, threads) and its
// micro-kernels (arithmetic).  Kernels see pointers, sizes and strides; never ONNX Runtime.
//
// Conventions: strides count elements, not bytes.  Pointers need only element alignment.
// A kernel touches nothing outside the rows and columns it is given (masked tails), except the
// weight panels, which are padded to 16 columns.  Kernels keep no state: any number of threads may
// run one kernel at once.  Results do not depend on how a problem is cut into tiles.
#pragma once
#include <stdint.h>

#define TRACEA_SPLIT 32       // lanes of a turn of split panels: upper halves of 32 steps, lower ones
#define TRACEA_PANEL 16       // columns of one packed weight panel: [ceil(N/16)][K][16]
#define TRACEA_MAX_OPERANDS 8  // of a chain
#define TRACEA_MAX_RESULTS 2
#define TRACEA_MAX_TABLES 4    // of an embedding

#ifdef __cplusplus
extern "C" {
#endif

// C[mr x n] = init + A[mr x k] * B[k x n] with n = 16 * (nv - 1) + last.
typedef struct {
  int64_t k;
  const float* a;      // element (i, k) of A lies at a + i * lda + k * a_step
  int64_t lda, a_step;
  const float* b;      // vector j of row r lies at b + j * b_panel + r * b_row
  int64_t b_panel;     // packed: k * 16; plain [K,N]: 16
  int64_t b_row;       // packed: 16;     plain [K,N]: its row stride
  const float* init;   // null for zero; a bias (init_stride 0); or earlier sums, which may be C
  int64_t init_stride;
  float* c;
  int64_t ldc;
  int32_t mr;          // 1 .. the level's gemm_mr, in pairs pairs_mr
  int32_t nv;          // 1 .. the level's gemm_nv, in pairs pairs_nv
  int32_t last;        // columns of the last panel, 1 .. 16; only those are stored
  int32_t b_exact;     // 1: B may not be read past column `last` (plain weights)
  const char* prefetch;        // the first cache line wanted next
  const char* look_up;         // the first page of 4096 bytes wanted after those lines
  int32_t prefetch_lines, look_up_pages;  // how many of both to ask for, spread over the k loop
  int32_t* state;              // what the kernel set up for this task; 0 before its first tile
  const float* row_scale;      // of gemm_int16: mr values, and
  const float* column_scale;   // 16 * nv values, of what is added to init
  int32_t streams;             // 1: c, in whole aligned lines, may go past the caches
} tracea_gemm_tile;
typedef void (*tracea_gemm_fn)(const tracea_gemm_tile*);
typedef void (*tracea_gemm_end_fn)(void);  // after a task's last tile

// C[m x n] = bias + A[m x k] * B[n x k] transposed, for few rows of A: both are read along k, B
// once and in the order of memory.
typedef struct {
  int64_t m, n, k;
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  const float* bias;   // n values, or null for zero
  float* c;
  int64_t ldc;
} tracea_gemm_dot_tile;
typedef void (*tracea_gemm_dot_fn)(const tracea_gemm_dot_tile*);

// Panels from a matrix of any strides: to[p * panel + r * 16 + j] = from[r * row + c * column] with
// column c = 16 * p + j, zero for c from `columns` on.
typedef struct {
  int64_t k, columns;
  const float* from;
  int64_t row, column;
  float* to;
  int64_t panel;
} tracea_gemm_pack_tile;
typedef void (*tracea_gemm_pack_fn)(const tracea_gemm_pack_tile*);

// C[rows x last] = init + A[rows x k] * B, one panel of B of which only some blocks of k are stored.
typedef struct {
  const float* a;       // element (i, k) of A lies at a + i + k * a_step; rows up to 16 are readable
  int64_t a_step;       // (of A with one row: that one)
  int64_t block;        // steps of k in a block: 1, or a multiple of 4
  const float* b;       // the stored blocks one after another: [count][block][16]
  const int32_t* place; // where they belong: block `place - first` of k
  int64_t first, count;
  const float* init;    // null for zero; a bias (init_stride 0); or sums of each row
  int64_t init_stride;
  float* c;
  int64_t ldc;
  int32_t rows, last;   // 1 .. 16 each; only those are stored
} tracea_blocks_tile;
typedef void (*tracea_blocks_fn)(const tracea_blocks_tile*);
typedef int32_t (*tracea_finite_fn)(const float* x, int64_t count);  // 1 if every number is finite

// C[rows x last] = bias + A[rows x k] * B, one panel of B of which only some numbers are stored.
typedef struct {
  int64_t k;
  const float* a;       // element (i, k) of A lies at a + i * lda + k * a_step
  int64_t lda, a_step;
  const uint32_t* mask; // which of 16 columns step k stores: lower half of word k / 2 for even k
  const void* b;        // the stored numbers, step after step
  const void* end;      // behind what may be read
  const float* bias;    // 16 values, or null for zero
  float* c;
  int64_t ldc;
  int32_t rows, last;   // any number; 1 .. 16
} tracea_masked_tile;
// Returns where the panel's numbers end, or null if that is behind `end`.
typedef const void* (*tracea_masked_fn)(const tracea_masked_tile*);

// y = x in bf16, rows of an even number of elements: a zero follows an odd one's last.
typedef struct {
  int64_t rows, cols;
  const float* x;
  int64_t x_stride;
  uint16_t* y;
  int64_t y_stride;
} tracea_round_tile;
typedef void (*tracea_round_fn)(const tracea_round_tile*);

// y * scale = x, y the nearest 16-bit integers to it and scale one number a row, NaN for a row with
// anything that is not finite; rows of an even number of elements, as above.
typedef struct {
  int64_t rows, cols;
  const float* x;
  int64_t x_stride;
  int16_t* y;
  int64_t y_stride;
  float* scale;
} tracea_round_int16_tile;
typedef void (*tracea_round_int16_fn)(const tracea_round_int16_tile*);

// Lines of a blocked value of which only the first `last` lanes of a pixel count; `cols` floats a
// line, a multiple of 16.  image_range: the largest absolute and, for anything that is not finite,
// a NaN.  image_round: y = the nearest 16-bit integers to x * times, 0 in the other lanes.
typedef struct {
  int64_t rows, cols, last;
  const float* x;
  int64_t x_row;
  int16_t* y;
  int64_t y_row;
  float times;
  float high, spoilt;  // of image_range
} tracea_image_tile;
typedef void (*tracea_image_fn)(tracea_image_tile*);

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

// Where the largest, or `least` the smallest, of the columns of each row (arg_rows) or of the rows of
// each column (arg_columns) is: the first of equal ones, or the `latest`.  What is searched may take
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
  int64_t y_stride;   // of arg_rows; columns' results lie side by side
  int32_t begin, least, latest, first, last;
} tracea_arg_tile;
typedef void (*tracea_arg_fn)(const tracea_arg_tile*);

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

// Scaled dot-product attention for `heads` heads of q that share k and v, and query rows
// [0, queries) of each:
//   s = scale * q k^T, keys [0, keys); then softcap * tanh(s / softcap) if there is a cap
//   s = fill for keys from `seen + row * seen_step` on, if causal
//   s = -inf for keys before `place - before` and behind `place + after`, if before >= 0, where
//       place = seen - 1 + row * seen_step; not for keys nor for places below `everywhere`
//   y = softmax(s with the mask) v
// mask_kind: 0 none; 1 additive f32; 2 boolean bytes, true keeps the key (causal drops like false).
// A row whose keys are all masked by -inf or false gives zeros if zero_rows, else what ONNX
// Runtime's Softmax gives on a row of equal very low scores: the average (see kernels/README.md).
typedef struct {
  int64_t queries, keys, head, head_v;  // head: q/k width; head_v: v width; 1 .. 256
  int64_t heads;
  const float* q; int64_t q_stride, q_head;  // steps from row to row and from head to head;
  const float* k; int64_t k_stride, k_col;   // columns lie side by side, but either step of k is 1
  const float* v; int64_t v_stride;
  const void* mask; int64_t mask_row, mask_col, mask_head;  // mask_col is 0 or 1
  int64_t seen, seen_step;
  int64_t before, after, everywhere;
  int32_t mask_kind, causal, zero_rows;
  int32_t direct;                        // 1: few queries; k is read in place, not packed
  float scale, fill, softcap;
  void* y; int64_t y_stride, y_head;
  int32_t y_size;                        // bytes of an element: 4; in bf16 also 2
  void* scratch;                         // >= tracea_attention_scratch(...) bytes, 64-byte aligned
  const tracea_attention_range* ranges;  // by TRACEA_QUERIES rows, the same for all heads; or null
} tracea_attention_tile;
typedef void (*tracea_attention_fn)(const tracea_attention_tile*);
// The ranges of a tile's rows; of the tile only sizes, order, windows and the mask are looked at.
typedef void (*tracea_attention_ranges_fn)(const tracea_attention_tile*, tracea_attention_range*);
// attention_bf16: q, k and v are bf16; a column of q and k is a pair of them (`head` and all steps
// of q, k and v count pairs), k's columns lie side by side, nothing is read in place.
typedef int64_t (*tracea_attention_scratch_fn)(int64_t keys, int64_t head, int64_t head_v);

// Register tiles of a dense convolution: each `nv` blocks of 16 output channels for `pixels` outputs
// of one line, or of each of two lines.
//   y = clamp(start + sum over taps of x * w + add), lo <= y <= hi,
// taps being input blocks, kernel rows, kernel columns and `depth` channels of a block (`last` of
// the last one), summed in that order.  Weights of a tap are 16 floats; columns and channels lie
// one after another.
enum { TRACEA_CONV_CONTINUES = 1, TRACEA_CONV_STOPS = 2 };
typedef struct {
  int64_t blocks, rows, cols, depth, last;
  const float* x;
  int64_t x_block, x_row, x_col, x_depth;  // strides between taps
  int64_t x_step, x_line;                  // strides between outputs, and between the two lines
  const float* w;
  int64_t w_block, w_row, w_panel;         // w_panel: between blocks of output channels
  const float* bias;                       // 16 * nv values, or null for zero
  const float* add;                        // lies like y, or null
  int64_t add_panel, add_line;
  float* y;                                // outputs of a line are 16 floats apart
  int64_t y_panel, y_line;
  float lo, hi;
  int32_t pixels;                          // 1 .. conv_pixels, in bf16 pairs_pixels; half of it
  int32_t lines, nv;                       // for two lines: 1 or 2; 1 .. conv_nv
  int32_t part;                            // CONTINUES: y holds the start; STOPS: y stays a sum
  const char *prefetch, *prefetch_end;     // the weights wanted next, panels as in w; may be null
  int32_t prefetch_lines;                  // cache lines per panel to prefetch, every (row, col)
  int32_t y_size, add_size;                // bytes of an element: 4; of the kernels in bf16 also 2
  const float *x_scale, *w_scale;          // of conv_int16: one number, and 16 * nv
  int64_t tiles;                           // one after another, the same in all but for what is next
  int64_t x_next, y_next, add_next;        // from a tile to the next
  int32_t* state;                          // of conv_bf16: as in tracea_gemm_tile
  int32_t eight;                           // 1: of the last block's outputs the first 8 count
  int32_t far_lines;                       // cache lines to prefetch every (row, col) beside those:
  const char *far, *far_end;               // what comes after this convolution; may be null
} tracea_conv_tile;
typedef void (*tracea_conv_fn)(const tracea_conv_tile*);
typedef void (*tracea_conv_end_fn)(void);  // after a task's last tile

// conv_narrow: one line of any number of pixels, all of its sum at once, for nv <= TRACEA_NARROW
// channels of one block; filters are [block][row][col][nv][16 (in)], the other lanes of y become
// clamp(bias + add).
#define TRACEA_NARROW 8

// One output line of 16 channels, each convolved with its own rows x cols weights [rows,cols,16].
// The first output's window begins `left` columns before x (behind it if negative); columns that
// are not in [0, width) count as zero.
typedef struct {
  int64_t rows, cols, pixels, left, width;
  const float* x;
  int64_t x_row, x_col, x_step;  // strides between kernel rows and columns, and between outputs
  const float* w;
  const float* bias;             // 16 values, or null
  const float* add;              // lies like y, or null
  float* y;                      // outputs are 16 elements apart
  float lo, hi;
  int32_t y_size, add_size;      // bytes of an element: 4; of depthwise_bf16 also 2
} tracea_depthwise_tile;
typedef void (*tracea_depthwise_fn)(const tracea_depthwise_tile*);

// Outputs of one line of 16 channels whose windows are all rows x cols: the maximum, or the sum
// times `scale`.
typedef struct {
  int64_t rows, cols, pixels;
  const float* x;
  int64_t x_row, x_col, x_step;
  float* y;
  float scale;
  int32_t average;
} tracea_pool_tile;
typedef void (*tracea_pool_fn)(const tracea_pool_tile*);

// A line of 16 channels between two others: y[p] blends a and b, `down` being b's share, each of
// them between elements low[p] and high[p], `share[p]` being the second's; without shares y[p] is
// a's element low[p].
typedef struct {
  int64_t pixels;
  const float *a, *b;
  const int64_t *low, *high;
  const float* share;
  float down;
  float* y;
} tracea_resize_tile;
typedef void (*tracea_resize_fn)(const tracea_resize_tile*);

// A line of 16 channels: channel i of pixel p is from[i][p * 16 + lane[i]].
typedef struct {
  int64_t pixels;
  const float* from[16];
  int64_t lane[16];
  float* y;
} tracea_deal_tile;
typedef void (*tracea_deal_fn)(const tracea_deal_tile*);

// Between 16 lanes per pixel and any strides, for `channels` <= 16 of them; no stride is given for
// the blocked side.  `block` fills the other lanes with zeros.
typedef struct {
  int64_t pixels, channels;
  float* blocked;
  float* plain;
  int64_t channel, pixel;  // strides of the plain side
} tracea_block_tile;
typedef void (*tracea_block_fn)(const tracea_block_tile*);

// Rows of one convolution over plain values: y[r][c] = bias[r] + sum over channels and taps of
// w[r] * x[channel * x_channel + offset[tap] + c].
typedef struct {
  int64_t rows, cols, channels, taps;
  const float* x;
  int64_t x_channel;
  const int64_t* offset;
  const float* w;
  int64_t w_row;
  const float* bias;  // or null
  float* y;
  int64_t y_row;
} tracea_conv_plain_tile;
typedef void (*tracea_conv_plain_fn)(const tracea_conv_plain_tile*);

// Winograd's transforms of a run of tiles, 16 channels each; m outputs a side, m + 2 inputs.
// In: plane p of tile t goes to v[p * plane + t * 16].  Inputs outside rows x cols count as zero.
// Out: y = clamp(A' M A + bias + add) for the outputs inside rows x cols.
typedef struct {
  int64_t tiles, rows, cols;  // valid rows and columns, counted from the first tile's corner
  int32_t m;                  // 2 or 4
  const float* x;
  int64_t x_row;
  float* v;
  int64_t plane;
  float times;  // of winograd_int16_in, whose v is the nearest integers to so many times the inputs
} tracea_winograd_in_tile;
typedef void (*tracea_winograd_in_fn)(const tracea_winograd_in_tile*);
typedef struct {
  int64_t tiles, rows, cols;
  int32_t m;
  const float* v;
  int64_t plane;
  const float* bias;  // or null
  const float* add;   // or null
  int64_t add_row;
  float* y;
  int64_t y_row;
  float lo, hi;
  int32_t y_size, add_size;   // bytes of an element: 4; of winograd_bf16_out also 2
} tracea_winograd_out_tile;
typedef void (*tracea_winograd_out_fn)(const tracea_winograd_out_tile*);

// One step of a recurrent cell for `rows` rows of a batch and `hidden` units, `blocks` panels of 16
// a gate (ops/recurrent.py has the formulas): p is the input's part of the sums, r the state's
// matrix in panels.  The states h and c before may be null, for zeros; c may be c_next, h never y.
typedef struct {
  int64_t rows, hidden, blocks;
  const float* p;      // [rows][gates * blocks * 16]
  int64_t p_row;
  const float* r;      // [gates * blocks][hidden][16]
  const float* rest;   // of the gru: blocks * 16 values
  const float* h;
  int64_t h_row;
  const float* c;
  int64_t c_row;
  float* c_next;
  int64_t c_next_row;
  float* y;
  int64_t y_row;
  float* spare;        // of gru_before: [rows][2 * blocks * 16]
  int64_t spare_row;
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

// Everything one instruction-set level offers; the generated table fills one per level, with null
// for kernels the library does not hold.
typedef struct {
  const char* isa;             // its name in variants.py
  int32_t gemm_mr, gemm_nv;    // largest register tile
  int32_t pairs_mr, pairs_nv;  // the same of gemm_bf16
  int32_t conv_pixels, conv_nv;
  int32_t pairs_pixels;        // conv_pixels of conv_bf16
  tracea_gemm_fn gemm;
  tracea_gemm_dot_fn gemm_dot;
  tracea_gemm_pack_fn gemm_pack;
  tracea_gemm_fn gemm_bf16;              // lanes of a tile are pairs of bf16, k counts pairs
  tracea_gemm_end_fn gemm_bf16_end;
  tracea_gemm_fn gemm_mixed;             // the same with float32 on the left
  tracea_round_fn round_bf16;
  tracea_norm_fn norm_layer, norm_rms, norm_group, norm_columns;
  tracea_gather_fn gather;
  tracea_attention_fn attention;
  tracea_attention_scratch_fn attention_scratch;
  tracea_attention_ranges_fn attention_ranges;
  tracea_conv_fn conv, conv_narrow;
  tracea_depthwise_fn depthwise;
  tracea_pool_fn pool;
  tracea_block_fn block, unblock;
  tracea_conv_plain_fn conv_plain;
  tracea_winograd_in_fn winograd_in;
  tracea_winograd_out_fn winograd_out;
  tracea_reduce_fn reduce_rows, reduce_columns;
  tracea_softmax_fn softmax_rows, softmax_columns;
  tracea_copy_fn copy;
  tracea_recurrent_fn lstm, gru, gru_before;
  tracea_blocks_fn gemm_blocks;
  tracea_finite_fn all_finite;
  tracea_attention_fn attention_bf16;
  tracea_attention_scratch_fn attention_bf16_scratch;
  tracea_attention_ranges_fn attention_bf16_ranges;
  tracea_conv_fn conv_bf16;              // inputs are pairs of bf16, depth and strides count pairs
  tracea_conv_end_fn conv_bf16_end;
  tracea_conv_fn conv_stem_bf16;         // inputs are float32, results may be bf16
  tracea_depthwise_fn depthwise_bf16;    // strides of x count pairs
  tracea_winograd_in_fn winograd_bf16_in;    // x and v are bf16, their strides count pairs
  tracea_winograd_out_fn winograd_bf16_out;  // v is float32
  tracea_resize_fn resize;
  tracea_deal_fn deal;
  tracea_blocks_fn gemm_blocks_bf16;     // lanes are pairs of bf16, steps of k count pairs
  tracea_finite_fn all_finite_bf16;
  tracea_masked_fn gemm_masked;
  tracea_masked_fn gemm_masked_bf16;     // stored numbers are bf16, A is float32
  tracea_gemm_fn gemm_int16;             // lanes are pairs of integers, k counts pairs
  tracea_round_int16_fn round_int16;
  tracea_gemm_fn gemm_bf16x2;            // as gemm_bf16; upper and lower halves take turns along k
  tracea_gemm_end_fn gemm_bf16x2_end;
  tracea_round_fn round_bf16x2;          // rows of y are twice as long, filled up to whole turns
  tracea_conv_fn conv_int16;             // lanes are pairs of integers, depth and strides count pairs
  tracea_image_fn image_range, image_round;
  tracea_winograd_in_fn winograd_int16_in;   // x is float32; v integers, its plane counts pairs
  tracea_winograd_out_fn winograd_int16_out;
  tracea_arg_fn arg_rows, arg_columns;
  int32_t chains;              // entries in chain_key / chain
  const int64_t* chain_key;    // ascending
  const tracea_chain_fn* chain;
} tracea_isa_table;

// One custom-op type of this library.
typedef struct {
  const char* name;            // "FusedGemm_3f2a91"
  int32_t inputs, outputs;
  const int32_t* input_type;   // ONNX element codes
  const int32_t* output_type;
} tracea_op_type;

// The generated table (table.cpp): defined once per library, read by the runtime.
typedef struct {
  const char* domain;          // "tracea.<10 hex>"
  int32_t isas;                // levels present, lowest first
  const tracea_isa_table* isa;
  int32_t types;
  const tracea_op_type* type;
} tracea_library;
extern const tracea_library tracea_library_table;

#ifdef __cplusplus
}
#endif
