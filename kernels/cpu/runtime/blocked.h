// Blocked values, [N, blocks, H, W, 16]: their checks, their halos, and what is done to the outputs
// of a convolution once they are summed.  kernels/cpu/CALLS.md has the conventions.
//
// Pointers and strides of a value in bf16 count steps of 32 bits, as if it had half as many lanes.
#pragma once
#include <math.h>

#include "runtime/check.h"
#include "runtime/run.h"

namespace tracea {

constexpr int64_t kLanes = TRACEA_PANEL, kHalf = kLanes / 2;

inline bool blocked(const TensorView& box) {
  return (box.dims[4] == kLanes) & (box.strides[4] == 1) &&
         (box.dims[3] <= 1 || box.strides[3] == kLanes);
}

// Whether a call multiplies fp16, or rounds to it.
#if defined(__aarch64__)
inline bool in_fp16(const Call& call) {
  return call.opcode == kConvF16 || call.opcode == kRoundImagesF16;
}
#else
constexpr bool in_fp16(const Call&) { return false; }
#endif

inline int64_t lanes_of(int32_t type) {
#if defined(__aarch64__)
  if (type == ORT_F16) return kLanes / 2;
#endif
  return type == ORT_BF16 || type == ORT_I16 ? kLanes / 2 : kLanes;
}

// Two blocks side by side, [N, blocks / 2, H, W, 32], of bf16 only.
inline bool is_nchw32c(const TensorView& box) {
  return (box.dims[4] == 2 * kLanes) & (box.strides[4] == 1) &&
         (box.dims[3] <= 1 || box.strides[3] == 2 * kLanes);
}

// Strides of a blocked value, in steps of 32 bits; false where one falls between two.
inline bool steps_of(const TensorView& box, int64_t lanes, int64_t (&out)[4]) {
  bool ok = true;
  for (int32_t i = 0; i < 4; ++i) {
    out[i] = box.strides[i] / (kLanes / lanes);
    ok = ok && (box.dims[i] <= 1 || box.strides[i] % (kLanes / lanes) == 0);
  }
  return ok;
}

// 32 numbers of 16 bits in a pixel, [N, blocks, H, W, 32], seen as blocked steps of 32 bits; false
// where they are not.
inline bool as_half_blocks(const TensorView& box, TensorView* out) {
  int64_t steps[4];
  if (box.dims[4] != 2 * kLanes || box.strides[4] != 1 || !steps_of(box, kHalf, steps))
    return false;
  *out = box, out->dims[4] = kLanes;
  for (int32_t i = 0; i < 4; ++i) out->strides[i] = steps[i];
  return blocked(*out);
}

// Whether axes from `axis` on lie one after another.
inline bool dense_from(const TensorView& box, int32_t axis, int32_t rank) {
  int64_t stride = 1;
  for (int32_t i = rank; i-- > axis; stride *= box.dims[i])
    if (box.dims[i] > 1 && box.strides[i] != stride) return false;
  return true;
}

inline bool empty(const TensorView& box, int32_t rank) {
  bool none = false;
  for (int32_t i = 0; i < rank; ++i) none = none || box.dims[i] == 0;
  return none;
}

// Inputs that `count` outputs of a window read along one axis, padding included.
inline int64_t reach(int64_t count, int64_t stride, int64_t taps, int64_t dilation) {
  return (count - 1) * stride + (taps - 1) * dilation + 1;
}

// Taps [first, end) of a kernel along one axis.
struct Taps {
  int64_t first, end;
};

struct Halo {
  int64_t top, left, bottom, right;
};
inline Halo halo_of(const int64_t* ints) { return {ints[0], ints[1], ints[2], ints[3]}; }

// Offset of a block from the first one; in nchw32c two blocks share a pixel.
inline int64_t block_at(int64_t block, int64_t stride, bool nchw32c) {
  return nchw32c ? (block >> 1) * stride + (block & 1) * kHalf : block * stride;
}

// A blocked result with its halo; `height` and `width` are those of the interior.  Its lines may be
// seen as one.
struct Canvas {
  const TensorView* box;
  Halo halo;
  int64_t height, width, lanes, strides[4];  // lanes: steps of a pixel
  int64_t rows, line;  // lines as they lie, and pixels of each with its halo
  int64_t blocks;
  bool half, nchw32c;    // numbers of 16 bits; two blocks in a pixel

