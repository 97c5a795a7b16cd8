// Convolutions of the C interface: filters in the layout that phases/pack_filters.py gives them, and
// the calls that lowering/conv.py makes of them.
#pragma once
#include "runtime/blocked.h"
#include "runtime/c_products.h"

namespace tracea {

enum FilterKind : int32_t { kPlainFilters, kBlockedFilters, kFirstLayerFilters, kDepthwiseFilters };

// Filters as kernels read them.  `memory` holds all of them; bias, padded to whole blocks, may be
// null.
struct PackedFilters {
  TraceaConv2dParams params;
  FilterKind kind;
  int64_t filters, channels, rows, cols;  // channels of a group
  int64_t side;                           // of Winograd's tiles; 0: none
  char* memory;
  float *direct, *transformed, *bias;

  int64_t blocks() const { return ceil_div(filters, kLanes); }
  int64_t in_blocks() const { return ceil_div(channels, kLanes); }
  int64_t taps() const { return rows * cols; }
  int64_t direct_count() const {
    switch (kind) {
      case kBlockedFilters: return blocks() * in_blocks() * taps() * kLanes * kLanes;
      case kFirstLayerFilters: return blocks() * channels * taps() * kLanes;
      case kDepthwiseFilters: return blocks() * taps() * kLanes;
      default: return filters * channels * taps();
    }
  }
  int64_t transformed_count() const {
    return side ? (side + 2) * (side + 2) * blocks() * in_blocks() * kLanes * kLanes : 0;
  }
};

inline FilterKind filter_kind(const PackedFilters& f) {
  const int64_t groups = f.params.groups;
  if (groups == 1) return f.channels <= kFewChannels ? kFirstLayerFilters : kBlockedFilters;
  if (f.channels == 1 && f.filters == groups) return kDepthwiseFilters;
  return f.channels % kLanes == 0 && f.filters / groups % kLanes == 0 ? kBlockedFilters
                                                                      : kPlainFilters;
}

// Tiles of Winograd's algorithm, or 0 for direct sums.
inline int64_t winograd_side(const PackedFilters& f) {
  const TraceaConv2dParams& p = f.params;
  bool fits = f.kind == kBlockedFilters && p.groups == 1 && f.rows == 3 && f.cols == 3;
  for (int i = 0; i < 2; ++i) fits = fits && p.stride[i] == 1 && p.dilation[i] == 1;
  for (int i = 0; i < 4; ++i) fits = fits && p.padding[i] == 1;
  if (!fits || f.filters <= kFewFilters || p.algorithm == TRACEA_CONV_DIRECT) return 0;
  return p.algorithm == TRACEA_CONV_WINOGRAD4 ? 4 : 2;
}

struct PlainFilters {
  const float* data;
  int64_t stride[4];

