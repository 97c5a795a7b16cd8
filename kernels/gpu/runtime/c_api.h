// The functions of tracea.h on a GPU.  Tensors lie on one device; launches are put into the caller's
// stream and not awaited.  Scratch is taken and given back in the order of the stream.
#pragma once
#include "runtime/c_checks.h"
#include "runtime/local_plan.h"

namespace tracea {

static __thread char last_error[TRACEA_MAX_ERROR];

inline TraceaStatus status_of(const Failure& failure) {
  if (!failure.set) return TRACEA_SUCCESS;
  snprintf(last_error, sizeof last_error, "%s", failure.text);
  return failure.status;
}

// ---- functions -----------------------------------------------------------------------------------

struct DeviceTensor {
  TraceaTensorView view;
  int64_t span;  // elements from the first to the last

  uintptr_t begin() const { return reinterpret_cast<uintptr_t>(view.ptr); }
  uintptr_t end() const { return begin() + static_cast<uintptr_t>(span * element_size(view.dtype)); }
};

// Reads a tensor on a GPU; `type` is its element type, or 0 for any that kernels compute.
inline bool read_device_tensor(Failure& failure, const char* name, const TraceaTensorView* t,
                               int32_t least, int32_t most, uint32_t traits, int32_t type,
                               DeviceTensor* out) {
  if (!t) return refuse_shape(failure, name, "is missing");
  if (t->device_id < 0)
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                          "%s lies in the host's memory, but this library has kernels for GPUs "
                          "(device_id from 0) only.", name);
  const bool number = t->dtype == TRACEA_F32 || t->dtype == TRACEA_F16 || t->dtype == TRACEA_BF16;
  if (!number || (type && t->dtype != type))
    return failure.refuse(element_size(t->dtype) ? TRACEA_UNSUPPORTED_CONFIG : TRACEA_INVALID_PARAMS,
                          "%s has element type %d; operands and results have one type, float32 (1), "
                          "float16 (10) or bfloat16 (16), and a bias is float32.", name, t->dtype);
  TensorSpan span;
  if (!check_tensor(failure, name, *t, least, most, traits, &span)) return false;
  if (span.low)
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                          "%s has a negative stride, which GPU kernels do not take: copy it first.",
                          name);
  return *out = {*t, span.count()}, true;
}

inline bool separate_on_device(Failure& failure, const DeviceTensor& result,
                               const DeviceTensor& operand, const char* name) {
  return check_separate(failure, result.begin(), result.end(), operand.begin(), operand.end(), name);
}

// One call of a function of the table: tensors x, w, bias, y, and the symbols behind their spans.
struct FunctionCall {
  static constexpr int32_t kTensors = 4, kMost = 40;
  int32_t op, type, form, activation;
  cu::Address tensors[kTensors];
  int64_t symbols[kMost];
  int32_t count;

  template <int32_t n>
  void add(const int64_t (&sizes)[n]) {
    for (int64_t size : sizes) symbols[count++] = size;
  }
};

enum FunctionOp : int32_t { kGemmFunction, kConv2dFunction };

inline const tracea_gpu_function* find_function(Failure& failure, const FunctionCall& call) {
  const tracea_gpu_library& table = tracea_gpu_table;
  bool op = false;
  for (int32_t i = 0; i < table.function_count; ++i) {
    const tracea_gpu_function& f = table.functions[i];
    op = op || f.op == call.op;
    if (f.op == call.op && f.type == call.type && f.form == call.form &&
        f.activation == call.activation)
      return &f;
  }
  failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                 op ? "This library holds no code for activation %d."
                    : "This library holds no kernel for this function.", call.activation);
  return nullptr;
}

inline bool run_function(Failure& failure, const Entered& on, const FunctionCall& call,
                         cu::Stream stream) {
  const tracea_gpu_function* found = find_function(failure, call);
  bool kept = false;
  LocalPlan* plan = found ? find_plan(failure, on, found->words, found->count, &kept) : nullptr;
  if (!plan) return false;
  Pool pool;
  Error error;
  cu::Address* addresses = pool.array<cu::Address>(plan->program.buffer_count());
  bool ok = addresses && plan->program.symbol_count == call.count &&
            plan->program.tensor_count() == FunctionCall::kTensors;
  if (!ok) error.fail("There is no memory for a run.");
  for (int32_t i = 0; ok && i < FunctionCall::kTensors; ++i) addresses[i] = call.tensors[i];
  ok = ok && launch_all(error, on.device(), *plan, call.symbols, addresses, stream, pool);
  pool.release();
  if (!kept) LocalPlan::destroy(plan);
  return ok || failure.refuse(TRACEA_CUDA_ERROR, "%s", error.text);
}

