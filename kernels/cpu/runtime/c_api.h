// The functions of tracea.h.
#pragma once
#include "runtime/c_conv2d.h"

struct TraceaPrepared {
  bool is_matrix;
  int32_t activation;  // of a product
  tracea::PackedMatrix matrix;
  tracea::PackedFilters filters;
};

namespace tracea {

static __thread char last_error[TRACEA_MAX_ERROR];

inline TraceaStatus status_of(const Failure& failure) {
  if (!failure.set) return TRACEA_SUCCESS;
  snprintf(last_error, sizeof last_error, "%s", failure.text);
  return failure.status;
}

inline bool on_host(Failure& failure, const void* stream) {
  return !stream || failure.refuse(TRACEA_UNSUPPORTED_CONFIG,
                                   "This library has kernels for the CPU only, which take no stream.");
}

inline bool read_values(Failure& failure, const TraceaTensorView* given, size_t count,
                        LocalValue* out) {
  for (size_t i = 0; i < count; ++i) {
    const TraceaTensorView& t = given[i];
    const int64_t size = element_size(t.dtype);
    int64_t stride = 1;
    if (t.device_id != TRACEA_CPU || !size || t.rank < 0 || t.rank > kMaxRank)
      return failure.refuse(TRACEA_INVALID_PARAMS,
                            "A tensor has device %d, element type %d and %d axes.", t.device_id,
                            t.dtype, t.rank);
    out[i] = {t.ptr, t.dtype, t.rank, {}};
    for (int32_t axis = t.rank; axis-- > 0;) {
      out[i].dims[axis] = t.shape[axis];
      if (t.shape[axis] < 0 || (t.shape[axis] > 1 && t.stride[axis] != stride))
        return failure.refuse(TRACEA_INVALID_PARAMS,
                              "Tensors of a program must be dense: copy this one first.");
      if (__builtin_mul_overflow(stride, max(t.shape[axis], 1), &stride) || stride > INT64_MAX / 16)
        return failure.refuse(TRACEA_INVALID_PARAMS, "A tensor is larger than memory can be.");
    }
    bool none = false;
    for (int32_t axis = 0; axis < t.rank; ++axis) none = none || t.shape[axis] == 0;
    if ((!t.ptr && !none) || reinterpret_cast<uintptr_t>(t.ptr) % static_cast<uintptr_t>(size))
      return failure.refuse(TRACEA_INVALID_PARAMS,
                            "A tensor begins at %p, which is null or not aligned to an element.", t.ptr);
  }
  return true;
}

inline bool c_run_program(Failure& failure, const int64_t* plan, size_t words,
                          const TraceaTensorView* inputs, size_t input_count,
                          const TraceaTensorView* outputs, size_t output_count) {
  if (!plan || words > static_cast<size_t>(kMaxWords) || (input_count && !inputs) ||
      (output_count && !outputs) || input_count > static_cast<size_t>(kMaxInputs) ||
      output_count > static_cast<size_t>(kMaxOutputs))
    return failure.refuse(TRACEA_INVALID_PARAMS, "The plan or the tensors are missing, or too many.");
  const size_t count = input_count + output_count;
  LocalValue* values = static_cast<LocalValue*>(calloc(count + 1, sizeof(LocalValue)));
  if (!values) return failure.refuse(TRACEA_CPU_ERROR, "There is no memory for tensors.");
  LocalValue* results = values + input_count;
  const bool ok = read_values(failure, inputs, input_count, values) &&
                  read_values(failure, outputs, output_count, results) &&
                  run_words(plan, static_cast<int64_t>(words), values, input_count, results,
                            output_count, "program", failure);
  free(values);
  return ok;
}

inline void release_prepared(TraceaPrepared* prepared) {
  if (!prepared) return;
  free_lines(prepared->matrix.panels);
  free_lines(prepared->filters.memory);
  free(prepared);
}

inline TraceaPrepared* make_prepared(Failure& failure, TraceaPrepared** out) {
  if (!out) return failure.refuse(TRACEA_INVALID_PARAMS, "There is no place for the result."), nullptr;
  *out = nullptr;
  auto* made = static_cast<TraceaPrepared*>(calloc(1, sizeof(TraceaPrepared)));
  if (!made) failure.refuse(TRACEA_CPU_ERROR, "There is no memory for packed weights.");
  return made;
}

inline bool prepare_gemm(Failure& failure, const TraceaTensorView* b, const TraceaTensorView* bias,
                         const TraceaGemmParams* given, TraceaPrepared& out) {
  TraceaGemmParams params = TRACEA_GEMM_PARAMS_INIT;
  const tracea_isa_table* isa = local_isa(failure);
  int64_t chain;
  out.is_matrix = true;
  if (!isa || !read_params(failure, given, &params) ||
      !find_activation(failure, params.activation, &chain))
    return false;
  out.activation = params.activation;
  return pack_matrix(failure, *isa, b, bias, &out.matrix);
}

inline bool prepare_conv2d(Failure& failure, const TraceaTensorView* w, const TraceaTensorView* bias,
                           const TraceaConv2dParams* given, TraceaPrepared& out) {
  CTensor weight, row;
  int64_t chain;
  PackedFilters& f = out.filters;
  if (!read_filters(failure, w, bias, given, true, &f, &weight, &row)) return false;
  if (f.params.activation != TRACEA_RELU && !find_activation(failure, f.params.activation, &chain))
    return false;
  const int64_t bytes = packed_bytes(f);
  void* memory = bytes < 0 ? nullptr : allocate_lines(static_cast<size_t>(bytes));
  if (!memory)
    return failure.refuse(TRACEA_CPU_ERROR, "There is no memory for packed filters.");
  pack_filters(f, static_cast<char*>(memory), weight, row);
  return true;
}

}  // namespace tracea