  float at(int64_t o, int64_t i, int64_t row, int64_t col) const {
    return data[o * stride[0] + i * stride[1] + row * stride[2] + col * stride[3]];
  }
};

// Columns of direct filters that belong to one block of outputs, by (input, tap).
inline void pack_block(const PackedFilters& f, const PlainFilters& w, int64_t block, int64_t input,
                       int64_t row, int64_t col, float* to) {
  const int64_t first = block * kLanes, count = min(kLanes, f.filters - first);
  for (int64_t lane = 0; lane < kLanes; ++lane)
    to[lane] = lane < count && input < f.channels ? w.at(first + lane, input, row, col) : 0.0f;
}

// Whether each filter's numbers lie one after another.
inline bool in_lines(const PackedFilters& f, const PlainFilters& w) {
  const int64_t sizes[] = {f.channels, f.rows, f.cols}, dense[] = {f.taps(), f.cols, 1};
  for (int i = 0; i < 3; ++i)
    if (sizes[i] > 1 && w.stride[1 + i] != dense[i]) return false;
  return true;
}

constexpr int64_t kMostTaps = 49;  // that are reordered on the stack

// Filters in lines, by the packing of products, which makes panels of 16 columns.
inline void pack_lines(const PackedFilters& f, const PlainFilters& w, const tracea_isa_table& isa) {
  const int64_t taps = f.taps(), depth = f.channels * taps;
  if (f.kind != kBlockedFilters || (taps == 1 && f.channels % kLanes == 0)) {
    const tracea_gemm_pack_tile tile = {depth, f.filters, w.data, 1, w.stride[0], f.direct, depth * kLanes};
    return isa.gemm_pack(&tile);
  }
  float lines[kLanes * kMostTaps * kLanes];  // of one block, taps inside the channels
  float* to = f.direct;
  for (int64_t first = 0; first < f.filters; first += kLanes)
    for (int64_t from = 0; from < f.channels; from += kLanes) {
      const int64_t channels = min(kLanes, f.channels - from);
      const tracea_gemm_pack_tile tile = {channels * taps, min(kLanes, f.filters - first),
                                          w.data + first * w.stride[0] + from * taps, 1, w.stride[0],
                                          lines, channels * taps * kLanes};
      isa.gemm_pack(&tile);
      for (int64_t tap = 0; tap < taps; ++tap, to += kLanes * kLanes) {
        for (int64_t i = 0; i < channels; ++i)
          memcpy(to + i * kLanes, lines + (i * taps + tap) * kLanes, kLanes * sizeof(float));
        memset(to + channels * kLanes, 0, static_cast<size_t>((kLanes - channels) * kLanes) * sizeof(float));
      }
    }
}

// `isa` may be null: it only makes packing faster.
inline void pack_direct(const PackedFilters& f, const PlainFilters& w, const tracea_isa_table* isa) {
  float* to = f.direct;
  if (f.kind == kPlainFilters) {
    for (int64_t o = 0; o < f.filters; ++o)
      for (int64_t i = 0; i < f.channels; ++i)
        for (int64_t row = 0; row < f.rows; ++row)
          for (int64_t col = 0; col < f.cols; ++col) *to++ = w.at(o, i, row, col);
    return;
  }
  const bool lanes = f.kind == kBlockedFilters;  // input channels inside the taps
  if (isa && isa->gemm_pack && in_lines(f, w) && (!lanes || f.taps() <= kMostTaps))
    return pack_lines(f, w, *isa);
  const int64_t outer = lanes ? f.in_blocks() : f.kind == kDepthwiseFilters ? 1 : f.channels;
  for (int64_t block = 0; block < f.blocks(); ++block)
    for (int64_t i = 0; i < outer; ++i)
      for (int64_t row = 0; row < f.rows; ++row)
        for (int64_t col = 0; col < f.cols; ++col)
          for (int64_t lane = 0; lane < (lanes ? kLanes : 1); ++lane, to += kLanes)
            pack_block(f, w, block, lanes ? i * kLanes + lane : i, row, col, to);
}

// g of F(side x side, 3 x 3), by row; winograd.py has the points.
inline const double (*winograd_matrix(int64_t side))[3] {
  static const double two[][3] = {{1, 0, 0}, {.5, .5, .5}, {.5, -.5, .5}, {0, 0, 1}};
  static const double four[][3] = {{1. / 4, 0, 0}, {-1. / 6, -1. / 6, -1. / 6},
                                   {-1. / 6, 1. / 6, -1. / 6}, {1. / 24, 1. / 12, 1. / 6},
                                   {1. / 24, -1. / 12, 1. / 6}, {0, 0, 1}};
  return side == 2 ? two : four;
}

// [(side + 2)^2, Ob, Ib, 16 (in), 16 (out)] = g w g' in double precision, rounded once.
inline void pack_transformed(const PackedFilters& f, const PlainFilters& w) {
  const int64_t points = f.side + 2, plane = f.transformed_count() / (points * points);
  const auto g = winograd_matrix(f.side);
  memset(f.transformed, 0, static_cast<size_t>(f.transformed_count()) * sizeof(float));
  for (int64_t o = 0; o < f.filters; ++o)
    for (int64_t i = 0; i < f.channels; ++i) {
      double half[6][3];  // g w
      for (int64_t u = 0; u < points; ++u)
        for (int64_t col = 0; col < 3; ++col)
          half[u][col] = g[u][0] * static_cast<double>(w.at(o, i, 0, col)) +
                         g[u][1] * static_cast<double>(w.at(o, i, 1, col)) +
                         g[u][2] * static_cast<double>(w.at(o, i, 2, col));
      float* to = f.transformed + ((o / kLanes * f.in_blocks() + i / kLanes) * kLanes + i % kLanes) * kLanes + o % kLanes;
      for (int64_t u = 0; u < points; ++u)
        for (int64_t v = 0; v < points; ++v, to += plane)
          *to = static_cast<float>(half[u][0] * g[v][0] + half[u][1] * g[v][1] + half[u][2] * g[v][2]);
    }
}

// Reads the filters and says how they will be packed; `keep`: for more than one call, which pays
// for a transform.
inline bool read_filters(Failure& failure, const TraceaTensorView* w, const TraceaTensorView* bias,
                         const TraceaConv2dParams* given, bool keep, PackedFilters* out,
                         CTensor* weight, CTensor* row) {
  *out = {};
  out->params = TRACEA_CONV2D_PARAMS_INIT;
  if (!read_params(failure, given, &out->params) ||
      !read_tensor(failure, "w", w, 4, 4, 0, weight) ||
      !read_vector(failure, "bias", bias, weight->dim(0), row) ||
      !check_conv2d(failure, out->params, *w))
    return false;
  out->filters = weight->dim(0), out->channels = weight->dim(1);
  out->rows = weight->dim(2), out->cols = weight->dim(3);
  out->kind = filter_kind(*out);
  out->side = keep ? winograd_side(*out) : 0;
  return true;
}

// Bytes that packing takes, or -1 if there are too many.
inline int64_t packed_bytes(const PackedFilters& f) {
  int64_t most = 4 * 36 + 8;  // bytes per filter, channel and tap, transforms included
  const int64_t factors[] = {ceil_div(f.filters, kLanes) * kLanes, ceil_div(f.channels, kLanes) * kLanes, f.rows, f.cols};
  for (int64_t factor : factors)
    if (__builtin_mul_overflow(most, factor, &most)) return -1;
  return 4 * (f.direct_count() + f.transformed_count() + f.blocks() * kLanes) + 3 * kAlign;
}

inline void pack_filters(PackedFilters& f, char* memory, const CTensor& weight, const CTensor& row) {
  Failure none;  // calls say why there is no level
  const auto aligned = [](char* at) {
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(at) + kAlign - 1) & ~uintptr_t{kAlign - 1});
  };
  f.memory = memory;
  f.direct = aligned(memory);
  f.transformed = aligned(reinterpret_cast<char*>(f.direct + f.direct_count()));
  const int64_t* s = weight.view.strides;
  const PlainFilters plain = {reinterpret_cast<const float*>(weight.low) + weight.view.offset,
                              {s[0], s[1], s[2], s[3]}};
  pack_direct(f, plain, local_isa(none));
  if (f.side) pack_transformed(f, plain);
  if (!row.given()) return;
  f.bias = aligned(reinterpret_cast<char*>(f.transformed + f.transformed_count()));
  memset(f.bias, 0, static_cast<size_t>(f.blocks() * kLanes) * sizeof(float));
  memcpy(f.bias, row.low + row.view.offset * 4, static_cast<size_t>(f.filters) * sizeof(float));
}

