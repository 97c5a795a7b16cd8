// Copies of inputs and outputs between tensors of ONNX Runtime and the device, through pinned memory.
// What is larger than the pinned memory goes through its halves in turn: the processor copies one
// while the GPU copies the other.  Locking pages for all of it would stall the first run of a size.
#pragma once
#include "runtime/inputs.h"
#include "runtime/run.h"

namespace tracea {

constexpr int64_t kAlone = 512 << 10;  // bytes that one thread copies
constexpr int64_t kPiece = 128 << 10;  // bytes per task of a copy by several threads

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
  if (move.bytes <= kAlone)
    return memcpy(move.to, move.from, static_cast<size_t>(move.bytes)), true;
  return run.good(ort::KernelContext_ParallelFor(
      run.api, static_cast<const OrtKernelContext*>(context), move_piece,
      static_cast<size_t>(ceil_div(move.bytes, kPiece)), size_t{0}, static_cast<void*>(&move)));
}

// The inputs or outputs of a run on the host, and the bytes of the arena that hold them.
struct Tensors {
  int32_t first, end;
  void** data;  // of all tensors
  int64_t at, bytes;
};

inline Tensors inputs_of(const Program& p, const Layout& l, void** data) {
  return {0, p.input_count, data, 0, l.in_bytes};
}
inline Tensors outputs_of(const Program& p, const Layout& l, void** data) {
  return {p.input_count, p.tensor_count(), data, l.out_first, l.out_bytes};
}

// Copies `bytes` of the tensors from `low` on to pinned memory (`in`), or from there.
inline bool move_part(Outcome& run, OrtKernelContext* context, const Layout& l, const Tensors& t,
                      int64_t low, int64_t bytes, char* pinned, bool in) {
  for (int32_t i = t.first; i < t.end; ++i) {
    if (l.offsets[i] < 0) continue;
    const int64_t start = l.offsets[i] - t.at;  // as `low`: from the first of the tensors
    const int64_t from = max(start, low), to = min(start + l.counts[i], low + bytes);
    if (from >= to) continue;
    char* const host = static_cast<char*>(t.data[i]) + (from - start);
    char* const own = pinned + (from - low);
    if (!move_all(run, context, in ? Move{host, own, to - from} : Move{own, host, to - from}))
      return false;
  }
  return true;
}

// Bytes of the part that half `part % 2` of pinned memory takes.
inline int64_t part_bytes(int64_t total, int64_t part) {
  return min(total - part * kHalfStaged, kHalfStaged);
}

// Copies inputs to pinned memory, and from there to the device if they are larger than it.  Pinned
// memory must be idle: it is when a run has ended.
inline bool send_inputs(Outcome& run, OrtKernelContext* context, const Program& p, Context& c,
                        const Layout& l, void** data) {
  const Tensors inputs = inputs_of(p, l, data);
  if (!in_parts(inputs.bytes)) return move_part(run, context, l, inputs, 0, inputs.bytes, c.in, true);
  const cu::Driver& d = gpu.driver;
  for (int64_t part = 0; part * kHalfStaged < inputs.bytes; ++part) {
    const int64_t low = part * kHalfStaged, bytes = part_bytes(inputs.bytes, part);
    char* const half = c.in + part % 2 * kHalfStaged;
    if (part >= 2 && !good(run.error, d.wait_for_event(c.events[part % 2]), "take inputs")) return false;
    if (!move_part(run, context, l, inputs, low, bytes, half, true) ||
        !good(run.error, d.upload_async(c.memory + static_cast<uint64_t>(low), half,
                                        static_cast<size_t>(bytes), c.stream), "take inputs") ||
        !good(run.error, d.record_event(c.events[part % 2], c.stream), "take inputs"))
      return false;
  }
  return true;
}

// Copies outputs from pinned memory to tensors; first from the device, once the run has computed
// them, if they are larger than pinned memory.
inline bool receive_outputs(Outcome& run, OrtKernelContext* context, const Program& p, Context& c,
                            const Layout& l, void** data) {
  const Tensors outputs = outputs_of(p, l, data);
  if (!in_parts(outputs.bytes))
    return move_part(run, context, l, outputs, 0, outputs.bytes, c.out, false);
  const cu::Driver& d = gpu.driver;
  auto ask = [&](int64_t part) {
    const int64_t low = part * kHalfStaged, bytes = part_bytes(outputs.bytes, part);
    return bytes <= 0 ||
           (good(run.error, d.download_async(c.out + part % 2 * kHalfStaged,
                                             c.memory + static_cast<uint64_t>(l.out_first + low),
                                             static_cast<size_t>(bytes), c.stream), "give results") &&
            good(run.error, d.record_event(c.events[part % 2], c.stream), "give results"));
  };
  if (!ask(0) || !ask(1)) return false;
  for (int64_t part = 0; part * kHalfStaged < outputs.bytes; ++part)
    if (!good(run.error, d.wait_for_event(c.events[part % 2]), "finish a run") ||
        !move_part(run, context, l, outputs, part * kHalfStaged, part_bytes(outputs.bytes, part),
                   c.out + part % 2 * kHalfStaged, false) ||
        !ask(part + 2))
      return false;
  return true;
}

}  // namespace tracea
