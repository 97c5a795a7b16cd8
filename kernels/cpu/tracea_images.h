// What the runtime hands to kernels of convolutions and of all else that goes through images in
// blocks of 16 channels.  tracea_kernels.h has the conventions.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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
  float* y;
  int64_t y_panel, y_line;
  int64_t y_step, add_step;                // between outputs of a line, in steps of 32 bits
  float lo, hi;
  int32_t pixels;                          // 1 .. conv_pixels, in bf16 bf16_pixels; half of it
  int32_t lines, nv;                       // for two lines: 1 or 2; 1 .. conv_nv
  int32_t part;                            // CONTINUES: y holds the start; STOPS: y stays a sum
  const char *prefetch, *prefetch_end;     // the weights wanted next, panels as in w; may be null
  int32_t prefetch_lines;                  // cache lines per panel to prefetch, every (row, col)
  int32_t y_size, add_size;                // bytes of an element: 4; of the kernels in bf16 also 2
  const float *x_scale, *w_scale;          // of conv_int16: one number, and 16 * nv
  int64_t tiles;                           // one after another, the same in all but for what is next
  int64_t x_next, y_next, add_next;        // from a tile to the next
  int32_t* state;                          // of conv_bf16: as in tracea_gemm_tile
  int32_t half_tile;                       // 1: of the last block's outputs the first 8 count
  int32_t far_lines;                       // cache lines to prefetch every (row, col) beside those:
  const char *far, *far_end;               // what comes after this convolution; may be null
} tracea_conv_tile;
typedef void (*tracea_conv_fn)(const tracea_conv_tile*);
typedef void (*tracea_conv_end_fn)(void);  // after a task's last tile

// Columns of a line as sums of two numbers in bf16 (ops/bf16.py), for matrix tiles: of each column
// `channels` lanes that hold both halves of a number, then the upper ones once more, by twos.  Of
// `weights`, sixteen columns lie side by side: the upper half twice, then lower ones by twos.  1 if
// all upper halves are finite; 0 otherwise, and where tiles are of vectors.
#define TRACEA_STEM_CHANNELS 4
#define TRACEA_STEM_LANES(channels) ((channels) + ((channels) + 1) / 2)
typedef struct {
  int64_t channels, columns;   // at most TRACEA_STEM_CHANNELS
  const float* x;
  int64_t x_channel, x_column;
  float* y;                    // lanes of two numbers in bf16
  int32_t weights;
} tracea_first_layer_line;
typedef int32_t (*tracea_first_layer_fn)(const tracea_first_layer_line*);

// Pixels of a line in one block: each becomes sums of two numbers in bf16, 16 upper halves, then 16
// lower ones; 0 in lanes from `last` on.
typedef struct {
  int64_t pixels, last;
  const float* x;
  uint16_t* y;
} tracea_split_tile;
typedef void (*tracea_split_fn)(const tracea_split_tile*);

// conv_narrow: one line of any number of pixels, all of its sum at once, for nv <= TRACEA_NARROW
// channels of one block; filters are [block][row][col][nv][16 (in)], the other lanes of y become
// clamp(bias + add).
#define TRACEA_NARROW 8

// Output lines of 16 channels, each convolved with its own rows x cols weights [rows,cols,16].
// The first output's window begins `left` columns before x (behind it if negative); columns that
// are not in [0, width) count as zero.
//
// With `pairs`, windows meet the line, their columns lie side by side, and less than a window is
// beside the line: a kernel may then round the weights to bf16.  What it makes of them it keeps in
// `pairs` for as long as *made stays 1, and makes anew where that is 0.
#define TRACEA_DEPTHWISE_PAIRS 32
typedef struct {
  int64_t rows, cols, pixels, left, width;
  int64_t lines, x_line, y_line, add_line;  // strides between lines, in floats
  const float* x;
  int64_t x_row, x_col, x_step;  // strides between kernel rows and columns, and between outputs
  const float* w;
  const float* bias;             // 16 values, or null
  const float* add;              // lies like y, or null
  float* y;                      // outputs are 16 elements apart
  float lo, hi;
  int32_t y_size, add_size;      // bytes of an element: 4; of depthwise_bf16 also 2
  float* pairs;                  // of depthwise_bf16: 16 * TRACEA_DEPTHWISE_PAIRS, or null
  int32_t* made;
} tracea_depthwise_tile;
typedef void (*tracea_depthwise_fn)(const tracea_depthwise_tile*);

// Outputs of one line of 16 channels whose windows are all rows x cols: the maximum, or the sum
// times `scale`.
typedef struct {
  int64_t rows, cols, pixels;
  const float* x;
  int64_t x_row, x_col, x_step;
  float* y;
  int64_t y_step;                // between outputs, in steps of 32 bits
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
} tracea_channel_shuffle_tile;
typedef void (*tracea_channel_shuffle_fn)(const tracea_channel_shuffle_tile*);

// Between 16 lanes per pixel and any strides, for `channels` <= 16 of them; no stride is given for
// the blocked side.  `block` fills the other lanes with zeros.
typedef struct {
  int64_t pixels, channels;
  float* blocked;
  float* plain;
  int64_t channel, pixel;  // strides of the plain side
} tracea_reorder_tile;
typedef void (*tracea_reorder_fn)(const tracea_reorder_tile*);

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

#ifdef __cplusplus
}
#endif