// ---- calls -------------------------------------------------------------------------------------

struct ConvPlan {
  const PackedFilters& f;
  CRun& run;
  PlannedView x, y;
  int64_t chain;
  double low, high;

  int64_t out(int32_t axis) const { return y.dims[2 + axis]; }
};

inline void put_ints(int64_t*& at, const int32_t* from, int32_t count) {
  for (int32_t i = 0; i < count; ++i) *at++ = from[i];
}

inline int64_t tail_of(int64_t channels) { return (channels - 1) % kLanes + 1; }

// A blocked temp of an image with this halo.
inline PlannedView blocked_temp(CRun& run, int64_t images, int64_t channels, int64_t height,
                                int64_t width, const int64_t* halo, int32_t first) {
  const int64_t dims[] = {images, ceil_div(channels, kLanes), height + halo[0] + halo[2],
                          width + halo[1] + halo[3], kLanes};
  const int64_t count = dims[0] * dims[1] * dims[2] * dims[3] * dims[4];
  return dense_view(kTemp, run.plan.temp(count, first, first + 1), 5, dims);
}

// x of the convolution, blocked and with its padding.
inline PlannedView reordered(ConvPlan& c) {
  const int32_t* pads = c.f.params.padding;
  const bool lines = c.f.kind == kDepthwiseFilters;  // which pads rows itself
  const int64_t halo[] = {pads[0], lines ? 0 : pads[1], pads[2], lines ? 0 : pads[3]};
  const int64_t channels = c.x.dims[1], ints[] = {tail_of(channels), halo[0], halo[1], halo[2], halo[3]};
  const PlannedView views[] = {
      c.x, blocked_temp(c.run, c.x.dims[0], channels, c.x.dims[2], c.x.dims[3], halo, c.run.plan.calls())};
  c.run.plan.call(kReorderToNchw16c, ints, 5, nullptr, 0, views, 2);
  return views[1];
}

