// Tensors of the C interface: checked, and seen as buffers and views of a plan.
#pragma once
#include "runtime/local_program.h"
#include "runtime/plan_builder.h"

namespace tracea {

// Memory [low, low + bytes) that a tensor's elements take; `view` is in elements from `low` on.
struct CTensor {
  char* low;
  int64_t count;  // elements of the buffer
  int32_t type;
  PlannedView view;  // kind kNone: left out

  bool given() const { return view.kind != kNone; }
  int64_t dim(int32_t axis) const { return view.dims[axis]; }
  bool empty() const { return count == 0; }
  LocalValue value() const { return {low, type, 1, {count}}; }
};

// Reads a tensor of float32 (or bool) with `least` to `most` axes.
inline bool read_tensor(Failure& failure, const char* name, const TraceaTensorView* t,
                        int32_t least, int32_t most, uint32_t traits, CTensor* out) {
  if (!t) return refuse_shape(failure, name, "is missing");
  if (t->device_id != TRACEA_CPU)
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                          "%s lies on device %d, but this library has kernels for the CPU (device_id "
                          "-1) only.", name, t->device_id);
  if (t->dtype != TRACEA_F32 && !(traits & kAlsoBool && t->dtype == TRACEA_BOOL))
    return failure.refuse(element_size(t->dtype) ? TRACEA_UNSUPPORTED_CONFIG : TRACEA_INVALID_PARAMS,
                          "%s has element type %d, but only float32 (1)%s is computed.", name,
                          t->dtype, traits & kAlsoBool ? " or bool (9)" : "");
  TensorSpan span;
  if (!check_tensor(failure, name, *t, least, most, traits, &span)) return false;
  const bool none = span.none;
  out->low = none ? address_of(nullptr)
                  : static_cast<char*>(t->ptr) + span.low * element_size(t->dtype);
  out->count = span.count();
  out->type = t->dtype;
  out->view = {traits & kResult ? kOutput : kInput, 0, t->rank, none ? 0 : -span.low, {}, {}};
  for (int32_t i = 0; i < t->rank; ++i)
    out->view.dims[i] = t->shape[i], out->view.strides[i] = t->shape[i] == 1 ? 0 : t->stride[i];
  const int32_t last = t->rank - 1;
  if (t->rank && t->shape[last] == 1 && !(traits & kAlsoBool)) out->view.strides[last] = 1;
  return true;
}

// As above; an operand that may be left out.
inline bool read_optional(Failure& failure, const char* name, const TraceaTensorView* t,
                          int32_t least, int32_t most, uint32_t traits, CTensor* out) {
  if (t) return read_tensor(failure, name, t, least, most, traits, out);
  *out = {nullptr, 0, 0, kNoView};
  return true;
}

// A vector of `size` numbers, one after another, or none.
inline bool read_vector(Failure& failure, const char* name, const TraceaTensorView* t, int64_t size,
                        CTensor* out) {
  if (!read_optional(failure, name, t, 1, 1, kUnitColumns, out)) return false;
  return !t || out->dim(0) == size ||
         failure.refuse(TRACEA_INVALID_PARAMS, "%s has %lld numbers, but must have %lld.", name,
                        static_cast<long long>(out->dim(0)), static_cast<long long>(size));
}

// Kernels write results while they read operands.
inline bool separate(Failure& failure, const CTensor& result, const CTensor& operand,
                     const char* name) {
  const auto begin = [](const CTensor& t) { return reinterpret_cast<uintptr_t>(t.low); };
  const auto end = [&](const CTensor& t) {
    return begin(t) + static_cast<uintptr_t>(t.count * element_size(t.type));
  };
  return result.empty() || operand.empty() ||
         check_separate(failure, begin(result), end(result), begin(operand), end(operand), name);
}

// Whether axes [0, axes) and the one behind them lie at one step, so that they count as one.
inline bool even(const PlannedView& view, int32_t axes) {
  bool any = false;
  int64_t next = 0;
  for (int32_t i = axes; i >= 0; --i) {
    if (view.dims[i] == 1) continue;
    if (any && view.strides[i] != next) return false;
    any = true, next = view.strides[i] * view.dims[i];
  }
  return true;
}

// The view with its first `axes` axes joined to the one behind them.
inline PlannedView joined(const PlannedView& view, int32_t axes) {
  PlannedView out = view;
  out.rank = view.rank - axes;
  int64_t rows = view.dims[axes], step = view.strides[axes];
  for (int32_t i = axes; i-- > 0; rows *= view.dims[i])
    if (view.dims[i] != 1 && rows == 1) step = view.strides[i];
  out.dims[0] = rows, out.strides[0] = step;
  for (int32_t i = 1; i < out.rank; ++i)
    out.dims[i] = view.dims[axes + i], out.strides[i] = view.strides[axes + i];
  return out;
}

// A plan and the tensors it runs on.
struct CRun {
  PlanBuilder plan;
  LocalValue inputs[8], outputs[1];
  int32_t input_count = 0;

  // The tensor as an input of the plan: its view, or none.
  PlannedView add(const CTensor& t) {
    if (!t.given()) return kNoView;
    PlannedView view = t.view;
    view.kind = kInput, view.index = plan.input(t.type, t.count);
    inputs[input_count++] = t.value();
    return view;
  }
  // Packed weights of `count` numbers.
  PlannedView add(float* data, int32_t rank, const int64_t* dims) {
    int64_t count = 1;
    for (int32_t i = 0; i < rank; ++i) count *= dims[i];
    const int32_t index = plan.input(ORT_F32, count);
    inputs[input_count++] = {data, ORT_F32, 1, {count}};
    return dense_view(kInput, index, rank, dims);
  }
  PlannedView result(const CTensor& t) {
    PlannedView view = t.view;
    view.kind = kOutput, view.index = plan.output(t.type, t.count);
    outputs[0] = t.value();
    return view;
  }
  bool run(const char* label, Failure& failure) {
    if (outputs[0].dims[0] == 0) return true;  // no element to compute
    int64_t count = 0;
    const int64_t* words = plan.done(&count);
    if (!words) return failure.refuse(TRACEA_CPU_ERROR, "The plan of a %s is too long.", label);
    return run_words(words, count, inputs, static_cast<size_t>(input_count), outputs, 1, label,
                     failure);
  }
};

// The chain of an activation, or -1 for none; false if this library has not compiled it.
inline bool find_activation(Failure& failure, int32_t activation, int64_t* chain) {
  *chain = -1;
  if (activation < 0 || activation > kActivations)
    return failure.refuse(TRACEA_INVALID_PARAMS, "There is no activation %d.", activation);
  if (!activation) return true;
  *chain = kActivationChain[activation - 1];
  return find_chain(*chain) >= 0 ||
         failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                        "This library holds no code for activation %d.", activation);
}

}  // namespace tracea