extern "C" {

TraceaStatus tracea_gemm(const TraceaTensorView* a, const TraceaTensorView* b,
                         const TraceaTensorView* bias, const TraceaTensorView* c,
                         const TraceaGemmParams* params, void* stream) {
  tracea::Failure failure;
  if (tracea::on_host(failure, stream)) tracea::c_gemm(failure, a, b, bias, c, params);
  return tracea::status_of(failure);
}

TraceaStatus tracea_conv2d(const TraceaTensorView* x, const TraceaTensorView* w,
                           const TraceaTensorView* bias, const TraceaTensorView* y,
                           const TraceaConv2dParams* params, void* stream) {
  tracea::Failure failure;
  if (tracea::on_host(failure, stream)) tracea::c_conv2d(failure, x, w, bias, y, params);
  return tracea::status_of(failure);
}

TraceaStatus tracea_attention(const TraceaTensorView* q, const TraceaTensorView* k,
                              const TraceaTensorView* v, const TraceaTensorView* mask,
                              const TraceaTensorView* y, const TraceaAttentionParams* params,
                              void* stream) {
  tracea::Failure failure;
  if (tracea::on_host(failure, stream)) tracea::c_attention(failure, q, k, v, mask, y, params);
  return tracea::status_of(failure);
}

TraceaStatus tracea_norm(const TraceaTensorView* x, const TraceaTensorView* gamma,
                         const TraceaTensorView* beta, const TraceaTensorView* y,
                         const TraceaNormParams* params, void* stream) {
  tracea::Failure failure;
  if (tracea::on_host(failure, stream)) tracea::c_norm(failure, x, gamma, beta, y, params);
  return tracea::status_of(failure);
}

TraceaStatus tracea_prepare_gemm(const TraceaTensorView* b, const TraceaTensorView* bias,
                                 const TraceaGemmParams* params, TraceaPrepared** out) {
  tracea::Failure failure;
  TraceaPrepared* made = tracea::make_prepared(failure, out);
  if (made && tracea::prepare_gemm(failure, b, bias, params, *made)) *out = made;
  else tracea::release_prepared(made);
  return tracea::status_of(failure);
}

TraceaStatus tracea_prepare_conv2d(const TraceaTensorView* w, const TraceaTensorView* bias,
                                   const TraceaConv2dParams* params, TraceaPrepared** out) {
  tracea::Failure failure;
  TraceaPrepared* made = tracea::make_prepared(failure, out);
  if (made && tracea::prepare_conv2d(failure, w, bias, params, *made)) *out = made;
  else tracea::release_prepared(made);
  return tracea::status_of(failure);
}

TraceaStatus tracea_run_prepared(const TraceaPrepared* prepared, const TraceaTensorView* x,
                                 const TraceaTensorView* y, void* stream) {
  tracea::Failure failure;
  if (!prepared) failure.refuse(TRACEA_INVALID_PARAMS, "prepared is missing.");
  else if (tracea::on_host(failure, stream))
    prepared->is_matrix
        ? tracea::c_gemm_packed(failure, prepared->matrix, prepared->activation, x, y)
        : tracea::run_filters(failure, prepared->filters, x, y);
  return tracea::status_of(failure);
}

void tracea_release_prepared(TraceaPrepared* prepared) { tracea::release_prepared(prepared); }

TraceaStatus tracea_run_program(const int64_t* plan, size_t words, const TraceaTensorView* inputs,
                                size_t input_count, const TraceaTensorView* outputs,
                                size_t output_count, void* stream) {
  tracea::Failure failure;
  if (tracea::on_host(failure, stream))
    tracea::c_run_program(failure, plan, words, inputs, input_count, outputs, output_count);
  return tracea::status_of(failure);
}

TraceaStatus tracea_set_threads(int32_t threads) {
  tracea::Failure failure;
  if (threads < 0 || threads > tracea::kMaxThreads)
    failure.refuse(TRACEA_INVALID_PARAMS, "%d threads were asked for, but 0 to %d can be.", threads,
                   tracea::kMaxThreads);
  else tracea::local_threads.set_threads(threads);
  return tracea::status_of(failure);
}

int32_t tracea_get_threads(void) { return tracea::local_threads.threads(); }

void tracea_trim(void) {
  tracea::drop_programs();
  tracea::local_memory.trim();
}

void tracea_observe(const TraceaObserver* observer) {
  __atomic_store_n(&tracea::observer, observer, __ATOMIC_RELEASE);
}

size_t tracea_get_last_error(char* buf, size_t len) {
  if (buf && len) snprintf(buf, len, "%s", tracea::last_error);
  return strlen(tracea::last_error);
}

void tracea_clear_error(void) { tracea::last_error[0] = 0; }

uint32_t tracea_version(void) { return TRACEA_ABI_VERSION; }

int32_t tracea_device(void) { return TRACEA_CPU; }

const char* tracea_isa(void) {
  tracea::Failure failure;
  const tracea_isa_table* isa = tracea::local_isa(failure);
  tracea::status_of(failure);
  return isa ? isa->isa : "";
}
}