// Ints and views of the convolution itself; its result is a blocked temp.
inline PlannedView convolve(ConvPlan& c) {
  const PackedFilters& f = c.f;
  const TraceaConv2dParams& p = f.params;
  const PlannedView x = f.kind == kFirstLayerFilters ? c.x : reordered(c);
  int64_t ints[16], *at = ints;
  int32_t opcode = kConv;
  PlannedView views[6];
  int32_t count = 0;
  const int64_t direct[] = {f.blocks(), f.in_blocks(), f.rows, f.cols, kLanes, kLanes};
  if (f.side) {
    opcode = kConvDispatch;
    *at++ = f.side, *at++ = tail_of(f.filters), *at++ = tail_of(f.channels);
    views[count++] = c.run.add(f.direct, 6, direct);
  } else {
    put_ints(at, p.stride, 2), put_ints(at, p.dilation, 2);
  }
  views[count++] = x;
  if (f.side) {
    const int64_t points = f.side + 2;
    const int64_t dims[] = {points * points, f.blocks(), f.in_blocks(), kLanes, kLanes};
    views[count++] = c.run.add(f.transformed, 5, dims);
  } else if (f.kind == kFirstLayerFilters) {
    opcode = kConvFirstLayer;
    put_ints(at, p.padding, 4), *at++ = tail_of(f.filters);
    const int64_t dims[] = {f.blocks(), f.channels, f.rows, f.cols, kLanes};
    views[count++] = c.run.add(f.direct, 5, dims);
  } else if (f.kind == kDepthwiseFilters) {
    opcode = kDepthwise;
    *at++ = tail_of(f.filters), *at++ = p.padding[1], *at++ = p.padding[3];
    const int64_t dims[] = {f.blocks(), f.rows, f.cols, kLanes};
    views[count++] = c.run.add(f.direct, 4, dims);
  } else {
    *at++ = p.groups, *at++ = tail_of(f.filters);
    *at++ = p.groups > 1 ? kLanes : tail_of(f.channels);
    put_ints(at, p.padding, 4);
    views[count++] = c.run.add(f.direct, 6, direct);
  }
  for (int i = 0; i < 4; ++i) *at++ = 0;  // no halo around the result
  const int64_t lanes = f.blocks() * kLanes, none[4] = {};
  views[count++] = f.bias ? c.run.add(f.bias, 1, &lanes) : kNoView;
  views[count++] = kNoView;  // nothing is added
  const int32_t call = c.run.plan.calls();
  const PlannedView y = blocked_temp(c.run, c.y.dims[0], f.filters, c.out(0), c.out(1), none, call);
  views[count++] = y;
  const double floats[] = {c.low, c.high};
  c.run.plan.call(opcode, ints, static_cast<int32_t>(at - ints), floats, 2, views, count, c.chain);
  return y;
}

