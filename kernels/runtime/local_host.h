// What the runtime asks of ONNX Runtime, served from plain memory: programs run in any process.
//
// A table of functions stands in for ONNX Runtime's, with the slots that a run uses: the executor
// is one, whoever calls it.
#pragma once
#include "runtime/ort_abi.h"
#include "runtime/core.h"
#include "runtime/thread_pool.h"

namespace tracea {

struct LocalValue {
  void* data;
  int32_t type, rank;
  int64_t dims[kMaxRank];
};

// Tensors of one run; stands in for OrtKernelContext.
struct LocalContext {
  LocalValue *inputs, *outputs;
  Error error;  // stands in for OrtStatus
};

// Scratch memory between runs: fresh memory of megabytes costs a page fault for every page.
class LocalMemory {
 public:
  void* take(size_t bytes) {
    lock();
    int best = -1;
    for (int i = 0; i < kKept; ++i)
      if (kept_[i] && kept_[i]->bytes >= bytes && kept_[i]->bytes <= 2 * bytes + kSlack &&
          (best < 0 || kept_[i]->bytes < kept_[best]->bytes))
        best = i;
    Block* block = best < 0 ? nullptr : kept_[best];
    if (block) kept_[best] = nullptr;
    unlock();
    if (!block && bytes < SIZE_MAX - sizeof *block) {
      block = static_cast<Block*>(malloc(sizeof *block + bytes));
      if (block) block->bytes = bytes;
    }
    return block ? block + 1 : nullptr;
  }
  void give(void* memory) {
    Block* block = static_cast<Block*>(memory) - 1;
    lock();
    for (int i = 0; block && i < kKept; ++i)
      if (!kept_[i]) kept_[i] = block, block = nullptr;
    if (block) {  // out goes the one that was kept longest
      Block* old = kept_[oldest_];
      kept_[oldest_] = block, block = old;
      oldest_ = (oldest_ + 1) % kKept;
    }
    unlock();
    free(block);
  }
  void trim() {
    lock();
    for (Block*& block : kept_) free(block), block = nullptr;
    unlock();
  }

 private:
  static constexpr int kKept = 16;
  static constexpr size_t kSlack = 1 << 16;
  struct alignas(64) Block {
    size_t bytes;
  };
  void lock() {
    while (__atomic_test_and_set(&locked_, __ATOMIC_ACQUIRE)) sched_yield();
  }
  void unlock() { __atomic_clear(&locked_, __ATOMIC_RELEASE); }

  Block* kept_[kKept];
  int oldest_;
  bool locked_;
};

inline ThreadPool local_threads;
inline LocalMemory local_memory;

namespace local {

inline LocalContext& context_of(const OrtKernelContext* context) {
  return *reinterpret_cast<LocalContext*>(const_cast<OrtKernelContext*>(context));
}
inline LocalValue* value_of(const OrtValue* value) {
  return reinterpret_cast<LocalValue*>(const_cast<OrtValue*>(value));
}

inline OrtStatus* get_input(const OrtKernelContext* context, size_t i, const OrtValue** out) {
  *out = reinterpret_cast<const OrtValue*>(&context_of(context).inputs[i]);
  return nullptr;
}
inline OrtStatus* get_output(OrtKernelContext* context, size_t i, const int64_t* dims, size_t rank,
                             OrtValue** out) {
  LocalContext& own = context_of(context);
  LocalValue& value = own.outputs[i];
  bool same = static_cast<size_t>(value.rank) == rank;
  for (size_t axis = 0; same && axis < rank; ++axis) same = value.dims[axis] == dims[axis];
  if (!same) {
    char text[200];
    int at = 0;
    for (size_t axis = 0; axis < rank && at < 180; ++axis)
      at += snprintf(text + at, sizeof text - static_cast<size_t>(at), axis ? " x %lld" : "%lld",
                     static_cast<long long>(dims[axis]));
    text[at] = 0;
    own.error.fail("Output %d has another shape than the program gives it: %s.",
                   static_cast<int>(i), text);
    return reinterpret_cast<OrtStatus*>(&own.error);
  }
  *out = reinterpret_cast<OrtValue*>(&value);
  return nullptr;
}
inline OrtStatus* get_data(OrtValue* value, void** out) {
  *out = value_of(value)->data;
  return nullptr;
}
inline OrtStatus* get_dims(const OrtValue* value, int* type, const int64_t** dims, size_t* rank) {
  const LocalValue& own = *value_of(value);
  *type = own.type, *dims = own.dims, *rank = static_cast<size_t>(own.rank);
  return nullptr;
}
inline OrtStatus* parallel_for(const OrtKernelContext*, void (*task)(void*, size_t), size_t total,
                               size_t, void* job) {
  local_threads.run(task, total, job);
  return nullptr;
}
inline OrtStatus* get_allocator(const OrtKernelContext*, const OrtMemoryInfo*, OrtAllocator** out) {
  *out = reinterpret_cast<OrtAllocator*>(&local_memory);
  return nullptr;
}
inline OrtStatus* allocate(OrtAllocator*, size_t bytes, void** out) {
  *out = local_memory.take(bytes);
  return nullptr;
}
inline OrtStatus* release(OrtAllocator*, void* memory) {
  local_memory.give(memory);
  return nullptr;
}
inline void release_allocator(OrtAllocator*) {}
inline void release_status(OrtStatus*) {}

}  // namespace local

// The table; its other slots are null.
inline void* local_slots[ort::kSlots];

inline const OrtApi* local_api() { return reinterpret_cast<const OrtApi*>(local_slots); }

// Once, before the first run.
inline void fill_local_api() {
  const auto set = [](size_t number, auto* function) {
    local_slots[number] = reinterpret_cast<void*>(function);
  };
  set(ort::kReleaseStatus, local::release_status);
  set(ort::kKernelContext_GetInput, local::get_input);
  set(ort::kKernelContext_GetOutput, local::get_output);
  set(ort::kKernelContext_ParallelFor, local::parallel_for);
  set(ort::kKernelContext_GetAllocator, local::get_allocator);
  set(ort::kAllocatorAlloc, local::allocate);
  set(ort::kAllocatorFree, local::release);
  set(ort::kReleaseAllocator, local::release_allocator);
  set(ort::kGetTensorMutableData, local::get_data);
  set(ort::kGetTensorElementTypeAndShapeDataReference, local::get_dims);
}

}  // namespace tracea
