// What the runtime hands to kernels of products, and of what rounds their operands.
// tracea_kernels.h has the conventions.
#pragma once
#include <stdint.h>

#define TRACEA_SPLIT 32  // lanes of a turn of split panels: upper halves of 32 steps, lower ones
#define TRACEA_PANEL 16  // columns of one packed weight panel: [ceil(N/16)][K][16]

#ifdef __cplusplus
extern "C" {
#endif

// What becomes of a sum of bytes q, rounded and within `low` and `high`, and of another byte r:
// r * added_times + (q * times + offset), rounded half to even, within 0 and 255.
typedef struct {
  float low, high, times, added_times, offset;
} tracea_added_bytes;

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
  int32_t mr;          // 1 .. the level's gemm_mr, in pairs bf16_mr; of bytes see GemmJob::tall
  int32_t nv;          // 1 .. the level's gemm_nv, in pairs bf16_nv
  int32_t last;        // columns of the last panel, 1 .. 16; only those are stored
  int32_t b_exact;     // 1: B may not be read past column `last` (plain weights)
  const char* prefetch;        // the first cache line wanted next
  const char* look_up;         // the first page of 4096 bytes wanted after those lines
  int32_t prefetch_lines, look_up_pages;  // how many of both to ask for, spread over the k loop
  // What the kernel set up for this task; 0 before its first tile.  Where the kernel has no function
  // for the end, a tile of no rows releases it.
  int32_t* state;
  const float* row_scale;      // of gemm_int16: mr values, and
  const float* column_scale;   // 16 * nv values, of what is added to init
  int32_t streams;             // 1: c, in whole aligned lines, may go past the caches
  int32_t zero, flip;          // of gemm_int8: zero point of A as unsigned; bits of A to invert
  const int32_t* row_sums;     // and mr sums of A as unsigned where columns of B have zero points
  // With AVX-512: instead of c, sum * factor + summand of each column, rounded half to even, plus
  // bytes_zero, within 0 and 255; or null
  const float *factor, *summand;
  uint8_t* bytes;
  int64_t bytes_row;
  int32_t bytes_zero;
  int32_t bytes_fit;           // 1: sum * factor + summand is within 2^31 for every sum
  const uint8_t* added;        // or null: bytes as `sum` adds them, without bytes_zero
  int64_t added_row;
  const tracea_added_bytes* sum;  // without `added`: sums are rounded twice (runtime/table.h)
  // Of gemm_int8 with AVX-512: or null; instead of a, addresses of mr windows of an image.  k is
  // `lines` lines of fours, `line` bytes from one to the next.
  const uint8_t* const* windows;
  int64_t lines, line;
  int64_t further;             // so many tiles as high follow below, which are rounded to bytes too
  // With `factor`: or null; 256 bytes, of which those to store are numbered by the rounded sums.
  const uint8_t* table;
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

// C[mr x n] = init + A[mr x k] * B with n = 16 * (nv - 1) + last; B has codes of 2, 4 or 8 bits, a
// scale for each block of k and column, and zero points.  A is `terms` rows of signed bytes for each
// row, which add up; every one has a scale and the sum of its bytes for each block.
typedef struct {
  int64_t blocks, block;       // blocks of k, and their length
  int32_t bits, terms;         // terms: 1 or 3
  const int8_t* a;             // term j of row i lies at a + (i * terms + j) * lda
  int64_t lda;
  const float* a_scale;        // of term j of row i, block b: a_scale[(i * terms + j) * blocks + b]
  const int32_t* a_sum;        // likewise
  const uint8_t* b;            // panels of codes (kernels/cpu/nbits_panels.py)
  int64_t b_panel;             // bytes from one panel of the tile to the next
  const float* b_scale;        // [blocks][scale_rows][16] of each panel
  int64_t b_scale_panel;       // floats from one panel to the next
  int32_t scale_rows;          // 2: zero points in float32 follow the scales
  const uint8_t* b_zero;       // integer zero points [blocks][16] of the first panel, or null
  int32_t zero;                // zero point of all other codes
  const float* init;           // null for zero; a bias
  float* c;
  int64_t ldc;
  int64_t init_panel, c_panel;  // floats from the columns of one panel to the next
  int32_t mr, nv, last;        // nv: one row takes up to twice as many panels as others
} tracea_nbits_tile;
typedef void (*tracea_nbits_fn)(const tracea_nbits_tile*);

// Float32 panels from panels of codes: steps [k0, k0 + k) of `panels` panels; k0 is a multiple of 16.
typedef struct {
  int64_t k0, k, blocks, block, panels;
  int32_t bits, scale_rows, zero;
  const uint8_t* b;
  int64_t b_panel;
  const float* b_scale;
  const uint8_t* b_zero;
  float* to;                   // [panels][to_panel], rows of 16
  int64_t to_panel;
} tracea_nbits_unpack_tile;
typedef void (*tracea_nbits_unpack_fn)(const tracea_nbits_unpack_tile*);

// One row of x as `terms` rows of bytes with a scale and a sum for each block.  With one term, the
// nearest of 255 numbers in proportion to the block's largest; with three, of 2^23.
typedef struct {
  int64_t k, block;
  const float* x;
  int32_t terms;
  int8_t* y;                   // term j at y + j * y_term, zeros up to whole blocks
  int64_t y_term;
  float* scale;                // term j at scale + j * blocks
  int32_t* sum;
} tracea_nbits_round_tile;
typedef int32_t (*tracea_nbits_round_fn)(const tracea_nbits_round_tile*);  // 1 if x is finite

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
} tracea_block_sparse_tile;
typedef void (*tracea_block_sparse_fn)(const tracea_block_sparse_tile*);
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
} tracea_bitmap_tile;
// Returns where the panel's numbers end, or null if that is behind `end`.
typedef const void* (*tracea_bitmap_fn)(const tracea_bitmap_tile*);

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

