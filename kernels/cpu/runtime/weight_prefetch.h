// Prefetch of the next product's weights: they come from memory in every run, so the last tasks of
// one product, or all tasks of a convolution, which leave the memory idle, prefetch the next one's.
#pragma once
#include "runtime/gemm.h"
#include "runtime/view_cache.h"

namespace tracea {

constexpr int32_t kPrefetchCalls = 6;  // calls searched for the next product

// The panels of a product over packed weights, or none.
inline WeightPrefetch packed_panels_of(Run& run, const Call& call, int32_t index, const int64_t* symbols,
                       const Memory* buffers) {
  const View& weights = call.views[1];
  const bool lanes = call.opcode != kGemm;  // several elements are a lane of four bytes
  TensorView box;
  const bool panels = lanes || call.ints[gemm_call::kLayout] == gemm_call::kLayoutPanels;
  if (weights.kind != kInput || !panels ||
      weights.rank != (lanes ? 4 : 3) ||
      !find_view(run, call, index, 1, symbols, buffers, &box))
    return {};
  const int64_t lines = box.dims[1], panel = box.strides[0] * element_size(weights.type) / 4;
  if (box.dims[0] < 1 || lines < 1 || panel != lines * TRACEA_PANEL) return {};
  return {box.f32(), box.dims[0], lines};
}

// A product prefetches for the next one; a convolution for the last product before the next
// convolution, because products in between prefetch for each other.
inline WeightPrefetch prefetch_of(Run& run, const Program& program, int32_t index, const int64_t* symbols,
                      const Memory* buffers) {
  const auto multiplies = [](const Call& call) {
    return call.opcode == kGemm || call.opcode == kGemmBf16 || call.opcode == kGemmInt16 ||
           call.opcode == kGemmInt8 || call.opcode == kConvNhwcInt8;
  };
  const auto convolves = [](const Call& call) {
    return call.opcode == kConv || call.opcode == kConvBf16 || call.opcode == kConvInt16;
  };
  const bool product = multiplies(program.calls[index]);
  if (!product && !convolves(program.calls[index])) return {};
  const int32_t end = program.call_count < index + 1 + kPrefetchCalls ? program.call_count
                                                                   : index + 1 + kPrefetchCalls;
  int32_t found = index;
  for (int32_t i = index + 1; i < end && !(product && found > index); ++i) {
    if (!product && convolves(program.calls[i])) break;
    if (multiplies(program.calls[i])) found = i;
  }
  if (found == index) return {};
  return packed_panels_of(run, program.calls[found], found, symbols, buffers);
}

}  // namespace tracea