// A float32 of 0 on the device.
inline bool zero_of(Failure& failure, const Entered& on, cu::Address* out) {
  LocalDevice& local = on.local();
  const float zero = 0.0f;
  Error error;
  Lock lock(local.mutex);
  if (!local.zero) {
    cu::Address made = 0;
    if (!allocate(error, sizeof zero, &made) ||
        !good(error, gpu.driver.upload(made, &zero, sizeof zero), "take a bias"))
      return failure.refuse(TRACEA_CUDA_ERROR, "%s", error.text);
    local.zero = made;
  }
  return *out = local.zero, true;
}

// A call's device, which all its tensors lie on, and its bias.
inline bool same_device(Failure& failure, int32_t device, const char* name, const TraceaTensorView* t) {
  return !t || t->device_id == device ||
         failure.refuse(TRACEA_INVALID_PARAMS, "%s lies on GPU %d, but others on GPU %d.", name,
                        t->device_id, device);
}

inline bool read_bias(Failure& failure, const TraceaTensorView* bias, int64_t size, DeviceTensor* out) {
  if (!bias) return *out = {}, true;
  if (!read_device_tensor(failure, "bias", bias, 1, 1, 0, TRACEA_F32, out)) return false;
  return bias->shape[0] == size ||
         failure.refuse(TRACEA_INVALID_PARAMS, "bias has %lld numbers, but must have %lld.",
                        static_cast<long long>(bias->shape[0]), static_cast<long long>(size));
}

inline bool check_activation(Failure& failure, int32_t activation) {
  return (activation >= 0 && activation <= TRACEA_SILU) ||
         failure.refuse(TRACEA_INVALID_PARAMS, "There is no activation %d.", activation);
}

// Step of an axis; one of size 1, whose step means nothing, has `alone`.  Kernels read rows whose
// steps are multiples of 16 bytes in such runs: a single row has the step of a dense one.
inline int64_t step_of(const TraceaTensorView& t, int32_t axis, int64_t alone = 0) {
  return t.shape[axis] == 1 ? alone : t.stride[axis];
}

// Joins the outer axes of a matrix with its rows, if they lie at one step.
inline bool join_rows(const TraceaTensorView& t, int64_t* rows, int64_t* step) {
  const int32_t last = t.rank - 2;
  int64_t next = 0;
  bool any = false;
  *rows = 1, *step = t.shape[last + 1];
  for (int32_t i = last; i >= 0; --i) {
    if (t.shape[i] == 1) continue;
    if (any && t.stride[i] != next) return false;
    if (!any) *step = t.stride[i];
    any = true, next = t.stride[i] * t.shape[i], *rows *= t.shape[i];
  }
  return true;
}

