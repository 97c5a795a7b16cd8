// Convolutions of plain values with 1 to 3 spatial axes and any groups: right for everything, used
// where no blocked kernel applies.
//
// One image is copied at a time, with its padding, and each line split by column stride, so that
// the kernel reads neighbouring outputs' inputs side by side.  Short lines are computed together as
// one line, gaps included, and separated afterwards.
#pragma once
#include "runtime/blocked.h"

namespace tracea {

constexpr int64_t kPlainRows = 8;        // output channels at once
constexpr int64_t kPlainTask = 1 << 17;  // multiply-adds
constexpr int64_t kShortLine = 48;       // outputs below which lines are joined,
constexpr int64_t kJoined = 192;         // and as many as they become at most

struct PlainJob {
  tracea_conv_plain_fn conv;
  const tracea_chain_type* type;
  tracea_chain_fn chain;
  const TensorView *x, *w, *bias, *extra, *y;  // bias may be null
  int32_t axes;                         // spatial ones
  // By spatial axis, of three; those a value lacks have size 1.
  int64_t in[3], out[3], kernel[3], stride[3], dilation[3], before[3];
  int64_t x_stride[3], y_stride[3], w_row;
  int64_t inputs, outputs, taps;        // channels of a group
  int64_t rows[2], line;                // copied planes and lines; floats of a line of one phase
  float* copy;
  int64_t* offset;                      // of each tap in the copy
  int64_t image, tiles_per_group, joined, items, per_task;  // joined: lines at once
};

// Copies one input channel: line (d, h), phase p, place q holds column q * stride + p.
inline void plain_copy_task(void* usr, size_t index) {
  const PlainJob& job = *static_cast<const PlainJob*>(usr);
  const int64_t channel = static_cast<int64_t>(index), step = job.stride[2];
  const float* x = job.x->f32() + job.image * job.x->strides[0] + channel * job.x->strides[1];
  float* to = job.copy + channel * job.rows[0] * job.rows[1] * step * job.line;
  for (int64_t d = 0; d < job.rows[0]; ++d)
    for (int64_t h = 0; h < job.rows[1]; ++h) {
      const int64_t z = d - job.before[0], y = h - job.before[1];
      const bool outside = z < 0 || z >= job.in[0] || y < 0 || y >= job.in[1];
      const float* row = outside ? nullptr : x + z * job.x_stride[0] + y * job.x_stride[1];
      for (int64_t p = 0; p < step; ++p)
        for (int64_t q = 0; q < job.line; ++q) {
          const int64_t at = q * step + p - job.before[2];
          *to++ = outside || at < 0 || at >= job.in[2] ? 0.0f : row[at * job.x_stride[2]];
        }
    }
}

inline void plain_chain(const PlainJob& job, int64_t channel, const int64_t* at, int64_t rows) {
  tracea_chain_tile tile = {};
  tile.rows = rows, tile.cols = job.out[2];
  const auto place = [&](const TensorView& box) {
    const int64_t* s = box.strides;
    int64_t first = job.image * s[0] + channel * s[1];
    for (int32_t i = 0; i + 1 < job.axes; ++i) first += at[3 - job.axes + i] * s[2 + i];
    return first;
  };
  for (int32_t i = 0; i < job.type->operands; ++i) {
    const TensorView& box = i ? job.extra[i - 1] : *job.y;
    tile.in[i] = box.data + place(box) * element_size(job.type->type[i]);
    tile.in_stride[i] = box.strides[1];
  }
  tile.out[0] = job.y->f32() + place(*job.y);
  tile.out_stride[0] = job.y->strides[1];
  job.chain(&tile);
}

// Lines [0, lines) of a tile as one, `apart` outputs from one to the next.
inline void plain_lines(const PlainJob& job, tracea_conv_plain_tile& tile, int64_t lines,
                        int64_t apart) {
  alignas(64) float joined[kPlainRows * kJoined];
  float* y = tile.y;
  const int64_t y_row = tile.y_row;
  tile.cols = (lines - 1) * apart + job.out[2];
  tile.y = joined, tile.y_row = kJoined;
  job.conv(&tile);
  for (int64_t r = 0; r < tile.rows; ++r)
    for (int64_t i = 0; i < lines; ++i)
      memcpy(y + r * y_row + i * job.y_stride[1], joined + r * kJoined + i * apart,
             static_cast<size_t>(job.out[2]) * sizeof(float));
}

// Some lines of some output channels.
inline void plain_task(void* usr, size_t index) {
  const PlainJob& job = *static_cast<const PlainJob*>(usr);
  const int64_t begin = static_cast<int64_t>(index) * job.per_task;
  const int64_t end = min(job.items, begin + job.per_task);
  const int64_t line = job.stride[2] * job.line, plane = job.rows[1] * line;
  for (int64_t item = begin; item < end; ++item) {
    int64_t rest = item;
    int64_t at[3] = {};
    const int64_t units = ceil_div(job.out[1], job.joined);
    at[1] = rest % units * job.joined, rest /= units;
    at[0] = rest % job.out[0], rest /= job.out[0];
    const int64_t group = rest / job.tiles_per_group, row = rest % job.tiles_per_group * kPlainRows;
    const int64_t channel = group * job.outputs + row;
    tracea_conv_plain_tile tile = {};
    tile.rows = min(kPlainRows, job.outputs - row), tile.cols = job.out[2];
    tile.channels = job.inputs, tile.taps = job.taps;
    tile.x_channel = job.rows[0] * plane;
    tile.x = job.copy + group * job.inputs * tile.x_channel + at[0] * job.stride[0] * plane +
             at[1] * job.stride[1] * line;
    tile.offset = job.offset;
    tile.w = job.w->f32() + channel * job.w_row, tile.w_row = job.w_row;
    float bias[kPlainRows];
    for (int64_t r = 0; job.bias && r < tile.rows; ++r)
      bias[r] = job.bias->f32()[(channel + r) * job.bias->strides[0]];
    tile.bias = job.bias ? bias : nullptr;
    tile.y_row = job.y->strides[1];
    tile.y = job.y->f32() + job.image * job.y->strides[0] + channel * tile.y_row +
             at[0] * job.y_stride[0] + at[1] * job.y_stride[1];
    const int64_t lines = min(job.joined, job.out[1] - at[1]);
    if (lines > 1) plain_lines(job, tile, lines, line);
    else job.conv(&tile);
    for (const int64_t end = at[1] + lines; job.chain && at[1] < end; ++at[1])
      plain_chain(job, channel, at, tile.rows);
  }
}

// Each list has one entry per spatial axis.
inline bool check_conv_plain(Signature& call) {
  const int32_t axes = call.rank(conv_plain_call::kX) - 2;
  return (axes >= 1 && axes <= 3 && call.integers() == 1 + 3 * axes) ||
         call.fail("a value that has not 1 to 3 spatial axes");
}

// Whether an operand lies as its kind says: rows are channels, columns the last axis.
inline bool lies_plain(const TensorView& box, uint8_t kind, const TensorView& y, int32_t axes) {
  bool ok = true;
  for (int32_t i = 0; i < 2 + axes; ++i) ok = ok && box.dims[i] == y.dims[i];
  const bool rows = kind == TRACEA_FULL || kind == TRACEA_COL;
  const bool cols = kind == TRACEA_FULL || kind == TRACEA_ROW;
  return ok && (rows || y.dims[1] <= 1 || box.strides[1] == 0) &&
         (y.dims[1 + axes] <= 1 || box.strides[1 + axes] == cols);
}

inline bool plain_shapes(const Call& call, const TensorView* views, PlainJob& job) {
  const TensorView &x = *job.x, &w = *job.w, &y = *job.y;
  const int64_t groups = call.ints[conv_plain_call::kGroups];
  const int64_t* strides = call.ints + conv_plain_call::kStrides;  // then dilations, and starts
  for (int32_t i = 0; i < 3; ++i) {
    const int32_t own = i - (3 - job.axes), axis = 2 + own;
    const bool has = own >= 0;
    job.in[i] = has ? x.dims[axis] : 1, job.out[i] = has ? y.dims[axis] : 1;
    job.kernel[i] = has ? w.dims[axis] : 1;
    job.stride[i] = has ? strides[own] : 1;
    job.dilation[i] = has ? strides[job.axes + own] : 1;
    job.before[i] = has ? strides[2 * job.axes + own] : 0;
    job.x_stride[i] = has ? x.strides[axis] : 0, job.y_stride[i] = has ? y.strides[axis] : 0;
  }
  const int32_t rank = 2 + job.axes;
  bool ok = !empty(w, rank) && dense_from(w, 1, rank) &&
            x.dims[0] == y.dims[0] && w.is(y.dims[1]) && y.dims[1] % groups == 0 &&
            x.dims[1] % groups == 0 && w.dims[1] == x.dims[1] / groups &&
            (y.dims[rank - 1] <= 1 || y.strides[rank - 1] == 1) &&
            (!job.bias || job.bias->is(y.dims[1]));
  for (int32_t i = 1; ok && job.type && i < job.type->operands; ++i)
    ok = lies_plain(views[2 + i], job.type->kind[i], y, job.axes);
  job.inputs = ok ? w.dims[1] : 0, job.outputs = ok ? y.dims[1] / groups : 0;
  job.w_row = w.strides[0];
  return ok;
}

// Bytes of the copy and of the taps' offsets, or -1 if they cannot be counted.
inline int64_t plain_scratch(PlainJob& job, int64_t channels) {
  for (int32_t i = 0; i < 2; ++i)
    job.rows[i] = reach(job.out[i], job.stride[i], job.kernel[i], job.dilation[i]);
  job.line = job.out[2] + (job.kernel[2] - 1) * job.dilation[2] / job.stride[2];
  const int64_t factors[] = {channels, job.rows[0], job.rows[1], job.stride[2], job.line};
  int64_t bytes = 4;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(bytes, factor, &bytes)) return -1;
  return bytes > INT64_MAX / 8 ? -1 : ceil_div(bytes, kAlign) * kAlign + job.taps * 8;
}

