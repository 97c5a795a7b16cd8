// Convolutions of bytes by 3 x 3 taps through transforms, where that takes less time: a task
// computes some tiles of 4 x 4 outputs of an image, in some filters.  Kernels transform 16 filters at
// a time into L1, next to their products: written for all tiles, they would take longer than these.
#pragma once
#include "runtime/depthwise_nhwc.h"
#include "runtime/gemm.h"

namespace tracea {

constexpr int64_t kTileEdge = 4, kTilePoints = 36;
constexpr int64_t kTransformedBytes = 704 * 1024;  // of a task's transforms and products, in L2
constexpr int64_t kFewTiles = 16;            // of a task at least, so that transforming the filters pays
constexpr int64_t kWinogradChannels = 1024;  // whose sums fit 29 bits, whatever bytes they have
constexpr int64_t kWinogradBlock = 64, kPointPairs = 32;  // channels come in so many, and their pairs
constexpr int64_t kWinogradFilters = 32;     // filters come in so many
constexpr int64_t kFilterNumbers = 12 * (kPointPairs + 1) * TRACEA_PANEL;  // transformed at a time

struct WinogradBytesJob {
  const ConvNhwcJob* conv;
  Item item;
  int64_t down, across, chunks;  // tiles of an image; parts of them
  int64_t groups, filters;       // parts of the filters, and how many filters there are in one
  int64_t tiles;                 // of a chunk, at most
  int64_t transforms;            // numbers of a chunk's transforms
};

// Numbers of all points of tiles: 32 for each of these, and a few more.
inline int64_t point_numbers(int64_t tiles) {
  return kTilePoints * (tiles * kPointPairs + TRACEA_PANEL);
}

// Tiles of a chunk, so that what becomes of them stays in L2.
inline int64_t chunk_tiles(int64_t channels) {
  const int64_t tile = 4 * kTilePoints * kPointPairs * (channels / kWinogradBlock + 1);
  return max(kTransformedBytes / tile, kFewTiles);
}

// Does it pay?  In cycles: one for 64 products of bytes or 32 of 16 bits, and for the transforms what
// a Zen 4 takes for a channel of a tile, a filter of it, and a filter's channel for each chunk of tiles.
inline bool winograd_pays(const ConvNhwcJob& job) {
  const double pixels = static_cast<double>(job.gemm.m), channels = static_cast<double>(job.channels);
  const double filters = static_cast<double>(job.gemm.n);
  const int64_t tiles_of_image = ceil_div(job.rows, kTileEdge) * ceil_div(job.columns, kTileEdge);
  const double chunks = static_cast<double>(job.images * ceil_div(tiles_of_image, chunk_tiles(job.channels)));
  const double tiles = static_cast<double>(job.images * tiles_of_image);
  const double direct = pixels * filters * channels * 9 / 64;
  const double products = tiles * kTilePoints * filters * channels / 32;
  const double images = tiles * channels * 8, results = tiles * filters * (job.gemm.rounds == 1 ? 12 : 16);
  return products + images + results + chunks * filters * channels * 3 < 0.95 * direct;
}

// Whether the convolution is one that kernels compute so.
inline bool is_winograd(const ConvNhwcJob& job) {
  const GemmJob& gemm = job.gemm;
  const int level = level_of(gemm.isa->isa);
  if (!gemm.chain || job.sums || job.depthwise || job.groups != 1) return false;
  if (level < level_of("avx512") || level > level_of("avx512bf16")) return false;
  for (int axis = 0; axis < 2; ++axis)
    if (job.kernel[axis] != 3 || job.strides[axis] != 1 || job.dilations[axis] != 1) return false;
  return job.channels % kWinogradBlock == 0 && gemm.n % kWinogradFilters == 0 &&
         job.channels <= kWinogradChannels && winograd_pays(job);
}

// Runs the chain of some tiles, of which each has a few runs of neighbouring outputs.
inline void finish_winograd(const WinogradBytesJob& job, const tracea_winograd_bytes_tile& tile, int64_t image,
                            int64_t filter) {
  const ConvNhwcJob& conv = *job.conv;
  const float* sums = tile.sums;
  for (int64_t i = tile.first; i < tile.first + tile.tiles; ++i)
    for (int64_t r = 0; r < kTileEdge; ++r, sums += kTileEdge * tile.filters) {
      const int64_t row = i / job.across * kTileEdge + r, column = i % job.across * kTileEdge;
      if (row >= conv.rows) continue;
      const int64_t columns = min(kTileEdge, conv.columns - column);
      const GemmTile at = {(image * conv.rows + row) * conv.columns + column, filter,
                           static_cast<int32_t>(columns), static_cast<int32_t>(tile.filters)};
      finish_tile(conv.gemm, job.item, at, sums, tile.filters);
    }
}

// Tiles [first, first + tiles) of an image, which are one of its chunks.
struct TileChunk {
  int64_t image, first, tiles;
};

inline TileChunk tile_chunk(const WinogradBytesJob& job, int64_t index) {
  const int64_t all = job.down * job.across, chunk = index % job.chunks;
  const int64_t first = all * chunk / job.chunks, end = all * (chunk + 1) / job.chunks;
  return {index / job.chunks, first, end - first};
}

// The transforms of a chunk.
inline void transform_tiles(const WinogradBytesJob& job, const TileChunk& at, int32_t* to) {
  const ConvNhwcJob& conv = *job.conv;
  tracea_winograd_image_tile tile = {};
  tile.x = reinterpret_cast<const uint8_t*>(conv.x + at.image * conv.image);
  tile.line = conv.line, tile.pixel = conv.pixel;
  tile.height = conv.height, tile.width = conv.width;
  tile.top = conv.top, tile.left = conv.left;
  tile.across = job.across;
  tile.first = at.first, tile.tiles = at.tiles;
  tile.channels = conv.channels;
  tile.flip = conv.gemm.flip, tile.padding = conv.padding;
  tile.to = to;
  conv.gemm.isa->winograd_image_int8(&tile);
}

// About the cycles of the thread with most to do, where an image has so many chunks and the filters
// come in so many groups, after the measures of winograd_pays.  Groups read what other threads wrote, and
// a line of results that two of them write goes from core to core each time.
inline double divided_cycles(const WinogradBytesJob& job, int64_t chunks, int64_t groups, int64_t threads) {
  constexpr double kReadLine = 60, kSharedLine = 200;
  const ConvNhwcJob& conv = *job.conv;
  const double tiles = static_cast<double>(ceil_div(job.down * job.across, chunks));
  const double channels = static_cast<double>(conv.channels), pixels = tiles * kTileEdge * kTileEdge;
  const int64_t each = ceil_div(conv.gemm.n / kWinogradFilters, groups) * kWinogradFilters;
  const double filters = static_cast<double>(each);
  double task = tiles * filters * channels * kTilePoints / 32 + filters * channels * 3;
  task += tiles * channels * 8 + tiles * filters * (conv.gemm.rounds == 1 ? 12 : 16);
  if (groups > 1) task += kReadLine * pixels * channels / kAlign;
  if (groups > 1 && each % kAlign) task += kSharedLine * pixels * ceil_div(each, kAlign);
  return task * static_cast<double>(ceil_div(conv.images * chunks * groups, threads));
}

// Chunks of tiles and groups of filters: what takes least, of two as good the one with fewer tasks.
inline void divide_winograd(WinogradBytesJob& job, int64_t threads) {
  const ConvNhwcJob& conv = *job.conv;
  const int64_t tiles = job.down * job.across, parts = conv.gemm.n / kWinogradFilters;
  const int64_t least = ceil_div(tiles, chunk_tiles(conv.channels));
  const int64_t most = max(least, min(tiles / kFewTiles, ceil_div(2 * threads, conv.images)));
  double best = 0;
  job.chunks = least, job.groups = 1;
  for (int64_t chunks = least; threads > 1 && chunks <= most; ++chunks)
    for (int64_t groups = 1; groups <= min(parts, 2 * threads); ++groups) {
      const double cycles = divided_cycles(job, chunks, groups, threads);
      if (best > 0 && cycles >= best) continue;
      best = cycles, job.chunks = chunks, job.groups = groups;
    }
}

// A task: some filters of a chunk.  Each transforms the chunk itself: to read what another core has
// transformed takes longer.
inline void winograd_tiles_task(void* usr, size_t index) {
  const WinogradBytesJob& job = *static_cast<WinogradBytesJob*>(usr);
  const ConvNhwcJob& conv = *job.conv;
  const GemmJob& gemm = conv.gemm;
  const int64_t task = static_cast<int64_t>(index), chunk = task / job.groups;
  const int64_t parts = gemm.n / kWinogradFilters, group = task % job.groups;
  const int64_t filter = parts * group / job.groups * kWinogradFilters;
  const int64_t end = parts * (group + 1) / job.groups * kWinogradFilters;
  const TileChunk at = tile_chunk(job, chunk);
  Slots& slots = const_cast<Slots&>(gemm.slots);
  const int slot = claim_slot(slots);
  int32_t* transforms = reinterpret_cast<int32_t*>(memory_of(slots, slot));
  int32_t* memory = transforms + job.transforms;
  transform_tiles(job, at, transforms);
  tracea_winograd_bytes_tile tile = {};
  tile.pairs = transforms;
  tile.rows = conv.rows, tile.columns = conv.columns;
  tile.across = job.across;
  tile.first = at.first, tile.tiles = at.tiles;
  tile.channels = conv.channels, tile.filters = end - filter;
  tile.w = job.item.w + filter / TRACEA_PANEL * gemm.w_panel, tile.w_panel = gemm.w_panel;
  tile.zero = gemm.zero;
  tile.memory = memory;
  if (gemm.rounds == 1) round_into(gemm, job.item, at.image * conv.rows * conv.columns, filter, tile);
  else tile.sums = reinterpret_cast<float*>(memory + kFilterNumbers + point_numbers(job.tiles));
  gemm.isa->winograd_nhwc_int8(&tile);
  if (tile.sums) finish_winograd(job, tile, at.image, filter);
  release_slot(slots, slot);
}

inline bool run_winograd_bytes(Run& run, ConvNhwcJob& conv, const Item& item) {
  WinogradBytesJob job = {};
  job.conv = &conv, job.item = item;
  job.down = ceil_div(conv.rows, kTileEdge), job.across = ceil_div(conv.columns, kTileEdge);
  divide_winograd(job, run.host.processors);
  job.tiles = ceil_div(job.down * job.across, job.chunks);
  const int64_t parts = conv.gemm.n / kWinogradFilters, tasks = conv.images * job.chunks * job.groups;
  job.filters = ceil_div(parts, job.groups) * kWinogradFilters;
  job.transforms = conv.channels / kWinogradBlock * point_numbers(job.tiles);
  const int64_t sums = conv.gemm.rounds == 1 ? 0 : job.tiles * kTileEdge * kTileEdge * job.filters;
  const int64_t memory = job.transforms + kFilterNumbers + point_numbers(job.tiles) + sums;
  Scratch scratch(run);
  return make_slots(run, scratch, tasks, 4 * memory, &conv.gemm.slots) &&
         run.parallel(tasks, winograd_tiles_task, &job);
}

}  // namespace tracea