  bool rounds() const { return half; }  // in bf16
  float* row(int64_t n, int64_t block, int64_t y) const {  // interior row y, at column 0
    const int64_t* s = strides;
    return box->f32() + n * s[0] + block_at(block, s[1], nchw32c) + (y + halo.top) * s[2] +
           halo.left * lanes;
  }
  float* at(int64_t n, int64_t block, int64_t y, int64_t x) const {
    return row(n, block, y) + x * lanes;
  }

  // If the interior is empty, no task clears the halo beside its pixels: clears everything and returns
  // true.  Callers ask this first.
  bool bare() const {
    if (height > 0 && width > 0 && box->dims[0] > 0 && blocks > 0) return false;
    for (int64_t n = 0; n < box->dims[0]; ++n)
      for (int64_t block = 0; block < blocks; block += 1 + nchw32c)
        for (int64_t y = 0; y < box->dims[2]; ++y)
          zero(row(n, block, y - halo.top) - halo.left * lanes, line);
    return true;
  }

  // Zeros beside rows [y, y + count) where columns [x, end) of them touch an edge, and above the
  // first and below the last row.
  void clear(int64_t n, int64_t block, int64_t y, int64_t count, int64_t x, int64_t end) const {
    if (nchw32c && (block & 1)) return;  // with the one before
    const bool first = x == 0, last = end == width;
    for (int64_t i = y; (halo.left | halo.right) && i < y + count; ++i) {
      float* at = row(n, block, i);
      if (first) zero(at - halo.left * lanes, halo.left);
      if (last) zero(at + width * lanes, halo.right);
    }
    for (int64_t i = 1; first && y == 0 && i <= halo.top; ++i)
      zero(row(n, block, -i) - halo.left * lanes, line);
    for (int64_t i = 0; last && y + count == height && i < halo.bottom; ++i)
      zero(row(n, block, rows + i) - halo.left * lanes, line);
  }

 private:
  void zero(float* at, int64_t pixels) const {
    constexpr int64_t few = 4;  // not worth a call
    for (int64_t i = 0; pixels <= few && i < pixels * lanes; i += kHalf)
      memset(at + i, 0, kHalf * sizeof(float));
    if (pixels > few) memset(at, 0, static_cast<size_t>(pixels * lanes) * sizeof(float));
  }
};

// Returns false if the view is not blocked (or nchw32c, if allowed) or is smaller than its halo.
inline bool open_canvas(const TensorView& box, const int64_t* halo, Canvas* out,
                        int32_t type = ORT_F32, bool allow_nchw32c = false) {
  const int64_t lanes = lanes_of(type);
  const bool nchw32c = allow_nchw32c && type == ORT_BF16 && is_nchw32c(box);
  *out = {&box, halo_of(halo), 0, 0, nchw32c ? kLanes : lanes, {}, 0, box.dims[3],
          box.dims[1] * (1 + nchw32c), lanes != kLanes, nchw32c};
  out->height = out->rows = box.dims[2] - out->halo.top - out->halo.bottom;
  out->width = box.dims[3] - out->halo.left - out->halo.right;
  return (nchw32c || blocked(box)) && out->height >= 0 && out->width >= 0 &&
         steps_of(box, lanes, out->strides);
}

// ---- post-ops ----------------------------------------------------------------------------------

// y = chain(clamp(sum + add), epilogue inputs...), on a canvas.
struct PostOps {
  Canvas canvas;
  const TensorView *add, *extra;  // add may be null
  int64_t add_lanes, add_strides[4];
  bool add_nchw32c;
  const tracea_chain_type* type;
  tracea_chain_fn chain;
  bool as_one_row;  // no operand of the chain differs by row or column alone
  bool needed;      // there is a chain or a halo
  float lo, hi;

