// Shared by the variants of first-layer convolutions (of plain images): the outputs of a tile.
#pragma once
#include "runtime/blocked.h"
#include "runtime/slots.h"

namespace tracea {

// First-layer convolutions on matrix tiles (first_layer_split.h).
struct FirstLayerSplit {
  tracea_conv_fn conv;  // null elsewhere
  tracea_conv_end_fn end;
  tracea_first_layer_fn split;
  const float* w;
  int64_t widest, column, line, taps;  // outputs of a tile; lanes of a column, of a line; of 8 lanes
  int64_t rows;                        // output rows of a task
  Slots slots;                         // a task's lines
};

struct FirstLayerJob {
  tracea_conv_fn conv;
  tracea_conv_tile tap;
  PostOps post_ops;
  const TensorView* x;
  const float* bias;
  bool half_tile;  // the last block of outputs has 8 channels at most
  bool pairs;  // two lines are one tile
  int64_t blocks, nv, widest, kernel_h, kernel_w;
  int64_t stride_h, stride_w, dilation_h, dilation_w, top, left;
  int64_t rows, tasks_per_image;  // output rows per task
  FirstLayerSplit split;
};

inline tracea_conv_tile first_layer_tile(const FirstLayerJob& job, int64_t block) {
  tracea_conv_tile tile = job.tap;
  tile.nv = static_cast<int32_t>(min(job.nv, job.blocks - block));
  tile.half_tile = job.half_tile && block + tile.nv == job.blocks;
  tile.bias = job.bias ? job.bias + block * kLanes : nullptr;
  return tile;
}

// `tiles` tiles of `pixels` outputs from `col` on for one group of blocks, whose inputs are known.
inline void first_layer_tiles(const FirstLayerJob& job, tracea_conv_fn conv, tracea_conv_tile& tile, int64_t n,
                       int64_t block, int64_t row, int64_t col, int64_t pixels, int64_t tiles) {
  tile.pixels = static_cast<int32_t>(pixels), tile.tiles = tiles, tile.lines = 1;
  tile.x_next = pixels * tile.x_step;
  tile.y = job.post_ops.canvas.at(n, block, row, col);
  tile.add = job.post_ops.add_at(n, block, row, col);
  tile.y_next = pixels * job.post_ops.canvas.lanes, tile.add_next = pixels * job.post_ops.add_lanes;
  alignas(64) float sums[kChainTiles * kTileFloats];
  const bool apart = job.post_ops.apart();
  if (apart) set_apart(tile, sums, 1, tiles * pixels), tile.y_next = pixels * kLanes;
  conv(&tile);
  for (int64_t b = 0; apart && b < tile.nv; ++b)
    job.post_ops.line(n, block + b, row, col, tiles * pixels, sums + b * tile.y_panel);
}

// A line of outputs [begin, end) in tiles of at most `widest`, whose widths differ by one at most;
// `run(col, pixels, tiles)` computes those of one width that lie side by side.
template <class Tiles>
inline void first_layer_across(const FirstLayerJob& job, int64_t widest, int64_t begin, int64_t end,
                        const Tiles& run) {
  const int64_t across = ceil_div(end - begin, widest);
  const int64_t narrow = (end - begin) / max(across, 1), wider = (end - begin) - narrow * across;
  for (int64_t i = 0, col = begin; i < across;) {
    const int64_t alike = (i < wider ? wider : across) - i, pixels = narrow + (i < wider);
    const int64_t tiles = job.post_ops.apart() ? min(alike, kChainTiles) : alike;
    run(col, pixels, tiles);
    i += tiles, col += tiles * pixels;
  }
}

// Applies the post-ops to a line of sums that tiles left in the buffer.
inline void first_layer_finish(const FirstLayerJob& job, const tracea_conv_tile& tile, int64_t n, int64_t block,
                        int64_t row) {
  if (job.post_ops.apart()) return;
  for (int64_t b = block; b < block + tile.nv; ++b)
    job.post_ops.line(n, b, row, 0, job.post_ops.canvas.width);
}

}  // namespace tracea
