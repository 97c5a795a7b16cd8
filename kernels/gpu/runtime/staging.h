// Copies of inputs and outputs between tensors of ONNX Runtime and the device, through pinned memory.
// What is larger than the pinned memory goes through the slots of its first block in turn: threads of
// the session copy some while the GPU copies others.  Pinned memory grows block by block with the runs
// of a size, until it holds all.
#pragma once
#include <sched.h>

#include "runtime/inputs.h"
#include "runtime/run.h"

namespace tracea {

constexpr int64_t kPiece = 128 << 10;  // bytes per task of a threaded copy
constexpr int64_t kTurns = 4;  // threads that pass parts through slots in turn
constexpr int64_t kLeastPage = 4096;

// Copies host memory, on all threads of the session if it is long: the destination's pages are
// often touched for the first time.  `alone`: no other run needs these threads.
struct Move {
  const char* from;
  char* to;
  int64_t bytes;
  bool alone;
};

inline void move_piece(void* job, size_t index) {
  const Move& move = *static_cast<Move*>(job);
  const int64_t at = static_cast<int64_t>(index) * kPiece;
  memcpy(move.to + at, move.from + at, static_cast<size_t>(min(move.bytes - at, kPiece)));
}

inline bool move_all(Outcome& run, OrtKernelContext* context, Move move) {
  const size_t pieces = static_cast<size_t>(ceil_div(move.bytes, kPiece));
  if (pieces > (move.alone ? 2 : 8))
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

// A copy of tensors in parts of kSlot bytes.  Each part has a slot of its own where pinned memory holds
// them all, and takes turns in the first block otherwise.  A task takes one part after another until
// none is left, so that a thread that is not running holds up no more than its own, and a part waits
// only for parts before it, so that any number of threads gets ahead.
struct Parts {
  const Tensors& tensors;
  const Pinned& pinned;
  Context& c;
  const Device& device;
  Error error;
  int64_t taken;         // parts that tasks have taken
  int64_t held[kSlots];  // the part whose copy by the GPU each slot is for
  int64_t arrived;       // events whose blocks have arrived
  int32_t waiting;       // whether a thread waits for the next of them
  int32_t failed;

  bool whole() const { return pinned.holds(tensors.bytes); }
  int64_t count() const { return ceil_div(tensors.bytes, kSlot); }
  int64_t bytes(int64_t part) const { return min(tensors.bytes - part * kSlot, kSlot); }
  char* slot(int64_t part) const { return pinned.at((whole() ? part : part % kSlots) * kSlot); }
  cu::Address on_device(int64_t part) const {
    return c.memory + static_cast<uint64_t>(tensors.at + part * kSlot);
  }
  void restart() {
    taken = arrived = 0;
    for (int64_t& one : held) one = -1;
  }
  bool take(int64_t* part) {
    *part = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    return *part < count() && !__atomic_load_n(&failed, __ATOMIC_RELAXED);
  }
  // Threads that wait for a slot keep others from running, so that only some take turns.
  int64_t tasks() const { return whole() ? count() : min(count(), kTurns); }
  void hold(int64_t part) { __atomic_store_n(&held[part % kSlots], part, __ATOMIC_RELEASE); }

  // Copies a part between tensors and its slot.
  void fill(int64_t part) const {
    tensors.pieces(part * kSlot, kSlot, [&](char* host, int64_t at, int64_t size) {
      return memcpy(slot(part) + at, host, static_cast<size_t>(size)), true;
    });
  }
  void drain(int64_t part) const {
    tensors.pieces(part * kSlot, kSlot, [&](char* host, int64_t at, int64_t size) {
      return memcpy(host, slot(part) + at, static_cast<size_t>(size)), true;
    });
  }

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
    return started(part, gpu.driver.download_async(slot(part), on_device(part),
                                                   static_cast<size_t>(bytes(part)), c.stream),
                   "give results");
  }
  bool upload(int64_t part) {
    return started(part, gpu.driver.upload_async(on_device(part), slot(part),
                                                 static_cast<size_t>(bytes(part)), c.stream),
                   "take inputs");
  }

  // Copies by the GPU of all parts, block by block; an event ends so many blocks of them.
  int64_t blocks() const { return ceil_div(tensors.bytes, kBlock); }
  int64_t blocks_an_event() const { return ceil_div(blocks(), kSlots); }
  size_t block_bytes(int64_t block) const {
    return static_cast<size_t>(min(tensors.bytes - block * kBlock, kBlock));
  }
  bool upload_blocks() {
    bool ok = true;
    for (int64_t i = 0; ok && i < blocks(); ++i)
      ok = checked(gpu.driver.upload_async(on_device(i * kSlots), pinned.at(i * kBlock),
                                           block_bytes(i), c.stream),
                   "take inputs");
    return ok;
  }
  bool download_blocks() {
    bool ok = true;
    for (int64_t i = 0; ok && i < blocks(); ++i) {
      ok = checked(gpu.driver.download_async(pinned.at(i * kBlock), on_device(i * kSlots),
                                             block_bytes(i), c.stream),
                   "give results");
      if (ok && ((i + 1) % blocks_an_event() == 0 || i + 1 == blocks()))
        ok = checked(gpu.driver.record_event(c.events[i / blocks_an_event()], c.stream),
                     "give results");
    }
    return ok;
  }

  // Waits until the GPU has copied a part's block.  One thread at a time asks the driver, whose locks
  // would hold up all when one of them does not run.
  bool block_copied(int64_t part) {
    const int64_t wanted = part / kSlots / blocks_an_event();
    for (int32_t spins = 1; __atomic_load_n(&arrived, __ATOMIC_ACQUIRE) <= wanted; ++spins) {
      if (__atomic_load_n(&failed, __ATOMIC_RELAXED)) return false;
      if (!__atomic_exchange_n(&waiting, 1, __ATOMIC_ACQUIRE)) {
        const int64_t next = arrived;
        if (next <= wanted && enter_thread() &&
            checked(gpu.driver.wait_for_event(c.events[next]), "finish a run"))
          __atomic_store_n(&arrived, next + 1, __ATOMIC_RELEASE);
        __atomic_store_n(&waiting, 0, __ATOMIC_RELEASE);
      } else {
        spins % 256 ? pause_processor() : static_cast<void>(sched_yield());
      }
    }
    return true;
  }

  // The first task that fails says why.
  bool checked(cu::Result result, const char* what) {
    if (!result) return true;
    if (!__atomic_exchange_n(&failed, 1, __ATOMIC_RELAXED)) good(error, result, what);
    return false;
  }
  bool enter_thread() { return checked(gpu.driver.use_context(device.context), "switch to the GPU"); }
};

inline bool in_parallel(Outcome& run, OrtKernelContext* context, Parts& parts, int64_t tasks,
                        void (*task)(void*, size_t)) {
  const bool ok = run.good(ort::KernelContext_ParallelFor(
      run.api, static_cast<const OrtKernelContext*>(context), task, static_cast<size_t>(tasks),
      size_t{0}, static_cast<void*>(&parts)));
  if (parts.failed) run.error = parts.error;
  return ok && !parts.failed;
}

inline void send_parts(void* job, size_t) {
  Parts& parts = *static_cast<Parts*>(job);
  for (int64_t part; parts.take(&part);) {
    const bool turns = !parts.whole();
    if (turns && (!parts.enter_thread() || (part >= kSlots && !parts.copied(part - kSlots)))) return;
    parts.fill(part);
    if (turns) parts.upload(part);
  }
}

inline void receive_parts(void* job, size_t) {
  Parts& parts = *static_cast<Parts*>(job);
  for (int64_t part; parts.take(&part);) {
    if (parts.whole() ? !parts.block_copied(part) : !(parts.enter_thread() && parts.copied(part)))
      return;
    parts.drain(part);
    if (!parts.whole() && part + kSlots < parts.count()) parts.download(part + kSlots);
  }
}

// Writes to every page of the outputs, whose values come later.
inline void touch_parts(void* job, size_t) {
  Parts& parts = *static_cast<Parts*>(job);
  for (int64_t part; parts.take(&part);)
    parts.tensors.pieces(part * kSlot, kSlot, [](char* host, int64_t, int64_t bytes) {
      volatile char* const page = host;
      for (int64_t i = 0; i < bytes; i += kLeastPage) page[i] = 0;
      return true;
    });
}

// Copies inputs to pinned memory, and large ones from there to the device.  Pinned memory must be
// idle: it is when a run has ended.
inline bool send_inputs(Outcome& run, OrtKernelContext* context, const Shared& s, Context& c,
                        const Layout& l, void** data) {
  const Tensors inputs = inputs_of(*s.program, l, data);
  if (!are_large(inputs.bytes))
    return inputs.pieces(0, inputs.bytes, [&](char* host, int64_t at, int64_t bytes) {
      return move_all(run, context, {host, c.in.first() + at, bytes, c.alone});
    });
  Parts parts = {inputs, c.in, c, *s.device, {}, 0, {}, 0, 0, 0};
  parts.restart();
  if (!in_parallel(run, context, parts, parts.tasks(), send_parts)) return false;
  if (parts.whole() && !parts.upload_blocks()) return run.error = parts.error, false;
  return true;
}

// Copies outputs from pinned memory to tensors, large ones once the run has computed them and the
// device has copied them there.  A first run of a size often has tensors whose pages the system has
// still to provide: threads ask for them while the GPU computes.
inline bool receive_outputs(Outcome& run, OrtKernelContext* context, const Shared& s, Context& c,
                            const Layout& l, void** data) {
  const Tensors outputs = outputs_of(*s.program, l, data);
  if (!are_large(outputs.bytes))
    return outputs.pieces(0, outputs.bytes, [&](char* host, int64_t at, int64_t bytes) {
      return move_all(run, context, {c.out.first() + at, host, bytes, c.alone});
    });
  Parts parts = {outputs, c.out, c, *s.device, {}, 0, {}, 0, 0, 0};
  if (l.runs == 1 && !in_parallel(run, context, parts, parts.count(), touch_parts)) return false;
  parts.restart();
  bool ok = true;
  if (parts.whole()) ok = parts.download_blocks();
  for (int64_t part = 0; ok && !parts.whole() && part < min(kSlots, parts.count()); ++part)
    ok = parts.download(part);
  if (!ok) return run.error = parts.error, false;
  // One thread waits while the GPU computes; the others have runs of other threads to serve.
  return good(run.error, gpu.driver.wait_for_event(c.events[0]), "finish a run") &&
         in_parallel(run, context, parts, parts.tasks(), receive_parts);
}

}  // namespace tracea
