// Which calls of a program are linked: run without a barrier in between (runtime/linked_calls.h).
//
// A call's host loop hands its tasks to the team and then, instead of waiting for them, runs the next
// call: each call's job stays on the stack below.  What they are linked for is that the next call
// computes as many rows, and that memory which both touch, and one writes, is the same row of both.
// Values that are dead share memory with later ones, so lay_out() keeps those of linked calls apart.
#pragma once
#include "runtime/view_cache.h"

namespace tracea {

// A call, or a loop of calls.
struct Cursor {
  int32_t call, loop;
};

// Memory that a call touches: `width` bytes of every row, rows `stride` bytes apart, or, with stride
// 0, any of `width` bytes in any task.
struct Touched {
  const char* begin;
  int64_t stride, width, rows;
  bool written;

  const char* end() const { return begin + (stride ? (rows - 1) * stride : 0) + width; }
};

// Whether tasks of different rows may meet there.
inline bool conflict(const Touched& a, const Touched& b) {
  if ((!a.written && !b.written) || a.end() <= b.begin || b.end() <= a.begin) return false;
  if (!a.stride || a.stride != b.stride) return true;
  const char* first = a.begin < b.begin ? a.begin : b.begin;
  return a.begin - first + a.width > a.stride || b.begin - first + b.width > a.stride;
}

// The axis of a view of which a task reads or writes its own rows alone, or -1: any.
inline int32_t row_axis(const Call& call, int32_t view) {
  const Op op = kCalls[call.opcode - 1].op;
  if (op == kAttentionOp) return view == attention_call::kY ? 2 : -1;
  if (op == kNormOp) return view == norm_call::kGamma || view == norm_call::kBeta ? -1 : 0;
  const tracea_chain_type* chain = call.chain_type();
  const int32_t axis = call.views[view].rank - 2;
  if (view < 3) return view == gemm_call::kX ? axis : -1;
  if (!chain || view >= chain->operands + 2) return axis;
  const uint8_t kind = chain->kind[view - 2];
  return kind == TRACEA_FULL || kind == TRACEA_COL ? axis : -1;
}

inline Touched touched(const View& view, const TensorView& box, int32_t axis, int64_t rows) {
  const int64_t size = element_size(view.type);
  int64_t low = 0, high = 0;
  for (int32_t i = 0; i < view.rank; ++i) {
    const int64_t reach = (box.dims[i] - 1) * box.strides[i];
    if (i != axis) (reach < 0 ? low : high) += reach;
  }
  const Touched by_row = {box.data + low * size, axis < 0 ? 0 : box.strides[axis] * size,
                          (high - low + 1) * size, rows, view.written};
  if (axis < 0 || (box.dims[axis] == rows && by_row.width <= by_row.stride)) return by_row;
  const int64_t reach = (box.dims[axis] - 1) * box.strides[axis];
  low += min(reach, 0), high += max(reach, 0);
  return {box.data + low * size, 0, (high - low + 1) * size, rows, view.written};
}

constexpr int64_t kLinkedThreads = 5;  // with fewer, barriers take less than waiting for rows does
constexpr int32_t kMaxTouched = 64;  // by linked calls; more are not linked

struct ProgramLinker : Linker {
  Run& run;
  const Program& program;
  const int64_t* symbols;
  const Memory* buffers;
  const Cursor& at;        // the next call
  const int32_t& current;  // the call at hand, or -1 in a loop
  bool (*step)(void* usr);  // runs the next call
  void* usr;
  int32_t linked = 0;    // calls
  bool offered = false;  // the call at hand may be linked to those
  bool nested = false;   // it runs on top of another
  RowTasks rows = {};    // of the last one
  int32_t touches = 0;
  Touched touch[kMaxTouched];

  template <class Step>
  ProgramLinker(Run& r, const Program& p, const int64_t* s, const Memory* b, const Cursor& next,
                const int32_t& now, Step& runs)
      : Linker{link_tasks}, run(r), program(p), symbols(s), buffers(b), at(next), current(now),
        step([](void* job) { return (*static_cast<Step*>(job))(); }),
        usr(const_cast<void*>(static_cast<const void*>(&runs))) {}

  static bool link_tasks(Linker& self, const RowTasks* rows, void (*task)(void*, size_t), void* job,
                         bool* ok) {
    return static_cast<ProgramLinker&>(self).link(rows, task, job, ok);
  }

  bool link(const RowTasks* now, void (*task)(void*, size_t), void* job, bool* ok) {
    const bool first = !linked;
    bool more = false;
    if (first) {
      if (nested || !now || current < 0 || !run.team || run.threads() < kLinkedThreads) return false;
      rows = *now, touches = 0;
      if (!add(current) || !offer()) return false;
      more = true;
    } else if (!offered || !now || now->rows != rows.rows || (now->steps < 2 && !now->all)) {
      return end(), false;
    }
    offered = false;
    run.team->link(*now, first ? nullptr : &rows, task, job);
    rows = *now, ++linked;
    *ok = true;
    if (more || offer()) {
      offered = nested = true;
      *ok = step(usr);
      offered = nested = false;
    }
    return end(), true;
  }

 private:
  // Whether the next call may be linked.
  bool offer() {
    return linked < kMaxLinked && at.call < program.call_count && may_be_linked(program, at.call) &&
           add(at.call);
  }

  // Adds what a call touches; false where that conflicts with calls before it, or has no elements.
  bool add(int32_t index) {
    const Call& call = program.calls[index];
    if (reads_all_rows(call)) touches = 0;  // all that was before is over
    const int32_t before = touches;
    if (before + call.view_count > kMaxTouched) return false;
    for (int32_t i = 0; i < call.view_count; ++i) {
      const View& view = call.views[i];
      TensorView box;
      if (view.kind == kNone) continue;
      if (!find_view(run, call, index, i, symbols, buffers, &box)) return false;
      for (int32_t axis = 0; axis < view.rank; ++axis)
        if (box.dims[axis] == 0) return false;
      touch[touches++] = touched(view, box, row_axis(call, i), rows.rows);
      for (int32_t k = 0; k < before; ++k)
        if (conflict(touch[k], touch[touches - 1])) return false;
    }
    return true;
  }

  void end() {
    if (linked) linked = 0, run.team->finish_linked();
  }
};

}  // namespace tracea
