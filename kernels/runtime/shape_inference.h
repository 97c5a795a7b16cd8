// Shape inference: a program's output shapes from what is known of its inputs' shapes.
//
// Every unknown dimension gets a name of its own.  An input's name is not copied: ONNX Runtime takes
// dimensions of one name for equal and reuses buffers by it, but accepts inputs that are fed different
// sizes under one name.  An unnamed dimension would make it take -1 for a size.
#pragma once
#include "runtime/ort_abi.h"
#include "runtime/core.h"
#include "runtime/plan.h"  // the backend's: Program, Reader and KnownSizes

namespace tracea {

constexpr size_t kNameBytes = 96;

class ShapeInference {
 public:
  ShapeInference(const OrtApi* api, OrtShapeInferContext* context, const char* domain)
      : api_(api), context_(context), domain_(domain) {}
  ~ShapeInference() {
    program_.pool.release();
    free(words_);
  }

  // Sets the shapes it can; a malformed plan is reported when the kernel is created.
  void run() {
    Error error;
    if (!read_plan() || !Reader(words_, count_, &program_, &error).program()) return;
    for (int32_t i = 0; i < program_.symbol_count; ++i) bind(i);
    const KnownSizes sizes(program_, symbols_);
    for (int32_t i = 0; i < program_.output_count; ++i) set_output(i, sizes);
  }

 private:
  bool good(OrtStatus* status) {
    if (status) ort::ReleaseStatus(api_, status);
    return !status;
  }

  bool read_plan() {
    const OrtOpAttr* attribute = nullptr;
    if (!good(ort::ShapeInferContext_GetAttribute(api_, context_, "plan", &attribute)))
      return false;
    size_t bytes = 0;
    int64_t first = 0;
    good(ort::ReadOpAttr(api_, attribute, kOrtAttrInts, static_cast<void*>(&first), sizeof first,
                         &bytes));
    if (bytes < sizeof first || bytes > static_cast<size_t>(kMaxWords) * sizeof first) return false;
    words_ = static_cast<int64_t*>(malloc(bytes));
    count_ = static_cast<int64_t>(bytes / sizeof first);
    return words_ && good(ort::ReadOpAttr(api_, attribute, kOrtAttrInts,
                                          static_cast<void*>(words_), bytes, &bytes));
  }

  // A loose axis of size 1 does not tell what its symbol is: another input may have more.
  void bind(int32_t symbol) {
    const Symbol& where = program_.symbols[symbol];
    const Tensor& tensor = program_.tensors[where.input];
    OrtTensorTypeAndShapeInfo* info = nullptr;  // borrowed
    size_t rank = 0;
    int64_t dims[kMaxRank];
    symbols_[symbol] = kNoValue;
    if (!good(ort::ShapeInferContext_GetInputTypeShape(
            api_, context_, static_cast<size_t>(where.input), &info)) ||
        !info || !good(ort::GetDimensionsCount(api_, info, &rank)) ||
        rank != static_cast<size_t>(tensor.rank) ||
        !good(ort::GetDimensions(api_, info, static_cast<int64_t*>(dims), rank)))
      return;
    const int64_t size = dims[where.axis];
    if (size >= 0 && (size != 1 || !(tensor.loose >> where.axis & 1))) symbols_[symbol] = size;
  }

  // A dimension: its size, or -1 with a name.
  int64_t dimension(int64_t size, char* name) {
    name[0] = 0;
    if (size >= 0) return size;
    static uint64_t counter = 0;
    const uint64_t serial = __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED);
    snprintf(name, kNameBytes, "%s.%llu", domain_, static_cast<unsigned long long>(serial));
    return -1;
  }

  void set_output(int32_t index, const KnownSizes& sizes) {
    const Tensor& tensor = program_.tensors[program_.input_count + index];
    int64_t dims[kMaxRank];
    char text[kMaxRank][kNameBytes];
    const char* names[kMaxRank];
    for (int32_t i = 0; i < tensor.rank; ++i) {
      dims[i] = dimension(sizes.of(tensor, i), text[i]);
      names[i] = text[i];
    }
    const size_t rank = static_cast<size_t>(tensor.rank);
    OrtTensorTypeAndShapeInfo* info = nullptr;
    if (!good(ort::CreateTensorTypeAndShapeInfo(api_, &info))) return;
    if (good(ort::SetTensorElementType(api_, info, tensor.type)) &&
        good(ort::SetDimensions(api_, info, static_cast<const int64_t*>(dims), rank)) &&
        good(ort::SetSymbolicDimensions(api_, info, static_cast<const char**>(names), rank)))
      good(ort::ShapeInferContext_SetOutputTypeShape(api_, context_, static_cast<size_t>(index),
                                                     info));
    ort::ReleaseTensorTypeAndShapeInfo(api_, info);
  }

  const OrtApi* api_;
  OrtShapeInferContext* context_;
  const char* domain_;
  int64_t* words_ = nullptr;
  int64_t count_ = 0;
  Program program_ = {};
  int64_t symbols_[kMaxSymbols] = {};  // kNoValue where unknown
};

}  // namespace tracea
