// The inputs of a node: their dimensions, which are constant, what their symbols stand for, and
// those repeated that broadcast.
#pragma once
#include "runtime/ort_abi.h"
#include "runtime/core.h"
#include "runtime/plan.h"  // the backend's: Program, Tensor, has_symbol and has_size

namespace tracea {

// Calls of ONNX Runtime that may fail: its first status, or an error of ours if that came first.
struct Outcome {
  const OrtApi* api;
  bool dims_by_reference;  // the runtime can lend a tensor's dimensions without allocating
  OrtStatus* status = nullptr;
  Error error = {};

  Outcome(const OrtApi* a, bool by_reference) : api(a), dims_by_reference(by_reference) {}

  bool good(OrtStatus* result) {
    if (!result) return true;
    if (status || error.set) ort::ReleaseStatus(api, result);
    else status = result;
    return false;
  }
};

// The minor number of ONNX Runtime's version 1.N; 0 for others.
inline int minor_version(const char* version) {
  int minor = 0;
  if (strncmp(version, "1.", 2)) return 0;
  for (version += 2; *version >= '0' && *version <= '9' && minor < 1000; ++version)
    minor = minor * 10 + (*version - '0');
  return minor;
}

// Whether the runtime of this version lends dimensions: the first table known to hold the function
// is that of 1.30.
inline bool lends_dims(const char* version) { return minor_version(version) >= 30; }

// Reads an input's dimensions; its rank must be the plan's.
inline bool read_dims(Outcome& run, const OrtValue* value, int32_t input, int32_t rank,
                      int64_t* dims) {
  const size_t wanted = static_cast<size_t>(rank);
  size_t actual = 0;
  if (run.dims_by_reference) {
    int type;
    const int64_t* borrowed = nullptr;
    if (!run.good(ort::GetTensorElementTypeAndShapeDataReference(run.api, value, &type, &borrowed,
                                                                 &actual)))
      return false;
    if (actual == wanted && rank) memcpy(dims, borrowed, actual * sizeof *dims);
  } else {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    if (!run.good(ort::GetTensorTypeAndShape(run.api, value, &info))) return false;
    bool ok = run.good(ort::GetDimensionsCount(run.api, info, &actual));
    if (ok && actual == wanted) ok = run.good(ort::GetDimensions(run.api, info, dims, actual));
    ort::ReleaseTensorTypeAndShapeInfo(run.api, info);
    if (!ok) return false;
  }
  return actual == wanted || run.error.fail("Input %d has %d axes, but must have %d.", input,
                                            static_cast<int>(actual), rank);
}

// Memory of an input that never changes, and its elements; `data` may be null if it has none.
struct ConstantInput {
  void* data;
  int64_t count;
};

// Finds an input that is constant, of the sizes the plan says, and binds no symbol.  `found` stays
// false for others.
inline bool find_constant(Outcome& run, const OrtKernelInfo* info, const Program& p, int32_t input,
                          bool* found, ConstantInput* out) {
  const Tensor& tensor = p.tensors[input];
  int constant = 0;
  const OrtValue* value = nullptr;
  int64_t dims[kMaxRank];
  *found = false, *out = {nullptr, 1};
  if (!run.good(ort::KernelInfoGetConstantInput_tensor(run.api, info, static_cast<size_t>(input),
                                                       &constant, &value)))
    return false;
  if (!constant || !value) return true;
  if (!read_dims(run, value, input, tensor.rank, dims)) return false;
  for (int32_t axis = 0; axis < tensor.rank; out->count *= dims[axis++])
    if (!has_size(p, tensor, axis, dims[axis])) return true;
  for (int32_t s = 0; s < p.symbol_count; ++s)
    if (p.symbols[s].input == input) return true;
  *found = run.good(ort::GetTensorMutableData(run.api, const_cast<OrtValue*>(value), &out->data));
  return *found;
}

// What a symbol stands for whose own axis may be 1: the size of an axis it names that is not.
// `dims` are [inputs][kMaxRank], those of inputs for which `constant(i)` is true unknown.
template <class Constant>
int64_t symbol_value(const Program& p, const int64_t* dims, int32_t symbol, Constant constant) {
  const Symbol& own = p.symbols[symbol];
  const int64_t size = dims[own.input * kMaxRank + own.axis];
  if (size != 1 || !(p.tensors[own.input].loose >> own.axis & 1)) return size;
  for (int32_t i = 0; i < p.input_count; ++i)
    for (int32_t axis = 0; !constant(i) && axis < p.tensors[i].rank; ++axis)
      if (has_symbol(p, p.tensors[i], axis, symbol) && dims[i * kMaxRank + axis] != 1)
        return dims[i * kMaxRank + axis];
  return size;
}

// Writes `bytes` of an input of sizes `from` with sizes `to`: axes that differ have a size of 1.
inline void repeat(const Tensor& tensor, const int64_t* from, const int64_t* to, const char* data,
                   int64_t bytes, char* out) {
  int64_t chunk = element_size(tensor.type), index[kMaxRank] = {};
  int32_t outer = tensor.rank;  // what lies behind these axes is as it was
  while (outer > 0 && from[outer - 1] == to[outer - 1]) chunk *= to[--outer];
  for (int64_t done = 0; done < bytes; done += chunk) {
    int64_t at = 0;
    for (int32_t axis = 0; axis < outer; ++axis)
      at = at * from[axis] + (from[axis] == to[axis] ? index[axis] : 0);
    memcpy(out + done, data + at * chunk, static_cast<size_t>(chunk));
    for (int32_t axis = outer; axis-- > 0 && ++index[axis] == to[axis];) index[axis] = 0;
  }
}

}  // namespace tracea
