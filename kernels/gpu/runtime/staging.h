// Copies of inputs and outputs between tensors of ONNX Runtime and the device, through pinned memory.
// What is larger than the pinned memory goes through its slots in turn: threads of the session copy
// some while the GPU copies others.  Locking pages for all of it would stall the first run of a size;
// the second locks them.
#pragma once
#include <sched.h>

#include "runtime/inputs.h"
#include "runtime/run.h"

namespace tracea {

constexpr int64_t kPiece = 512 << 10;  // bytes per task of a threaded copy
constexpr int64_t kLeastPage = 4096;

// Copies host memory, on all threads of the session if it is long: the destination's pages are
// often touched for the first time.
struct Move {
  const char* from;
  char* to;
  int64_t bytes;
};

inline void move_piece(void* job, size_t index) {
  const Move& move = *static_cast<Move*>(job);
  const int64_t at = static_cast<int64_t>(index) * kPiece;
  memcpy(move.to + at, move.from + at, static_cast<size_t>(min(move.bytes - at, kPiece)));
}

inline bool move_all(Outcome& run, OrtKernelContext* context, Move move) {
  const size_t pieces = static_cast<size_t>(ceil_div(move.bytes, kPiece));
  if (pieces > 2)
    return run.good(ort::KernelContext_ParallelFor(
        run.api, static_cast<const OrtKernelContext*>(context), move_piece, pieces, size_t{0},
        static_cast<void*>(&move)));
  for (size_t i = 0; i < pieces; ++i) move_piece(&move, i);
  return true;
}

// The inputs or outputs of a run on the host, and the bytes of the arena that hold them.
struct Tensors {
  const Layout& layout;
  int32_t first, end;
  void** data;  // of all tensors
  int64_t at, bytes;

  // Calls `visit` with the host's address, the offset from `low`, and the number of bytes of every
  // piece of a tensor within `count` bytes from `low` on; stops if it returns false.
  template <class Visit>
  bool pieces(int64_t low, int64_t count, Visit visit) const {
    for (int32_t i = first; i < end; ++i) {
      if (layout.offsets[i] < 0) continue;
      const int64_t start = layout.offsets[i] - at;  // as `low`: from the first of the tensors
      const int64_t from = max(start, low), to = min(start + layout.counts[i], low + count);
      if (from < to && !visit(static_cast<char*>(data[i]) + (from - start), from - low, to - from))
        return false;
    }
    return true;
  }
};

inline Tensors inputs_of(const Program& p, const Layout& l, void** data) {
  return {l, 0, p.input_count, data, 0, l.in_bytes};
}
inline Tensors outputs_of(const Program& p, const Layout& l, void** data) {
  return {l, p.input_count, p.tensor_count(), data, l.out_first, l.out_bytes};
}

// A copy of tensors in parts of kSlot bytes.  Tasks take the parts in order, whatever the order of
// the tasks: a part waits only for parts before it, so that any number of threads gets ahead.
struct Parts {
  const Tensors& tensors;
  Context& c;
  const Device& device;
  Error error;
  int64_t taken;         // parts that tasks have taken
  int64_t held[kSlots];  // the part whose copy by the GPU each slot is for
  int32_t failed;

  int64_t count() const { return ceil_div(tensors.bytes, kSlot); }
  int64_t bytes(int64_t part) const { return min(tensors.bytes - part * kSlot, kSlot); }
  cu::Address on_device(int64_t part) const {
    return c.memory + static_cast<uint64_t>(tensors.at + part * kSlot);
  }
  int64_t take() { return __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED); }
  void hold(int64_t part) { __atomic_store_n(&held[part % kSlots], part, __ATOMIC_RELEASE); }

  // Waits until another task has started the GPU's copy of a part, and for that copy's end.
  bool copied(int64_t part) {
    for (int32_t spins = 1; __atomic_load_n(&held[part % kSlots], __ATOMIC_ACQUIRE) != part; ++spins) {
      if (__atomic_load_n(&failed, __ATOMIC_RELAXED)) return false;
      if (spins % 256 == 0) sched_yield();
    }
    return checked(gpu.driver.wait_for_event(c.events[part % kSlots]), "finish a run");
  }
  bool started(int64_t part, cu::Result result, const char* what) {
    return checked(result, what) &&
           checked(gpu.driver.record_event(c.events[part % kSlots], c.stream), what) &&
           (hold(part), true);
  }
  bool download(int64_t part) {
    return started(part, gpu.driver.download_async(c.out + part % kSlots * kSlot, on_device(part),
                                                   static_cast<size_t>(bytes(part)), c.stream),
                   "give results");
  }
  bool upload(int64_t part) {
    return started(part, gpu.driver.upload_async(on_device(part), c.in + part % kSlots * kSlot,
                                                 static_cast<size_t>(bytes(part)), c.stream),
                   "take inputs");
  }
  // The first task that fails says why.
  bool checked(cu::Result result, const char* what) {
    if (!result) return true;
    if (!__atomic_exchange_n(&failed, 1, __ATOMIC_RELAXED)) good(error, result, what);
    return false;
  }
  bool enter_thread() { return checked(gpu.driver.use_context(device.context), "switch to the GPU"); }
};