inline void place_taps(PlainJob& job) {
  const int64_t line = job.stride[2] * job.line;
  int64_t* to = job.offset;
  for (int64_t d = 0; d < job.kernel[0]; ++d)
    for (int64_t h = 0; h < job.kernel[1]; ++h)
      for (int64_t w = 0; w < job.kernel[2]; ++w) {
        const int64_t row = d * job.dilation[0] * job.rows[1] + h * job.dilation[1];
        const int64_t col = w * job.dilation[2], step = job.stride[2];
        *to++ = row * line + col % step * job.line + col / step;
      }
}

inline bool run_conv_plain(Run& run, const Call& call, const TensorView* views) {
  PlainJob job = {};
  job.type = call.chain_type();
  job.chain = job.type ? run.host.isa->chain[call.chain] : nullptr;
  job.x = &views[0], job.w = &views[1];
  job.bias = views[2].data ? &views[2] : nullptr;
  job.extra = &views[3];
  job.y = &views[call.view_count - 1];
  job.axes = call.views[0].rank - 2;
  if (empty(*job.y, 2 + job.axes)) return true;
  if (!plain_shapes(call, views, job)) return misfit(run, "conv_plain");
  job.conv = run.host.isa->conv_plain;
  job.taps = job.kernel[0] * job.kernel[1] * job.kernel[2];
  Scratch scratch(run);
  const int64_t bytes = plain_scratch(job, job.x->dims[1]);
  char* memory = scratch.take(bytes);
  if (!memory) return false;
  job.offset = reinterpret_cast<int64_t*>(memory);
  job.copy = reinterpret_cast<float*>(memory + job.taps * 8);
  place_taps(job);
  job.tiles_per_group = ceil_div(job.outputs, kPlainRows);
  job.joined = 1;
  if (job.stride[1] == 1 && job.stride[2] == 1 && job.out[2] < kShortLine && job.line < kJoined)
    job.joined = max(1, min(job.out[1], (kJoined - job.out[2]) / job.line + 1));
  job.items = call.ints[conv_plain_call::kGroups] * job.tiles_per_group * job.out[0] *
              ceil_div(job.out[1], job.joined);
  const int64_t work = kPlainRows * job.inputs * job.taps * job.out[2] * job.joined;
  job.per_task = max(1, kPlainTask / work);
  for (job.image = 0; job.image < job.y->dims[0]; ++job.image)
    if (!run.parallel(job.x->dims[1], plain_copy_task, &job) ||
        !run.parallel(ceil_div(job.items, job.per_task), plain_task, &job))
      return false;
  return true;
}

}  // namespace tracea