  const float* add_at(int64_t n, int64_t block, int64_t y, int64_t x) const {
    if (!add) return nullptr;
    const int64_t* s = add_strides;
    return add->f32() + n * s[0] + block_at(block, s[1], add_nchw32c) + y * s[2] + x * add_lanes;
  }

  // Whether sums are buffered until the chain has rounded its results.
  bool apart() const { return chain && canvas.rounds(); }

  // Runs the chain over outputs [x, x + count) of one line, in place or from sums that lie apart,
  // then clears the halo beside.
  void line(int64_t n, int64_t block, int64_t y, int64_t x, int64_t count,
            const float* sums = nullptr) const {
    if (chain) run_chain(n, block, y, x, count, sums);
    canvas.clear(n, block, y, 1, x, x + count);
  }

 private:
  void run_chain(int64_t n, int64_t block, int64_t y, int64_t x, int64_t count,
                 const float* sums) const {
    float* line = canvas.at(n, block, y, x);
    tracea_chain_tile tile = {};
    const bool one = as_one_row && !canvas.nchw32c;
    tile.rows = one ? 1 : count;
    tile.cols = one ? count * kLanes : kLanes;
    tile.in[0] = sums ? sums : line, tile.out[0] = line;
    tile.in_stride[0] = kLanes, tile.out_stride[0] = canvas.nchw32c ? 2 * kLanes : kLanes;
    for (int32_t i = 1; i < type->operands; ++i) {
      const TensorView& box = extra[i - 1];
      const int64_t* s = box.strides;
      const int64_t first = n * s[0] + block * s[1] + y * s[2] + x * s[3];
      tile.in[i] = box.data + first * element_size(type->type[i]);
      tile.in_stride[i] = s[3];
    }
    chain(&tile);
  }
};

// Whether an operand lies as its kind says.
inline bool lies_blocked(const TensorView& box, uint8_t kind, const Canvas& y) {
  const TensorView& whole = *y.box;
  const bool lanes = kind == TRACEA_FULL || kind == TRACEA_ROW;
  const bool pixels = kind == TRACEA_FULL || kind == TRACEA_COL;
  return box.is(whole.dims[0], y.blocks) && box.dims[2] == y.height &&
         box.dims[3] == y.width && box.dims[4] == kLanes && box.strides[4] == lanes &&
         (y.width <= 1 || pixels || box.strides[3] == 0) &&
         (y.width <= 1 || kind != TRACEA_FULL || box.strides[3] == kLanes);
}

inline bool in_integers(const Call& call) {
  return call.opcode == kConvInt16 || call.opcode == kWinogradInt16;
}

// Whether the scales of integers are one for each image, and `per_filter` for each filter.
inline bool scales_fit(const TensorView& images, const TensorView& filters, const TensorView& y, int64_t per_filter) {
  return images.is(y.dims[0]) && (y.dims[0] <= 1 || images.strides[0] == 1) &&
         filters.dims[0] % (kLanes * per_filter) == 0 &&
         filters.dims[0] / (kLanes * per_filter) == y.dims[1] && filters.strides[0] == 1;
}

// lies_blocked() for a bf16 operand in nchw32c.
inline bool lies_nchw32c(const TensorView& box, const Canvas& y) {
  return is_nchw32c(box) && y.blocks % 2 == 0 && box.is(y.box->dims[0], y.blocks / 2) &&
         box.dims[2] == y.height && box.dims[3] == y.width;
}

// Fills `out` from the views; false if they do not fit each other, or the bias its blocks.  With
// `allow_nchw32c` y and the added operand may be nchw32c.  `halo`: index of the halo attribute.
inline bool open_post_ops(Run& run, const Call& call, const TensorView* views, int32_t halo, PostOps* out,
                        bool allow_nchw32c = false) {
  out->type = call.chain_type();
  out->chain = out->type ? run.host.isa->chain[call.chain] : nullptr;
  out->add = views[3].data ? &views[3] : nullptr;
  const int64_t lanes = lanes_of(call.views[3].type);
  const int32_t fixed = in_integers(call) ? 6 : 4;
  out->extra = &views[fixed];
  out->lo = static_cast<float>(call.floats[conv_call::kLow]);
  out->hi = static_cast<float>(call.floats[conv_call::kHigh]);
  const int32_t extra = out->type ? out->type->operands - 1 : 0;
  const TensorView &y = views[fixed + extra], &bias = views[2];
  bool ok = open_canvas(y, call.ints + halo, &out->canvas,
                        call.views[fixed + extra].type, allow_nchw32c);
  ok = ok && (!bias.data || (bias.dims[0] / kLanes == out->canvas.blocks && bias.dims[0] % kLanes == 0 &&
                             bias.strides[0] == 1));
  out->add_nchw32c = ok && allow_nchw32c && out->add && lanes != kLanes &&
                   lies_nchw32c(*out->add, out->canvas);
  out->add_lanes = out->add_nchw32c ? kLanes : lanes;
  ok = ok && (!out->add || ((out->add_nchw32c || lies_blocked(*out->add, TRACEA_FULL, out->canvas)) &&
                            steps_of(*out->add, lanes, out->add_strides)));
  const Halo& zeros = out->canvas.halo;
  out->needed = out->chain || zeros.top || zeros.left || zeros.bottom || zeros.right;
  out->as_one_row = true;
  for (int32_t i = 1; ok && i <= extra; ++i) {
    const uint8_t kind = out->type->kind[i];
    ok = lies_blocked(out->extra[i - 1], kind, out->canvas);
    out->as_one_row = out->as_one_row && (kind == TRACEA_FULL || kind == TRACEA_SCALAR);
  }
  return ok;
}

constexpr int64_t kLinePiece = 56;            // outputs buffered for a chain that rounds them
constexpr int64_t kTileFloats = 64 * kLanes;  // of sums at least as many as any register tile has
constexpr int64_t kChainTiles = 4;            // register tiles that a chain takes at once

// Bytes of an element of the results, and of what is added to the sums.
struct Layout {
  int32_t y_size, add_size;
};
inline Layout layout_of(const PostOps& post_ops) {
  const auto size = [](bool half) { return static_cast<int32_t>(half ? 2 : 4); };
  return {size(post_ops.canvas.half), size(post_ops.add_nchw32c || post_ops.add_lanes != kLanes)};
}

// How a tile's results and what is added to them lie; an nchw32c block has two panels, from an even one
// on.
inline void lay_post_ops(const PostOps& post_ops, tracea_conv_tile& tile) {
  const Layout layout = layout_of(post_ops);
  tile.y_size = layout.y_size, tile.add_size = layout.add_size;
  tile.y_step = post_ops.canvas.lanes, tile.add_step = post_ops.add_lanes;
  tile.y_panel = post_ops.canvas.nchw32c ? kHalf : post_ops.canvas.strides[1];
  tile.y_line = post_ops.canvas.strides[2];
  if (!post_ops.add) return;
  tile.add_panel = post_ops.add_nchw32c ? kHalf : post_ops.add_strides[1];
  tile.add_line = post_ops.add_strides[2];
}

// Results of so many rows of outputs in the place of their own that a chain rounds them from.
inline void set_apart(tracea_conv_tile& tile, float* sums, int64_t rows, int64_t width) {
  tile.y = sums, tile.y_size = sizeof(float), tile.y_step = kLanes;
  tile.y_line = width * kLanes, tile.y_panel = rows * tile.y_line;
}

}  // namespace tracea
