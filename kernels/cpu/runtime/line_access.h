// Which lines of memory the tasks of a linked call touch (runtime/linker.h).
#pragma once
#include "runtime/group_waits.h"
#include "runtime/run.h"

namespace tracea {

// Of an operand of a chain, or of its results, behind `fixed` other views.
inline bool chain_has_lines(const Call& call, int32_t view, int32_t fixed) {
  const tracea_chain_type* chain = call.chain_type();
  if (!chain || view >= fixed + chain->operands - 1) return true;
  const uint8_t kind = chain->kind[view - fixed + 1];
  return kind == TRACEA_FULL || kind == TRACEA_COL;
}

inline LineAccess matrix_access(const Call& call, Op op, int32_t view) {
  if (op == kAttentionOp) return {view == attention_call::kY ? 2 : -1};
  if (op == kNormOp) return {view == norm_call::kGamma || view == norm_call::kBeta ? -1 : 0};
  const int32_t axis = call.views[view].rank - 2;
  if (view < 3) return {view == gemm_call::kX ? axis : -1};
  return {chain_has_lines(call, view, 3) ? axis : -1};
}

// Sizes of a view's axes are numbers where they are filters'.
inline int64_t filter_lines(const View& filters, int32_t axis) {
  return filters.dims[axis].form == Expr::kIsNumber ? filters.dims[axis].value : INT32_MAX;
}

inline LineAccess pool_access(const Call& call, int32_t view) {
  using namespace pool_call;
  const int64_t* n = call.ints;
  if (view == kY) return {2, 1, -n[kHalo]};
  return {2, n[kStrides], n[kPads], (n[kKernel] - 1) * n[kDilations] + 1};
}

// Convolutions read windows of x, and lines of what they add; `first`: views before x.
inline LineAccess conv_access(const Call& call, int32_t view, int32_t first, bool scales, int64_t halo,
                              const LineAccess& window) {
  const int32_t at = view - first, fixed = scales ? 6 : 4;
  if (at == 0) return window;
  if (at == 3) return {2};
  if (at < fixed) return {};
  const tracea_chain_type* chain = call.chain_type();
  const int32_t operands = chain ? chain->operands - 1 : 0;
  if (at < fixed + operands) return {chain_has_lines(call, at, fixed) ? 2 : -1};
  return {2, 1, -halo};
}

inline LineAccess image_access(const Call& call, Op op, int32_t view) {
  const int64_t* n = call.ints;
  const bool scales = call.opcode == kConvInt16 || call.opcode == kWinogradInt16 ||
                      call.opcode == kConvDispatchInt16;
  const auto window = [&](int64_t step, int64_t taps, int64_t dilation) {
    return LineAccess{2, step, 0, (taps - 1) * dilation + 1};
  };
  if (op == kPoolOp) return pool_access(call, view);
  if (op == kDepthwiseOp)
    return conv_access(call, view, 0, false, n[depthwise_call::kHalo],
                       window(n[depthwise_call::kStrides], filter_lines(call.views[1], 1),
                              n[depthwise_call::kDilations]));
  if (op == kConvOp)
    return conv_access(call, view, 0, scales, n[conv_call::kHalo],
                       window(n[conv_call::kStrides], filter_lines(call.views[1], 2),
                              n[conv_call::kDilations]));
  if (op == kConvFirstLayerOp)
    return conv_access(call, view, 0, false, n[conv_first_layer_call::kHalo], {});
  const int32_t first = op == kConvDispatchOp ? 1 + scales : 0;
  if (view < first) return {};
  return conv_access(call, view, first, scales, n[winograd_call::kHalo], window(1, 3, 1));
}

inline LineAccess line_access(const Call& call, int32_t view) {
  const Op op = kCalls[call.opcode - 1].op;
  return is_image_op(op) ? image_access(call, op, view) : matrix_access(call, op, view);
}

// Memory that a call touches: `width` bytes of every one of `lines` lines, lines `stride` bytes apart,
// once or, where `period` is not 0, again and again so many bytes apart; or, with stride 0, any of
// [low, high) in any task.
struct Touched {
  const char *low, *high, *begin;
  int64_t stride, width, period, lines;
  bool written;
  int32_t call;
  GroupLines of;
};

// What a view touches.  Bytes of a line lie closer together than lines, and what repeats lines, such as
// blocks of channels, farther apart.
inline Touched touched(const View& view, const TensorView& box, const LineAccess& access,
                       const RowTasks& tasks) {
  const int64_t size = element_size(view.type);
  const int64_t stride = access.axis < 0 ? 0 : box.strides[access.axis];
  int64_t low = 0, high = 0, width = 1, period = 0;
  bool by_lines = stride > 0;
  for (int32_t i = 0; i < view.rank; ++i) {
    const int64_t s = box.strides[i], reach = (box.dims[i] - 1) * s;
    (reach < 0 ? low : high) += reach;
    if (i == access.axis || reach == 0) continue;
    if (s < 0 || (s >= stride && period)) by_lines = false;
    else if (s < stride) width += reach;
    else period = s;
  }
  Touched found = {};
  found.low = box.data + low * size, found.high = box.data + (high + 1) * size;
  found.begin = box.data, found.written = view.written;
  if (!by_lines || width > stride) return found;
  found.lines = box.dims[access.axis];
  if (access.step == 1 && access.span == 1 && found.lines < tasks.last_line()) return found;  // one for all
  if (period && found.lines * stride > period) return found;
  found.stride = stride * size, found.width = width * size, found.period = period * size;
  found.of = GroupLines(tasks, access, found.lines);
  return found;
}

// Whether tasks of both may touch the same memory, which one of them writes.
inline bool meet(const Touched& a, const Touched& b) {
  return (a.written || b.written) && a.low < b.high && b.low < a.high;
}

// Whether what both touch is of the same line or of none: line i of b is line i + down of a.
inline bool lines_agree(const Touched& a, const Touched& b, int64_t* down) {
  if (!a.stride || a.stride != b.stride || a.period != b.period) return false;
  int64_t apart = b.begin - a.begin;
  if (a.period) {
    apart -= apart / a.period * a.period;
    if (apart > a.period / 2) apart -= a.period;
    else if (apart < -(a.period / 2)) apart += a.period;
  }
  *down = apart / a.stride;
  int64_t aside = apart - *down * a.stride;
  if (aside < 0) aside += a.stride, --*down;
  if (max(a.width, aside + b.width) > a.stride) {  // b begins before a's line
    ++*down, aside = a.stride - aside;
    if (max(b.width, aside + a.width) > a.stride) return false;
  }
  const int64_t first = min(0, *down), end = max(a.lines, *down + b.lines);
  return !a.period || (end - first) * a.stride <= a.period;
}

}  // namespace tracea
