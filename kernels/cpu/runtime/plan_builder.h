// Writes plans of known sizes for the C interface: what lowering writes for a node, word by word.
// They are decoded and checked like any other.
#pragma once
#include "runtime/plan.h"
#include "runtime/policy.h"

namespace tracea {

// A strided view of a buffer; strides and offset are in elements.
struct PlannedView {
  BufferKind kind;
  int32_t index, rank;
  int64_t offset, dims[kMaxRank], strides[kMaxRank];
};
constexpr PlannedView kNoView = {kNone, 0, 0, 0, {}, {}};

// Dense, of up to six axes.
inline PlannedView dense_view(BufferKind kind, int32_t index, int32_t rank, const int64_t* dims) {
  PlannedView view = {kind, index, rank, 0, {}, {}};
  int64_t stride = 1;
  for (int32_t i = rank; i-- > 0; stride *= dims[i]) view.dims[i] = dims[i], view.strides[i] = stride;
  return view;
}

class PlanBuilder {
 public:
  int32_t input(int32_t type, int64_t count) {
    input_[inputs_] = {type, count};
    return inputs_++;
  }
  int32_t output(int32_t type, int64_t count) {
    output_[outputs_] = {type, count};
    return outputs_++;
  }
  // Scratch that calls `first` to `last` use.
  int32_t temp(int64_t count, int32_t first, int32_t last) {
    temp_[temps_] = {count, first, last};
    return temps_++;
  }

  void call(int32_t opcode, const int64_t* ints, int32_t int_count, const double* floats,
            int32_t float_count, const PlannedView* views, int32_t view_count, int64_t chain = -1) {
    ++calls_;
    opcode_[calls_ - 1] = opcode;
    const bool scheduled = kCalls[opcode - 1].schedule == kGemmSchedule;
    const int64_t head[] = {opcode, int_count, float_count, view_count,
                            scheduled ? kGemmPolicies : 0, 1, chain};
    for (int64_t word : head) put(word);
    for (int32_t i = 0; i < int_count; ++i) put(ints[i]);
    for (int32_t i = 0; i < float_count; ++i) {
      int64_t bits;
      memcpy(&bits, &floats[i], sizeof bits);
      put(bits);
    }
    for (int32_t i = 0; i < view_count; ++i) put(views[i]);
    for (int32_t i = 0; scheduled && i < kGemmPolicies; ++i) {
      const GemmSchedule& s = kGemmPolicy[i];
      const int64_t fields[] = {s.max_rows, s.nr_panels, s.mc, s.nc, s.prefetch};
      for (int64_t field : fields) put(field);
    }
  }

  // Joins all parts; null if there were too many words.
  const int64_t* done(int64_t* count) {
    const int32_t body = count_;
    const int64_t counts[] = {kMagic, kVersion, 0, inputs_, outputs_, 0, 0, temps_, calls_};
    int64_t head[kMost / 4];
    int32_t at = 0;
    const auto write = [&](int64_t word) { head[at++] = word; };
    const auto number = [&](int64_t value) { write(2), write(kNumber), write(value); };
    for (int64_t word : counts) write(word);
    for (int32_t i = 0; i < inputs_ + outputs_; ++i) {
      const Tensor1d& tensor = i < inputs_ ? input_[i] : output_[i - inputs_];
      write(tensor.type), write(1), number(tensor.count);
    }
    for (int32_t i = 0; i < temps_; ++i) {
      write(ORT_F32), number(temp_[i].count), write(temp_[i].first), write(temp_[i].last);
    }
    head[2] = at + body;
    if (full_ || at + body > kMost) return nullptr;
    memmove(words_ + at, words_, static_cast<size_t>(body) * sizeof *words_);
    memcpy(words_, head, static_cast<size_t>(at) * sizeof *words_);
    return *count = at + body, words_;
  }

  int32_t calls() const { return calls_; }
  int32_t opcode(int32_t call) const { return opcode_[call]; }

 private:
  static constexpr int32_t kMost = 2048, kFew = 8;
  struct Tensor1d {
    int32_t type;
    int64_t count;
  };
  struct Temp1d {
    int64_t count;
    int32_t first, last;
  };

  void put(int64_t word) {
    if (count_ == kMost) full_ = true;
    else words_[count_++] = word;
  }
  void number(int64_t value) { put(2), put(kNumber), put(value); }
  void put(const PlannedView& view) {
    put(view.kind);
    if (view.kind == kNone) return;
    put(view.index), put(view.rank), number(view.offset);
    for (int32_t i = 0; i < view.rank; ++i) number(view.dims[i]);
    for (int32_t i = 0; i < view.rank; ++i) number(view.strides[i]);
  }

  Tensor1d input_[kFew], output_[kFew];
  Temp1d temp_[kFew];
  int32_t opcode_[kFew];
  int32_t inputs_ = 0, outputs_ = 0, temps_ = 0, calls_ = 0, count_ = 0;
  bool full_ = false;
  int64_t words_[kMost];
};

}  // namespace tracea