// (y - 128) * scale = x * factors, y the nearest bytes and scale one number a row, NaN for a row with
// anything that is not finite.
typedef struct {
  int64_t rows, cols;
  const float* x;
  int64_t x_stride;
  const float* factors;  // one a column, or null
  uint8_t* y;
  int64_t y_stride;
  float* scale;
} tracea_round_int8_tile;
typedef void (*tracea_round_int8_fn)(const tracea_round_int8_tile*);

// y[r] = the sum of a row of bytes, after inverting the bits `flip` of each.
typedef struct {
  int64_t rows, cols;
  const uint8_t* x;
  int64_t x_stride;
  int32_t flip;
  int32_t* y;
} tracea_sum_rows_tile;
typedef void (*tracea_sum_rows_fn)(const tracea_sum_rows_tile*);

// Depthwise sums of bytes: c[p][i] = what the taps of pixel p hold in channel i, less the zero
// point, times the weights of that channel.  Four taps are a lane of the weights, in panels of 16
// channels: `groups` rows of lanes and one of sums, as those of gemm_int8.
typedef struct {
  int64_t pixels, channels, groups;
  const uint8_t* const* taps;  // 4 * groups addresses for each pixel, of its channel 0
  const uint8_t* moved;        // or null; 1 for a pixel whose addresses are not given: they are those
  int64_t step;                // of the pixel before, so many bytes on (AVX-512, nine taps)
  int64_t channel;             // the first of these channels
  const float* w;              // its panel
  int64_t w_panel;
  int32_t zero, flip;          // as in tracea_gemm_tile
  int32_t single;              // 1: the last four has one tap
  float* c;
  int64_t ldc;
  const float *factor, *summand;  // these as in tracea_gemm_tile
  uint8_t* bytes;
  int64_t bytes_row;
  int32_t bytes_zero, bytes_fit;
} tracea_depthwise_bytes_tile;
typedef void (*tracea_depthwise_bytes_fn)(const tracea_depthwise_bytes_tile*);

// The transforms of some tiles of 4 x 4 outputs of a convolution of bytes by 3 x 3 taps: for each 64
// channels and 36 points 32 pairs of each tile, and 16 numbers more.
typedef struct {
  const uint8_t* x;        // an image, channels last
  int64_t line, pixel;     // bytes from one to the next
  int64_t height, width;   // of it
  int64_t top, left;       // of the padding
  int64_t across;          // tiles in a row of them
  int64_t first, tiles;    // these, in the order of rows
  int64_t channels;        // 64 or a multiple
  int32_t flip;            // as in tracea_gemm_tile
  int32_t padding;         // a byte
  int32_t* to;             // channels / 64 * 36 * (32 * tiles + 16) numbers
} tracea_winograd_image_tile;

// The outputs of such tiles in some filters: rounded to bytes, or where `bytes` is null the sums of the 16
// outputs of each tile, `filters` numbers each.
typedef struct {
  const int32_t* pairs;    // transforms of the tiles
  int64_t rows, columns;   // of outputs
  int64_t across;          // tiles in a row of them
  int64_t first, tiles;    // these, in the order of rows
  int64_t channels;        // 64 or a multiple
  int64_t filters;         // 32 or a multiple
  const float* w;          // their panels, behind which their sums lie
  int64_t w_panel;
  int32_t zero;            // as in tracea_gemm_tile
  int32_t* memory;         // 12 * (32 + 1) * 16 + 36 * (32 * tiles + 16) numbers
  float* sums;
  const float *factor, *summand;  // these as in tracea_gemm_tile, of the whole image
  uint8_t* bytes;
  int64_t bytes_row;
  int32_t bytes_zero, bytes_fit;
} tracea_winograd_bytes_tile;

#ifdef __cplusplus
}
#endif