inline bool c_gemm(Failure& failure, const TraceaTensorView* a, const TraceaTensorView* b,
                   const TraceaTensorView* bias, const TraceaTensorView* c,
                   const TraceaGemmParams* given, cu::Stream stream) {
  TraceaGemmParams params = TRACEA_GEMM_PARAMS_INIT;
  DeviceTensor x, w, row, y;
  if (!read_params(failure, given, &params) || !check_activation(failure, params.activation) ||
      !read_device_tensor(failure, "a", a, 2, kMaxRank - 1, 0, 0, &x) ||
      !read_device_tensor(failure, "c", c, 2, kMaxRank - 1, kResult | kUnitColumns, a->dtype, &y) ||
      !read_device_tensor(failure, "b", b, 2, kMaxRank - 1, 0, a->dtype, &w) ||
      !check_product(failure, *a, b->shape[b->rank - 2], b->shape[b->rank - 1], *c) ||
      !read_bias(failure, bias, c->shape[c->rank - 1], &row) ||
      !same_device(failure, a->device_id, "b", b) || !same_device(failure, a->device_id, "c", c) ||
      !same_device(failure, a->device_id, "bias", bias) || !separate_on_device(failure, y, x, "a") ||
      !separate_on_device(failure, y, w, "b") || !separate_on_device(failure, y, row, "bias"))
    return false;
  const int32_t outer = a->rank - 2, own = b->rank - 2;
  if (own > outer) return refuse_shape(failure, "b", "has more axes than a");
  int64_t steps[kMaxRank] = {};  // of b along the outer axes
  bool shared = true;
  for (int32_t i = outer - own; i < outer; ++i) {
    const int32_t from = i - (outer - own);
    if (b->shape[from] != a->shape[i] && b->shape[from] != 1)
      return refuse_shape(failure, "b", "has other outer axes than a");
    steps[i] = step_of(*b, from);
    shared = shared && (!steps[i] || a->shape[i] == 1);
  }
  if (!y.span) return true;  // no element to compute
  Entered on(failure, a->device_id);
  cu::Address none = 0;
  if (!on || (!bias && !zero_of(failure, on, &none))) return false;
  const int64_t k = a->shape[outer + 1], n = c->shape[outer + 1];
  const int64_t w_k = step_of(*b, own, n), w_n = step_of(*b, own + 1, k);
  const int64_t x_k = step_of(*a, outer + 1, 1);
  int64_t x_rows = a->shape[outer], x_m = step_of(*a, outer, k);
  int64_t y_rows = x_rows, y_m = step_of(*c, outer, n);
  int64_t items = 1;
  if (!(shared && join_rows(*a, &x_rows, &x_m) && join_rows(*c, &y_rows, &y_m))) {
    x_rows = a->shape[outer], x_m = step_of(*a, outer, k), y_m = step_of(*c, outer, n);
    for (int32_t i = 0; i < outer; ++i) items *= a->shape[i];
  }
  const int64_t size = element_size(a->dtype);
  for (int64_t item = 0; item < items; ++item) {  // matrices of a batch, one after another
    int64_t at[3] = {}, rest = item;
    for (int32_t i = outer; items > 1 && i-- > 0; rest /= a->shape[i]) {
      const int64_t index = rest % a->shape[i];
      at[0] += index * step_of(*a, i), at[1] += index * steps[i], at[2] += index * step_of(*c, i);
    }
    const auto place = [&](const DeviceTensor& t, int64_t offset) {
      return static_cast<cu::Address>(t.begin()) + static_cast<uint64_t>(offset * size);
    };
    // b is [N, K] in memory if its columns are contiguous; a row or column alone is either
    const int32_t form = w_k == 1 || (b->shape[own] == 1 && w_n != 1);
    FunctionCall call = {kGemmFunction, a->dtype, form, params.activation,
                         {place(x, at[0]), place(w, at[1]), bias ? row.begin() : none, place(y, at[2])},
                         {}, 0};
    call.add({x.span - at[0], w.span - at[1], bias ? row.span : 1, y.span - at[2]});
    const int64_t inner = form ? (b->shape[own] == 1 ? 1 : w_k) : (n == 1 ? 1 : w_n);
    call.add({x_rows, n, k, x_m, x_k, form ? w_n : inner, form ? inner : w_k,
              bias ? step_of(*bias, 0) : 0, y_m, int64_t{x_k != 1 || inner != 1}});
    if (!run_function(failure, on, call, stream)) return false;
  }
  return true;
}

// Whether pixels of an image lie at one step, and its channels next to each other.
inline bool channels_last(const TraceaTensorView& t, bool flat) {
  const bool last = t.shape[1] == 1 || t.stride[1] == 1;
  const int64_t pixel = t.shape[3] == 1 ? (t.shape[2] == 1 ? t.stride[0] : t.stride[2]) : t.stride[3];
  const bool rows = t.shape[2] == 1 || t.stride[2] == pixel * t.shape[3];
  const bool images = t.shape[0] == 1 || t.stride[0] == pixel * t.shape[3] * t.shape[2];
  return last && (!flat || (rows && images && pixel >= t.shape[1]));
}

