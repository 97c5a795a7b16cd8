// Depthwise convolutions of bytes, channels last: a task finds the taps of some windows, the
// padding for those outside, and computes some channels of some pixels at a time.
#pragma once
#include "runtime/gemm.h"

namespace tracea {

constexpr int64_t kTapPixels = 32;     // whose taps' addresses are at hand at once
constexpr int64_t kRoundedPixels = 128;  // the same where no sums are stored, and few addresses
constexpr int64_t kTapChannels = 64;   // of them, so that their sums are a tile

constexpr int64_t kFewPatches = 32;  // windows of a task at least, so that reading the panels pays

struct ConvNhwcJob {
  GemmJob gemm;           // of one group
  const char *x, *end;    // behind its last byte
  int64_t images, height, width, channels;  // of x
  int64_t image, line, pixel;               // bytes from one to the next
  int64_t rows, columns;                    // positions of windows
  int64_t kernel[2], strides[2], dilations[2], top, left;
  int64_t groups, depth, row_bytes;         // channels of a group; of a patch with its padding
  int64_t taps_bytes;                       // of a patch
  int32_t padding;                          // byte
  bool whole;       // a line of taps is one run of bytes
  bool sums;        // rows' sums are needed
  bool depthwise;   // a filter for each channel
};

// Where a window lies among those of all images.
struct WindowPlace {
  int64_t image, row, col;
};

inline WindowPlace window_at(const ConvNhwcJob& job, int64_t at) {
  return {at / job.columns / job.rows, at / job.columns % job.rows, at % job.columns};
}

inline void to_next_window(const ConvNhwcJob& job, WindowPlace& at) {
  if (++at.col < job.columns) return;
  at.col = 0;
  if (++at.row == job.rows) at.row = 0, ++at.image;
}

// Does the window of which the first tap lies at (x_row, x_col) lie in the image?
inline bool is_inside(const ConvNhwcJob& job, int64_t x_row, int64_t x_col) {
  const int64_t tall = (job.kernel[0] - 1) * job.dilations[0];
  const int64_t wide = (job.kernel[1] - 1) * job.dilations[1];
  return x_row >= 0 && x_col >= 0 && x_row + tall < job.height && x_col + wide < job.width;
}

// Addresses of the taps of a window, fours of them; those outside x and past the last one are
// `padding`.  True if none is outside.
inline bool find_taps(const ConvNhwcJob& job, const WindowPlace& at, const uint8_t* padding,
                      const uint8_t** taps) {
  const char* x = job.x + at.image * job.image;
  const int64_t x_col = at.col * job.strides[1] - job.left;
  const int64_t x_row = at.row * job.strides[0] - job.top;
  const bool whole = is_inside(job, x_row, x_col);
  for (int64_t t = 0; t < job.kernel[0]; ++t) {
    const int64_t y = x_row + t * job.dilations[0];
    for (int64_t s = 0; s < job.kernel[1]; ++s) {
      const int64_t z = x_col + s * job.dilations[1];
      const bool inside = whole || (y >= 0 && y < job.height && z >= 0 && z < job.width);
      *taps++ = inside ? reinterpret_cast<const uint8_t*>(x + y * job.line + z * job.pixel)
                       : padding;
    }
  }
  for (int64_t t = job.kernel[0] * job.kernel[1]; t % 4; ++t) *taps++ = padding;
  return whole;
}

// The taps of windows from `at` on, which moves behind them.  Those of a window in the image are the
// ones of the window before it in the same row, moved; `moved` says so instead, if it is not null.
inline void find_all_taps(const ConvNhwcJob& job, WindowPlace& at, int64_t windows,
                          const uint8_t* padding, const uint8_t** taps, uint8_t* moved) {
  const int64_t all = job.kernel[0] * job.kernel[1], step = job.strides[1] * job.pixel;
  // The last column whose windows reach no farther right than the image.
  const int64_t reach = job.width - 1 - (job.kernel[1] - 1) * job.dilations[1] + job.left;
  const int64_t last = reach < 0 ? -1 : reach / job.strides[1];
  bool inside = false;  // the window before
  for (int64_t p = 0; p < windows; ++p, taps += job.row_bytes) {
    const bool moves = inside && at.col > 0 && at.col <= last;
    if (moved && moves) {  // and so do those up to the last one
      const int64_t same = min(last + 1 - at.col, windows - p);
      memset(moved + p, 1, static_cast<size_t>(same));
      p += same - 1, taps += (same - 1) * job.row_bytes, at.col += same - 1;
    } else if (moved) {
      moved[p] = 0;
    }
    if (!moves) {
      inside = find_taps(job, at, padding, taps);
    } else if (!moved) {
      const uint8_t* const* before = taps - job.row_bytes;
      for (int64_t t = 0; t < all; ++t) taps[t] = before[t] + step;
      for (int64_t t = all; t < job.row_bytes; ++t) taps[t] = padding;
    }
    to_next_window(job, at);
  }
}

// Whether kernels round the sums of nine taps, and find the taps of windows that move.
inline bool rounds_windows(const ConvNhwcJob& job) {
  return job.gemm.rounds == 1 && job.gemm.k == 3 && job.taps_bytes % 4 == 1;
}

// Pixels that a kernel computes at once: it prepares the weights each time.
inline int64_t tap_pixels(const ConvNhwcJob& job) {
  return rounds_windows(job) ? kRoundedPixels : kTapPixels;
}

// What a task needs: the padding of all channels, and addresses.
inline int64_t padding_bytes(const ConvNhwcJob& job) {
  return ceil_div(job.channels, kAlign) * kAlign;
}
inline int64_t depthwise_bytes(const ConvNhwcJob& job) {
  return padding_bytes(job) + tap_pixels(job) * job.row_bytes * static_cast<int64_t>(sizeof(void*));
}

// Pixels from a row on, in a group of the channels.
inline void depthwise_pixels(const ConvNhwcJob& job, const Item& item, const ByteRows& at,
                             const uint8_t* const* taps, const uint8_t* moved) {
  const int64_t row = at.first, pixels = at.end - at.first;
  alignas(64) float sums[kTapPixels * kTapChannels];
  const GemmJob& gemm = job.gemm;
  const int64_t each = gemm.per_group * kTapChannels, end = min(job.channels, (at.group + 1) * each);
  for (int64_t first = at.group * each; first < end; first += kTapChannels) {
    const int64_t channels = min(kTapChannels, end - first);
    tracea_depthwise_bytes_tile tile = {};
    tile.pixels = pixels, tile.channels = channels, tile.groups = gemm.k;
    tile.w = item.w + first / TRACEA_PANEL * gemm.w_panel, tile.w_panel = gemm.w_panel;
    tile.zero = gemm.zero, tile.flip = gemm.flip, tile.single = job.taps_bytes % 4 == 1;
    tile.taps = taps, tile.channel = first;
    tile.moved = moved, tile.step = job.strides[1] * job.pixel;
    float* y = reinterpret_cast<float*>(item.result[0]);
    const int64_t y_row = gemm.results[0].strides[0];
    tile.c = gemm.chain ? sums : y + row * y_row + first;
    tile.ldc = gemm.chain ? kTapChannels : y_row;
    if (rounds_windows(job)) round_into(gemm, item, row, first, tile);
    gemm.isa->depthwise_nhwc_int8(&tile);
    if (gemm.chain && !tile.bytes)
      finish_tile(gemm, item, {row, first, static_cast<int32_t>(pixels), static_cast<int32_t>(channels)},
                  sums, kTapChannels);
  }
}

inline void depthwise_windows(const ConvNhwcJob& job, const Item& item, const ByteRows& all, char* memory) {
  uint8_t* padding = reinterpret_cast<uint8_t*>(memory);
  memset(padding, job.padding, static_cast<size_t>(job.channels));
  const uint8_t** taps = reinterpret_cast<const uint8_t**>(memory + padding_bytes(job));
  uint8_t flags[kRoundedPixels], *moved = rounds_windows(job) ? flags : nullptr;
  WindowPlace at = window_at(job, all.first);
  const int64_t some = tap_pixels(job);
  for (int64_t row = all.first; row < all.end; row += some) {
    const int64_t pixels = min(some, all.end - row);
    find_all_taps(job, at, pixels, padding, taps, moved);
    depthwise_pixels(job, item, {row, row + pixels, all.group}, taps, moved);
  }
}

}  // namespace tracea
