// Convolutions of bytes by 3 x 3 taps through transforms, where that takes less time: a task
// computes some tiles of 4 x 4 outputs of an image, in all filters.
#pragma once
#include "runtime/depthwise_nhwc.h"
#include "runtime/gemm.h"

namespace tracea {

constexpr int64_t kTileEdge = 4, kTilePoints = 36;
constexpr int64_t kWinogradTiles = 28;       // of a task: their transforms stay in L2
constexpr int64_t kWinogradChannels = 1024;  // whose sums fit 29 bits, whatever bytes they have
constexpr int64_t kWinogradBlock = 64;       // channels and filters come in so many

struct WinogradBytesJob {
  const ConvNhwcJob* conv;
  Item item;
  int64_t down, across, chunks;  // tiles of an image; tasks of it
  int32_t* filters;
  int64_t filter_block;          // numbers of 64 of them
  int64_t memory;                // of a task's transforms and products
};

// Does it pay?  In cycles: one for 64 products of bytes or 32 of 16 bits, and for the transforms what
// a Zen 4 takes for a channel of a tile, a filter of it, and a filter's channel, which is written.
inline bool winograd_pays(const ConvNhwcJob& job) {
  const double pixels = static_cast<double>(job.gemm.m), channels = static_cast<double>(job.channels);
  const double filters = static_cast<double>(job.gemm.n);
  const double tiles = static_cast<double>(job.images * ceil_div(job.rows, kTileEdge) *
                                           ceil_div(job.columns, kTileEdge));
  const double direct = pixels * filters * channels * 9 / 64;
  const double products = tiles * kTilePoints * filters * channels / 32;
  const double images = tiles * channels * 8, results = tiles * filters * (job.gemm.rounds == 1 ? 12 : 16);
  return products + images + results + filters * channels * 12 < 0.95 * direct;
}

// Whether the convolution is one that kernels compute so.
inline bool is_winograd(const ConvNhwcJob& job) {
  const GemmJob& gemm = job.gemm;
  const int level = level_of(gemm.isa->isa);
  if (!gemm.chain || job.sums || job.depthwise || job.groups != 1) return false;
  if (level < level_of("avx512") || level > level_of("avx512bf16")) return false;
  for (int axis = 0; axis < 2; ++axis)
    if (job.kernel[axis] != 3 || job.strides[axis] != 1 || job.dilations[axis] != 1) return false;
  return job.channels % kWinogradBlock == 0 && gemm.n % kWinogradBlock == 0 &&
         job.channels <= kWinogradChannels && winograd_pays(job);
}

// A task: 64 filters.
inline void winograd_filters_task(void* usr, size_t index) {
  const WinogradBytesJob& job = *static_cast<WinogradBytesJob*>(usr);
  const int64_t block = static_cast<int64_t>(index);
  const GemmJob& gemm = job.conv->gemm;
  const int64_t panels = kWinogradBlock / TRACEA_PANEL;
  const tracea_winograd_filters_tile tile = {job.conv->channels, job.item.w + block * panels * gemm.w_panel,
                                             gemm.w_panel, job.filters + block * job.filter_block};
  gemm.isa->winograd_filters_int8(&tile);
}

// Runs the chain of some tiles, of which each has a few runs of neighbouring outputs.
inline void finish_winograd(const WinogradBytesJob& job, const tracea_winograd_bytes_tile& tile, int64_t image) {
  const ConvNhwcJob& conv = *job.conv;
  const float* sums = tile.sums;
  for (int64_t i = tile.first; i < tile.first + tile.tiles; ++i)
    for (int64_t r = 0; r < kTileEdge; ++r, sums += kTileEdge * tile.filters) {
      const int64_t row = i / job.across * kTileEdge + r, column = i % job.across * kTileEdge;
      if (row >= conv.rows) continue;
      const int64_t columns = min(kTileEdge, conv.columns - column);
      const GemmTile at = {(image * conv.rows + row) * conv.columns + column, 0,
                           static_cast<int32_t>(columns), static_cast<int32_t>(tile.filters)};
      finish_tile(conv.gemm, job.item, at, sums, tile.filters);
    }
}

// A task: some tiles of an image.
inline void winograd_tiles_task(void* usr, size_t index) {
  const WinogradBytesJob& job = *static_cast<WinogradBytesJob*>(usr);
  const ConvNhwcJob& conv = *job.conv;
  const GemmJob& gemm = conv.gemm;
  const int64_t task = static_cast<int64_t>(index), image = task / job.chunks, chunk = task % job.chunks;
  const int64_t tiles = job.down * job.across;
  Slots& slots = const_cast<Slots&>(gemm.slots);
  const int slot = claim_slot(slots);
  tracea_winograd_bytes_tile tile = {};
  tile.x = reinterpret_cast<const uint8_t*>(conv.x + image * conv.image);
  tile.line = conv.line, tile.pixel = conv.pixel;
  tile.height = conv.height, tile.width = conv.width;
  tile.top = conv.top, tile.left = conv.left;
  tile.rows = conv.rows, tile.columns = conv.columns;
  tile.across = job.across;
  tile.first = tiles * chunk / job.chunks, tile.tiles = tiles * (chunk + 1) / job.chunks - tile.first;
  tile.channels = conv.channels, tile.filters = gemm.n;
  tile.u = job.filters;
  tile.w = job.item.w, tile.w_panel = gemm.w_panel;
  tile.zero = gemm.zero, tile.flip = gemm.flip, tile.padding = conv.padding;
  tile.memory = reinterpret_cast<int32_t*>(memory_of(slots, slot));
  if (gemm.rounds == 1) round_into(gemm, job.item, image * conv.rows * conv.columns, 0, tile);
  else tile.sums = reinterpret_cast<float*>(tile.memory + job.memory);
  gemm.isa->winograd_nhwc_int8(&tile);
  if (tile.sums) finish_winograd(job, tile, image);
  release_slot(slots, slot);
}

inline bool run_winograd_bytes(Run& run, ConvNhwcJob& conv, const Item& item) {
  WinogradBytesJob job = {};
  job.conv = &conv, job.item = item;
  job.down = ceil_div(conv.rows, kTileEdge), job.across = ceil_div(conv.columns, kTileEdge);
  const int64_t tiles = job.down * job.across, processors = run.host.processors;
  const int64_t wanted = processors > 1 ? ceil_div(4 * processors, conv.images) : 1;
  job.chunks = max(ceil_div(tiles, kWinogradTiles), min(wanted, ceil_div(tiles, kWinogradTiles / 4)));
  const int64_t each = ceil_div(tiles, job.chunks), blocks = conv.gemm.n / kWinogradBlock;
  job.filter_block = kTilePoints * (conv.channels / 2 + 1) * kWinogradBlock;
  const int64_t pairs = kTilePoints / 2 * each * conv.channels;
  const int64_t products = kTilePoints * (each * kWinogradBlock + TRACEA_PANEL);
  const int64_t sums = conv.gemm.rounds == 1 ? 0 : each * kTileEdge * kTileEdge * conv.gemm.n;
  job.memory = pairs + products;
  Scratch filters(run), scratch(run);
  job.filters = reinterpret_cast<int32_t*>(filters.take(4 * blocks * job.filter_block));
  if (!job.filters) return false;
  const int64_t tasks = conv.images * job.chunks;
  return make_slots(run, scratch, tasks, 4 * (job.memory + sums), &conv.gemm.slots) &&
         run.parallel(blocks, winograd_filters_task, &job) &&
         run.parallel(tasks, winograd_tiles_task, &job);
}

}  // namespace tracea
