// What the products of a program read first of their weights, known to the products before them:
// weights come from memory in every run, and the last tasks of one product can ask for the next's.
#pragma once
#include "runtime/gemm.h"

namespace tracea {

constexpr int32_t kAheadCalls = 6;  // how far behind a product the next one is looked for

// The panels of a product over packed weights, or none.
inline Ahead ahead_of(Run& run, const Program& program, int32_t index, const int64_t* symbols,
                      const Memory* buffers) {
  const auto multiplies = [](const Call& call) {
    return call.opcode == kGemm || call.opcode == kGemmBf16 || call.opcode == kGemmInt16;
  };
  if (!multiplies(program.calls[index])) return {};
  const int32_t last = index + kAheadCalls < program.call_count ? index + kAheadCalls
                                                                : program.call_count - 1;
  for (int32_t i = index + 1; i <= last; ++i) {
    const Call& call = program.calls[i];
    if (!multiplies(call)) continue;
    const View& weights = call.views[1];
    const bool pairs = call.opcode != kGemm;  // two elements are a lane of four bytes
    Box box;
    if (weights.kind != kInput || !(pairs || call.ints[0] == kPanels) ||
        weights.rank != (pairs ? 4 : 3) ||
        !place(run, weights, symbols, buffers, i, 1, &box))
      return {};
    const int64_t lines = box.dims[1], panel = box.strides[0] / (pairs ? 2 : 1);
    if (box.dims[0] < 1 || lines < 1 || panel != lines * TRACEA_PANEL) return {};
    return {box.f32(), box.dims[0], lines};
  }
  return {};
}

}  // namespace tracea
