// Axes of kernels that treat some axes specially: reductions, ArgMax and softmax.
//
// `special` axes are reduced (or normalised over), the others are kept.  Neighbouring axes of one
// role that every view crosses at one stride become one.  The innermost axis becomes the columns;
// the rows are the innermost axis of the other role, or of the same one where there is no other.
#pragma once
#include "runtime/elementwise.h"

namespace tracea {

constexpr int64_t kTile = 4096;  // elements of a tile that stays in the first cache

struct Axes {
  int32_t count, views;
  bool special[kMaxRank];
  int64_t dims[kMaxRank];
  int64_t strides[kMaxRank][kMaxChainViews];  // by axis, then view

  void add(const TensorView* boxes, int64_t dim, int32_t axis, bool role) {
    bool joins = count > 0 && special[count - 1] == role;
    for (int32_t v = 0; joins && v < views; ++v) {
      int64_t through;
      joins = !__builtin_mul_overflow(boxes[v].strides[axis], dim, &through) &&
              strides[count - 1][v] == through;
    }
    if (!joins) special[count] = role, dims[count++] = 1;
    dims[count - 1] *= dim;
    for (int32_t v = 0; v < views; ++v) strides[count - 1][v] = boxes[v].strides[axis];
  }

  // Removes an axis and returns it as its size and strides.
  int64_t take(int32_t axis, int64_t* out) {
    const int64_t dim = dims[axis];
    memcpy(out, strides[axis], sizeof strides[axis]);
    --count;
    for (int32_t i = axis; i < count; ++i) {
      special[i] = special[i + 1], dims[i] = dims[i + 1];
      memcpy(strides[i], strides[i + 1], sizeof strides[i]);
    }
    return dim;
  }

  // Index of the innermost axis that is special or not, or -1.
  int32_t last(bool role) const {
    int32_t axis = count - 1;
    while (axis >= 0 && special[axis] != role) --axis;
    return axis;
  }

  // Number of index combinations over the axes that are special or not.
  int64_t size(bool role) const {
    int64_t product = 1;
    for (int32_t i = 0; i < count; ++i)
      if (special[i] == role) product *= dims[i];
    return product;
  }

  // Offset of view `v` at combination `at` of those axes, in elements.
  int64_t offset(bool role, int32_t v, int64_t at) const {
    int64_t sum = 0;
    for (int32_t i = count; i-- > 0;)
      if (special[i] == role) sum += at % dims[i] * strides[i][v], at /= dims[i];
    return sum;
  }
};

// A chain that fills a tile of float32, as a task uses it.
struct Prologue {
  const tracea_chain_type* type;  // null: none
  tracea_chain_fn chain;
  const char* data[TRACEA_MAX_OPERANDS];
  int64_t size[TRACEA_MAX_OPERANDS];

  void begin(Run& run, const Call& call, const TensorView* views) {
    type = call.chain_type();
    if (!type) return;
    chain = run.host.isa->chain[call.chain];
    for (int32_t v = 0; v < type->operands; ++v)
      data[v] = views[v].data, size[v] = element_size(type->type[v]);
  }

  // Whether its operands lie along columns and rows as the chain was compiled.
  bool fits(int64_t cols, const int64_t* col_strides, int64_t rows,
            const int64_t* row_strides) const {
    for (int32_t v = 0; type && v < type->operands; ++v) {
      if (cols > 1 && col_strides[v] != spreads(type->kind[v], true)) return false;
      if (rows > 1 && row_strides[v] != 0 && !spreads(type->kind[v], false)) return false;
    }
    return true;
  }

