// Shape inference: a program's output shapes from what is known of its inputs' shapes.
//
// Every unknown dimension gets a name of its own.  An input's name is not copied: ONNX Runtime takes
// dimensions of one name for equal and reuses buffers by it, but accepts inputs that are fed different
// sizes under one name.  An unnamed dimension would make it take -1 for a size.
#pragma once
#include "runtime/ort_abi.h"
#include "runtime/core.h"
#include "runtime/plan.h"

namespace tracea {

constexpr size_t kNameBytes = 96;

// What inference knows of one symbol.
struct Known {
  bool number[kMaxSymbols];
  int64_t value[kMaxSymbols];
};

class Inference {
 public:
  Inference(const OrtApi* api, OrtShapeInferContext* context, const char* domain)
      : api_(api), context_(context), domain_(domain) {}
  ~Inference() {
    program_.pool.release();
    free(words_);
  }

  // Sets the shapes it can; a malformed plan is reported when the kernel is created.
  void run() {
    if (!read_plan()) return;
    Error error;
    if (!Reader(words_, count_, &program_, &error).program()) return;
    for (int32_t i = 0; i < program_.symbol_count; ++i) bind(i);
    for (int32_t i = 0; i < program_.output_count; ++i) set_output(i);
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
    if (bytes < sizeof first || bytes > kMaxWords * sizeof first) return false;
    words_ = static_cast<int64_t*>(malloc(bytes));
    count_ = static_cast<int64_t>(bytes / sizeof first);
    return words_ && good(ort::ReadOpAttr(api_, attribute, kOrtAttrInts,
                                          static_cast<void*>(words_), bytes, &bytes));
  }

  void bind(int32_t symbol) {
    const Symbol& where = program_.symbols[symbol];
    OrtTensorTypeAndShapeInfo* info = nullptr;  // borrowed
    size_t rank = 0;
    int64_t dims[kMaxRank];
    if (!good(ort::ShapeInferContext_GetInputTypeShape(
            api_, context_, static_cast<size_t>(where.input), &info)) ||
        !info || !good(ort::GetDimensionsCount(api_, info, &rank)) ||
        rank != static_cast<size_t>(program_.inputs[where.input].rank) ||
        !good(ort::GetDimensions(api_, info, static_cast<int64_t*>(dims), rank)))
      return;
    known_.value[symbol] = dims[where.axis];
    known_.number[symbol] = dims[where.axis] >= 0;
  }

  // A dimension: its number, or -1 with a name.
  int64_t dimension(const Expr& expr, char* name) {
    int64_t value;
    name[0] = 0;
    if (!unknown(expr, known_.number) && evaluate(expr, known_.value, &value) && value >= 0)
      return value;
    static uint64_t counter = 0;
    const uint64_t serial = __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED);
    snprintf(name, kNameBytes, "%s.%llu", domain_, static_cast<unsigned long long>(serial));
    return -1;
  }

  void set_output(int32_t index) {
    const Tensor& tensor = program_.outputs[index];
    int64_t dims[kMaxRank];
    char text[kMaxRank][kNameBytes];
    const char* names[kMaxRank];
    for (int32_t i = 0; i < tensor.rank; ++i) {
      dims[i] = dimension(tensor.dims[i], text[i]);
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
  Known known_ = {};
};

}  // namespace tracea