inline bool c_conv2d(Failure& failure, const TraceaTensorView* x, const TraceaTensorView* w,
                     const TraceaTensorView* bias, const TraceaTensorView* y,
                     const TraceaConv2dParams* given, cu::Stream stream) {
  TraceaConv2dParams p = TRACEA_CONV2D_PARAMS_INIT;
  DeviceTensor tx, tw, row, ty;
  if (!read_params(failure, given, &p) || !check_activation(failure, p.activation) ||
      !read_device_tensor(failure, "x", x, 4, 4, 0, 0, &tx) ||
      !read_device_tensor(failure, "w", w, 4, 4, 0, x->dtype, &tw) ||
      !read_device_tensor(failure, "y", y, 4, 4, kResult, x->dtype, &ty) ||
      !check_conv2d(failure, p, *w) || !check_images(failure, p, w->shape, *x, *y) ||
      !read_bias(failure, bias, w->shape[0], &row) || !same_device(failure, x->device_id, "w", w) ||
      !same_device(failure, x->device_id, "y", y) ||
      !same_device(failure, x->device_id, "bias", bias) ||
      !separate_on_device(failure, ty, tx, "x") || !separate_on_device(failure, ty, tw, "w") ||
      !separate_on_device(failure, ty, row, "bias"))
    return false;
  if (!ty.span) return true;  // no element to compute
  Entered on(failure, x->device_id);
  cu::Address none = 0;
  if (!on || (!bias && !zero_of(failure, on, &none))) return false;
  const int64_t size = element_size(x->dtype), groups = p.groups;
  const int64_t channels = w->shape[1], filters = w->shape[0] / groups;
  const int32_t form = channels_last(*x, false) && channels_last(*y, true);
  for (int64_t g = 0; g < groups; ++g) {  // groups one after another
    const int64_t at[] = {g * channels * step_of(*x, 1), g * filters * step_of(*w, 0),
                          bias ? g * filters * step_of(*bias, 0) : 0, g * filters * step_of(*y, 1)};
    const auto place = [&](const DeviceTensor& t, int64_t offset, int64_t bytes) {
      return static_cast<cu::Address>(t.begin()) + static_cast<uint64_t>(offset * bytes);
    };
    FunctionCall call = {kConv2dFunction, x->dtype, form, p.activation,
                         {place(tx, at[0], size), place(tw, at[1], size),
                          bias ? place(row, at[2], 4) : none, place(ty, at[3], size)}, {}, 0};
    call.add({tx.span - at[0], tw.span - at[1], bias ? row.span - at[2] : 1, ty.span - at[3]});
    call.add({x->shape[0], x->shape[2], x->shape[3], channels, filters, w->shape[2],
              w->shape[3], y->shape[2], y->shape[3]});
    const int64_t pixel = y->shape[3] > 1 ? y->stride[3] : y->shape[2] > 1 ? y->stride[2]
                          : y->shape[0] > 1 ? y->stride[0] : y->shape[1];
    const auto x_step = [&](int32_t axis) { return step_of(*x, axis, tx.span); };
    const auto w_step = [&](int32_t axis) { return step_of(*w, axis, tw.span); };
    const auto y_step = [&](int32_t axis) { return step_of(*y, axis, ty.span); };
    call.add({x_step(0), x_step(2), x_step(3), x_step(1), w_step(0), w_step(1), w_step(2), w_step(3),
              bias ? step_of(*bias, 0) : 0, y_step(0), y_step(2), form ? pixel : y_step(3), y_step(1)});
    call.add({p.stride[0], p.stride[1], p.dilation[0], p.dilation[1], p.padding[0],
              p.padding[1]});
    if (!run_function(failure, on, call, stream)) return false;
  }
  return true;
}

// ---- plans of models -----------------------------------------------------------------------------

// A dense tensor of a program, on the device of the others.
inline bool read_program_tensor(Failure& failure, const TraceaTensorView& t, const Tensor& declared,
                                int32_t device) {
  if (!same_device(failure, device, "A tensor", &t)) return false;
  if (t.device_id < 0 || t.dtype != declared.type || t.rank != declared.rank)
    return failure.refuse(TRACEA_INVALID_PARAMS,
                          "A tensor has device %d, element type %d and %d axes, but must have a GPU, "
                          "%d and %d.", t.device_id, t.dtype, t.rank, declared.type, declared.rank);
  TensorSpan span;
  if (!check_tensor(failure, "A tensor", t, 0, kMaxRank, 0, &span)) return false;
  int64_t stride = 1;
  for (int32_t axis = t.rank; axis-- > 0; stride *= t.shape[axis])
    if (!span.none && t.shape[axis] > 1 && t.stride[axis] != stride)
      return failure.refuse(TRACEA_INVALID_PARAMS,
                            "Tensors of a program must be dense: copy this one first.");
  return true;
}