  // Operand `v` begins `at[v]` elements from its view.
  void fill(const int64_t* at, const int64_t* row_strides, int64_t rows, int64_t cols, float* out,
            int64_t out_stride) const {
    tracea_chain_tile tile;
    tile.rows = rows, tile.cols = cols;
    for (int32_t v = 0; v < type->operands; ++v) {
      tile.in[v] = data[v] + at[v] * size[v];
      tile.in_stride[v] = rows > 1 ? row_strides[v] : 0;
    }
    tile.out[0] = out, tile.out_stride[0] = out_stride;
    chain(&tile);
  }
};

// Operands and a result as rows and columns, of which one are special.
struct Planes {
  Prologue prologue;
  bool down;      // the special axis runs down the rows of each column
  int32_t views;  // operands, and y as the last one
  const float* x;
  Axes axes;  // all but rows and columns
  int64_t rows, cols, row_stride[kMaxChainViews], col_stride[kMaxChainViews];

  void begin(Run& run, const Call& call, const TensorView* boxes) {
    prologue.begin(run, call, boxes);
    views = call.view_count;
    x = boxes[0].f32();
  }

  // Takes columns and rows out of the folded axes; `special` are axes as bits.  Axes of size 1 are
  // left out, but for special ones that are to be `kept`.  False where the operands do not lie
  // along rows and columns.
  bool fold(const TensorView* boxes, int32_t rank, int64_t special, bool kept) {
    axes = {};
    axes.views = views;
    for (int32_t axis = 0; axis < rank; ++axis) {
      const bool role = special >> axis & 1;
      if (boxes[0].dims[axis] != 1 || (role && kept))
        axes.add(boxes, boxes[0].dims[axis], axis, role);
    }
    cols = rows = 1;
    down = axes.count > 0 && !axes.special[axes.count - 1];
    if (axes.count > 0) cols = axes.take(axes.count - 1, col_stride);
    const int32_t row = axes.last(down);
    if (row >= 0) rows = axes.take(row, row_stride);
    const bool plain = prologue.type || cols == 1 || col_stride[0] == 1;
    return plain && prologue.fits(cols, col_stride, rows, row_stride);
  }

  // Whether the result's columns lie side by side.
  bool writes_densely() const { return cols == 1 || col_stride[views - 1] == 1; }
};

// Whether the views' sizes agree, where the `special` axes of the last one are 1; notes whether
// there is nothing to write, or nothing to read.
inline bool sizes_agree(const Call& call, const TensorView* views, int64_t special, bool* no_result,
                        bool* no_element) {
  const int32_t last = call.view_count - 1, rank = call.views[last].rank;
  for (int32_t axis = 0; axis < rank; ++axis) {
    const bool role = special >> axis & 1;
    const int64_t dim = views[0].dims[axis];
    for (int32_t v = 1; v < last; ++v)
      if (views[v].dims[axis] != dim) return false;
    if (views[last].dims[axis] != (role ? 1 : dim)) return false;
    (role ? *no_element : *no_result) |= dim == 0;
  }
  return true;
}

// A dense view of these sizes at `data`.
inline TensorView dense_box(const TensorView& like, int32_t rank, char* data) {
  TensorView box;
  box.data = data;
  int64_t step = 1;
  for (int32_t axis = rank; axis-- > 0; step *= box.dims[axis])
    box.dims[axis] = like.dims[axis], box.strides[axis] = step;
  return box;
}

// Where the chain was compiled for other strides than `planes` has: run it first, into `dense`, and
// fold that result instead.
inline bool fold_apart(Planes& planes, Run& run, Scratch& dense, const Call& call,
                       const TensorView* views, int32_t rank, int64_t special, bool kept) {
  const int32_t last = call.view_count - 1;
  int64_t count = 1;
  for (int32_t axis = 0; axis < rank; ++axis) count *= views[0].dims[axis];
  char* data = dense.take(count * 4);
  if (!data) return false;
  TensorView all[kMaxChainViews];
  memcpy(all, views, static_cast<size_t>(last) * sizeof *all);
  all[last] = dense_box(views[0], rank, data);
  if (!apply_chain(run, call.chain, all, rank)) return false;
  const TensorView both[] = {all[last], views[last]};
  planes.prologue = {};
  planes.views = 2;
  planes.x = both[0].f32();
  planes.fold(both, rank, special, kept);
  return true;
}

}  // namespace tracea