inline bool in_parallel(Outcome& run, OrtKernelContext* context, Parts& parts,
                        void (*task)(void*, size_t)) {
  const bool ok = run.good(ort::KernelContext_ParallelFor(
      run.api, static_cast<const OrtKernelContext*>(context), task,
      static_cast<size_t>(parts.count()), size_t{0}, static_cast<void*>(&parts)));
  if (parts.failed) run.error = parts.error;
  return ok && !parts.failed;
}

inline void send_part(void* job, size_t) {
  Parts& parts = *static_cast<Parts*>(job);
  const int64_t part = parts.take();
  char* const slot = parts.c.in + part % kSlots * kSlot;
  if (!parts.enter_thread() || (part >= kSlots && !parts.copied(part - kSlots))) return;
  parts.tensors.pieces(part * kSlot, kSlot, [&](char* host, int64_t at, int64_t bytes) {
    return memcpy(slot + at, host, static_cast<size_t>(bytes)), true;
  });
  parts.upload(part);
}

inline void receive_part(void* job, size_t) {
  Parts& parts = *static_cast<Parts*>(job);
  const int64_t part = parts.take();
  const char* const slot = parts.c.out + part % kSlots * kSlot;
  if (!parts.enter_thread() || !parts.copied(part)) return;
  parts.tensors.pieces(part * kSlot, kSlot, [&](char* host, int64_t at, int64_t bytes) {
    return memcpy(host, slot + at, static_cast<size_t>(bytes)), true;
  });
  if (part + kSlots < parts.count()) parts.download(part + kSlots);
}

// Writes to every page of a part of the outputs, whose values come later.
inline void touch_part(void* job, size_t) {
  Parts& parts = *static_cast<Parts*>(job);
  parts.tensors.pieces(parts.take() * kSlot, kSlot, [](char* host, int64_t, int64_t bytes) {
    volatile char* const page = host;
    for (int64_t i = 0; i < bytes; i += kLeastPage) page[i] = 0;
    return true;
  });
}

// Copies inputs to pinned memory, and from there to the device if they are larger than it.  Pinned
// memory must be idle: it is when a run has ended.
inline bool send_inputs(Outcome& run, OrtKernelContext* context, const Shared& s, Context& c,
                        const Layout& l, void** data) {
  const Tensors inputs = inputs_of(*s.program, l, data);
  if (!in_parts(inputs.bytes, c.in_bytes))
    return inputs.pieces(0, inputs.bytes, [&](char* host, int64_t at, int64_t bytes) {
      return move_all(run, context, {host, c.in + at, bytes});
    });
  Parts parts = {inputs, c, *s.device, {}, 0, {}, 0};
  for (int64_t& one : parts.held) one = -1;
  return in_parallel(run, context, parts, send_part);
}

// Copies outputs from pinned memory to tensors; first from the device, once the run has computed
// them, if they are larger than pinned memory.  A first run of a size often has tensors whose pages
// the system has still to provide: threads ask for them while the GPU computes.
inline bool receive_outputs(Outcome& run, OrtKernelContext* context, const Shared& s, Context& c,
                            const Layout& l, void** data) {
  const Tensors outputs = outputs_of(*s.program, l, data);
  if (!in_parts(outputs.bytes, c.out_bytes))
    return outputs.pieces(0, outputs.bytes, [&](char* host, int64_t at, int64_t bytes) {
      return move_all(run, context, {c.out + at, host, bytes});
    });
  Parts parts = {outputs, c, *s.device, {}, 0, {}, 0};
  if (l.runs == 1 && !in_parallel(run, context, parts, touch_part)) return false;
  parts.taken = 0;
  for (int64_t& one : parts.held) one = -1;
  for (int64_t part = 0; part < min(kSlots, parts.count()); ++part)
    if (!parts.download(part)) return run.error = parts.error, false;
  // One thread waits while the GPU computes; the others have runs of other threads to serve.
  return good(run.error, gpu.driver.wait_for_event(c.events[0]), "finish a run") &&
         in_parallel(run, context, parts, receive_part);
}

}  // namespace tracea