inline void plan_conv(ConvPlan& c) {
  const PackedFilters& f = c.f;
  const TraceaConv2dParams& p = f.params;
  bool unpadded = true;
  for (int i = 0; i < 4; ++i) unpadded = unpadded && p.padding[i] == 0;
  if (f.kind == kPlainFilters) {
    int64_t ints[7] = {p.groups}, *at = ints + 1;
    put_ints(at, p.stride, 2), put_ints(at, p.dilation, 2), put_ints(at, p.padding, 2);
    const int64_t dims[] = {f.filters, f.channels, f.rows, f.cols};
    const PlannedView w = c.run.add(f.direct, 4, dims);
    const PlannedView views[] = {c.x, w, f.bias ? c.run.add(f.bias, 1, &f.filters) : kNoView, c.y};
    c.run.plan.call(kConvPlain, ints, 7, nullptr, 0, views, 4, c.chain);
  } else if (f.kind == kBlockedFilters && p.groups == 1 && f.taps() == 1 && unpadded &&
             c.x.dims[2] == 1 && c.x.dims[3] == 1) {  // a matrix product
    const auto matrix = [](const PlannedView& v) {
      return PlannedView{v.kind, v.index, 2, v.offset, {v.dims[0], v.dims[1]},
                         {v.strides[0], v.dims[1] == 1 ? 1 : v.strides[1]}};
    };
    const int64_t dims[] = {f.blocks(), f.in_blocks() * kLanes, kLanes};
    PlannedView w = c.run.add(f.direct, 3, dims);
    w.dims[1] = f.channels;
    const PlannedView bias = f.bias ? c.run.add(f.bias, 1, &f.filters) : kNoView;
    plan_gemm(c.run, matrix(c.x), w, bias, matrix(c.y), gemm_call::kLayoutPanels, c.chain);
  } else {
    const PlannedView views[] = {convolve(c), c.y};
    const int64_t tail = tail_of(f.filters);
    c.run.plan.call(kReorderToNchw, &tail, 1, nullptr, 0, views, 2);
  }
}

inline bool run_filters(Failure& failure, const PackedFilters& f, const TraceaTensorView* x,
                        const TraceaTensorView* y) {
  CTensor tx, ty;
  const int64_t sizes[] = {f.filters, f.channels, f.rows, f.cols};
  const uint32_t columns = f.kind == kPlainFilters ? uint32_t{kUnitColumns} : 0;
  if (!read_tensor(failure, "x", x, 4, 4, 0, &tx) ||
      !read_tensor(failure, "y", y, 4, 4, kResult | columns, &ty) ||
      !check_images(failure, f.params, sizes, *x, *y) || !separate(failure, ty, tx, "x"))
    return false;
  if (ty.empty()) return true;
  CRun run;
  const PlannedView vx = run.add(tx), vy = run.result(ty);
  ConvPlan plan = {f, run, vx, vy, -1, -__builtin_inf(), __builtin_inf()};
  const bool clamps = f.params.activation == TRACEA_RELU && f.kind != kPlainFilters;
  const bool product = f.taps() == 1 && tx.dim(2) == 1 && tx.dim(3) == 1;
  if (clamps && !product) plan.low = 0;
  else if (!find_activation(failure, f.params.activation, &plan.chain)) return false;
  plan_conv(plan);
  return run.run("conv2d", failure);
}

inline bool c_conv2d(Failure& failure, const TraceaTensorView* x, const TraceaTensorView* w,
                     const TraceaTensorView* bias, const TraceaTensorView* y,
                     const TraceaConv2dParams* given) {
  PackedFilters f;
  CTensor weight, row;
  if (!read_filters(failure, w, bias, given, false, &f, &weight, &row)) return false;
  const int64_t bytes = packed_bytes(f);
  char* memory = bytes < 0 ? nullptr : static_cast<char*>(local_memory.take(static_cast<size_t>(bytes)));
  if (!memory) return failure.refuse(TRACEA_CPU_ERROR, "There is no memory for packed filters.");
  pack_filters(f, memory, weight, row);
  const bool ok = run_filters(failure, f, x, y);
  local_memory.give(memory);
  return ok;
}

}  // namespace tracea