// Reads tensors, and the sizes that symbols have by them.
inline bool bind_program(Failure& failure, const Program& p, const TraceaTensorView* inputs,
                         const TraceaTensorView* outputs, int32_t device, int64_t* symbols,
                         cu::Address* addresses, Pool& pool) {
  int64_t* dims = pool.array<int64_t>(p.input_count * kMaxRank);
  int64_t* sizes = pool.array<int64_t>(p.size_count + 1);
  if (!dims || !sizes) return failure.refuse(TRACEA_CPU_ERROR, "There is no memory for a run.");
  const auto tensor = [&](int32_t i) -> const TraceaTensorView& {
    return i < p.input_count ? inputs[i] : outputs[i - p.input_count];
  };
  for (int32_t i = 0; i < p.tensor_count(); ++i) {
    if (!read_program_tensor(failure, tensor(i), p.tensors[i], device)) return false;
    addresses[i] = reinterpret_cast<cu::Address>(tensor(i).ptr);
    for (int32_t axis = 0; i < p.input_count && axis < tensor(i).rank; ++axis)
      dims[i * kMaxRank + axis] = tensor(i).shape[axis];
  }
  for (int32_t s = 0; s < p.symbol_count; ++s)
    symbols[s] = symbol_value(p, dims, s, [](int32_t) { return false; });
  evaluate(p, symbols, sizes);
  for (int32_t i = 0; i < p.tensor_count(); ++i)
    for (int32_t axis = 0; axis < p.tensors[i].rank; ++axis)
      if (sizes[p.tensors[i].dims[axis]] != tensor(i).shape[axis])
        return failure.refuse(TRACEA_INVALID_PARAMS,
                              "Tensor %d has size %lld at axis %d, but must have %lld there.", i,
                              static_cast<long long>(tensor(i).shape[axis]), axis,
                              static_cast<long long>(sizes[p.tensors[i].dims[axis]]));
  return true;
}

inline bool c_run_program(Failure& failure, const int64_t* words, size_t count,
                          const TraceaTensorView* inputs, size_t input_count,
                          const TraceaTensorView* outputs, size_t output_count, cu::Stream stream) {
  if (!words || count > static_cast<size_t>(kMaxWords) || !input_count || !inputs || !outputs)
    return failure.refuse(TRACEA_INVALID_PARAMS, "The plan or the tensors are missing, or too many.");
  const int32_t device = inputs[0].device_id;
  if (device < 0)
    return failure.refuse(TRACEA_UNSUPPORTED_CONFIG, "Tensors of this program lie on a GPU.");
  Entered on(failure, device);
  bool kept = false;
  LocalPlan* plan = on ? find_plan(failure, on, words, static_cast<int64_t>(count), &kept) : nullptr;
  if (!plan) return false;
  const Program& p = plan->program;
  int64_t symbols[kMaxSymbols];
  Pool pool;
  Error error;
  cu::Address* addresses = pool.array<cu::Address>(p.buffer_count());
  bool ok = addresses || failure.refuse(TRACEA_CPU_ERROR, "There is no memory for a run.");
  if (ok && (static_cast<size_t>(p.input_count) != input_count ||
             static_cast<size_t>(p.output_count) != output_count))
    ok = failure.refuse(TRACEA_INVALID_PARAMS, "The program has %d inputs and %d outputs.",
                        p.input_count, p.output_count);
  ok = ok && bind_program(failure, p, inputs, outputs, device, symbols, addresses, pool);
  if (ok && !launch_all(error, on.device(), *plan, symbols, addresses, stream, pool))
    ok = failure.refuse(TRACEA_CUDA_ERROR, "%s", error.text);
  pool.release();
  if (!kept) LocalPlan::destroy(plan);
  return ok;
}

inline TraceaStatus not_on_gpus(const char* what) {
  Failure failure;
  failure.refuse(TRACEA_UNSUPPORTED_CONFIG, "This library has no %s for GPUs.", what);
  return status_of(failure);
}

}  // namespace tracea

// A library with kernels for the host as well has their functions: these are weak.
#define TRACEA_WEAK extern "C" __attribute__((weak))

TRACEA_WEAK TraceaStatus tracea_gemm(const TraceaTensorView* a, const TraceaTensorView* b,
                                     const TraceaTensorView* bias, const TraceaTensorView* c,
                                     const TraceaGemmParams* params, void* stream) {
  tracea::Failure failure;
  tracea::c_gemm(failure, a, b, bias, c, params, static_cast<tracea::cu::Stream>(stream));
  return tracea::status_of(failure);
}

TRACEA_WEAK TraceaStatus tracea_conv2d(const TraceaTensorView* x, const TraceaTensorView* w,
                                       const TraceaTensorView* bias, const TraceaTensorView* y,
                                       const TraceaConv2dParams* params, void* stream) {
  tracea::Failure failure;
  tracea::c_conv2d(failure, x, w, bias, y, params, static_cast<tracea::cu::Stream>(stream));
  return tracea::status_of(failure);
}

TRACEA_WEAK TraceaStatus tracea_attention(const TraceaTensorView*, const TraceaTensorView*,
                                          const TraceaTensorView*, const TraceaTensorView*,
                                          const TraceaTensorView*, const TraceaAttentionParams*, void*) {
  return tracea::not_on_gpus("attention");
}

TRACEA_WEAK TraceaStatus tracea_norm(const TraceaTensorView*, const TraceaTensorView*,
                                     const TraceaTensorView*, const TraceaTensorView*,
                                     const TraceaNormParams*, void*) {
  return tracea::not_on_gpus("norms");
}

TRACEA_WEAK TraceaStatus tracea_prepare_gemm(const TraceaTensorView*, const TraceaTensorView*,
                                             const TraceaGemmParams*, TraceaPrepared**) {
  return tracea::not_on_gpus("packed weights");
}

TRACEA_WEAK TraceaStatus tracea_prepare_conv2d(const TraceaTensorView*, const TraceaTensorView*,
                                               const TraceaConv2dParams*, TraceaPrepared**) {
  return tracea::not_on_gpus("packed weights");
}

TRACEA_WEAK TraceaStatus tracea_run_prepared(const TraceaPrepared*, const TraceaTensorView*,
                                             const TraceaTensorView*, void*) {
  return tracea::not_on_gpus("packed weights");
}

TRACEA_WEAK void tracea_release_prepared(TraceaPrepared*) {}

TRACEA_WEAK TraceaStatus tracea_run_program(const int64_t* plan, size_t words,
                                            const TraceaTensorView* inputs, size_t input_count,
                                            const TraceaTensorView* outputs, size_t output_count,
                                            void* stream) {
  tracea::Failure failure;
  tracea::c_run_program(failure, plan, words, inputs, input_count, outputs, output_count,
                        static_cast<tracea::cu::Stream>(stream));
  return tracea::status_of(failure);
}

TRACEA_WEAK TraceaStatus tracea_set_threads(int32_t threads) {
  tracea::Failure failure;
  if (threads < 0) failure.refuse(TRACEA_INVALID_PARAMS, "%d threads were asked for.", threads);
  return tracea::status_of(failure);
}

TRACEA_WEAK int32_t tracea_get_threads(void) { return 1; }

TRACEA_WEAK void tracea_trim(void) {}

TRACEA_WEAK void tracea_observe(const TraceaObserver*) {}

TRACEA_WEAK size_t tracea_get_last_error(char* buf, size_t len) {
  if (buf && len) snprintf(buf, len, "%s", tracea::last_error);
  return strlen(tracea::last_error);
}

TRACEA_WEAK void tracea_clear_error(void) { tracea::last_error[0] = 0; }

TRACEA_WEAK uint32_t tracea_version(void) { return TRACEA_ABI_VERSION; }

TRACEA_WEAK const char* tracea_isa(void) {
  static char names[tracea::kMostDevices][16];
  tracea::Failure failure;
  int32_t ordinal = 0;
  const tracea::Device* device = tracea::usual_device(failure, &ordinal);
  tracea::status_of(failure);
  if (!device) return "";
  const tracea_gpu_level& level = tracea_gpu_table.levels[device->level];
  snprintf(names[ordinal], sizeof names[ordinal], "%s_%d%s", level.text ? "compute" : "sm",
           level.capability, level.exact && !level.text ? "a" : "");
  return names[ordinal];
}

TRACEA_WEAK int32_t tracea_device(void) {
  tracea::Failure failure;
  int32_t ordinal = 0;
  return tracea::usual_device(failure, &ordinal) ? ordinal : 0;
}
