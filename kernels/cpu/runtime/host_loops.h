// The host loop of each op: checks a call's views and divides its work among threads.
#pragma once
#include "runtime/attention.h"
#include "runtime/bytes_equal.h"
#include "runtime/copy.h"
#include "runtime/elementwise.h"
#include "runtime/gather_elements.h"
#include "runtime/gather_nbits.h"
#include "runtime/gemm.h"
#include "runtime/host_loop.h"
#include "runtime/iota.h"
#include "runtime/kv_append.h"
#include "runtime/pool_nhwc.h"
#include "runtime/reduce.h"
#include "runtime/reorder.h"
#include "runtime/round.h"
#include "runtime/rows.h"
#include "runtime/softmax.h"
#include "runtime/sum_rows.h"
#include "runtime/table.h"
#include "runtime/weight_prefetch.h"

namespace tracea {

constexpr LoopTable kCommonLoops = by_op({
    {kGemmOp, check_gemm, run_gemm},
    {kNormOp, check_norm, run_norm},
    {kElementwiseOp, nullptr, run_elementwise},
    {kEmbeddingOp, check_embedding, run_embedding},
    {kAttentionOp, check_attention, run_attention},
    {kZeroPadOp, nullptr, run_zero_pad},
    {kRoundOp, nullptr, run_round},
    {kReduceOp, nullptr, run_reduce},
    {kSoftmaxOp, check_softmax, run_softmax},
    {kChannelNormOp, nullptr, run_channel_norm},
    {kCopyOp, check_copy, run_copy},
    {kKvAppendOp, nullptr, run_kv_append},
    {kGatherElementsOp, check_gather_elements, run_gather_elements},
    {kIotaOp, check_iota, run_iota},
    {kBytesEqualOp, check_bytes_equal, run_bytes_equal},
    {kSumRowsOp, nullptr, run_sum_rows},
    {kPoolNhwcOp, check_pool_nhwc, run_pool_nhwc},
    {kGatherNbitsOp, nullptr, run_gather_nbits},
});
static_assert(has_all(kCommonLoops, kCommonUnit), "host_loop_units.py lists others");
static_assert(sizeof kHeld / sizeof *kHeld == kLastOpcode, "kernels.h is that of schema.h");

// Null for an op whose unit the library lacks.
inline const HostLoop* host_loop_of(const Call& call) {
  const Op op = kCalls[call.opcode - 1].op;
  if (kLoopUnits[op] == kCommonUnit) return &kCommonLoops.at[op];
  const LoopTable* table = tracea_loop_tables[kLoopUnits[op]];
  return table ? &table->at[op] : nullptr;
}

inline bool check_call(Call& call, Error& error) {
  const HostLoop* loop = host_loop_of(call);
  Signature signature(call, error);
  if (!signature.matches() || (loop && loop->check && !loop->check(signature))) return false;
  int32_t results = 0;  // a result may be left out
  for (int32_t i = 0; i < call.view_count; ++i) results += call.views[i].written;
  return results <= call.result_count || signature.fail("more results than it says");
}

inline bool run_call(Run& run, const Program& program, int32_t index, const int64_t* symbols,
                     const Memory* buffers) {
  const Call& call = program.calls[index];
  const HostLoop* loop = host_loop_of(call);
  const auto held = kHeld[call.opcode - 1];
  if (!loop || (held && !held(*run.host.isa)))
    return run.error.fail("This library holds no kernel for %s.", kCalls[call.opcode - 1].name);
  TensorView views[kMaxViews];
  for (int32_t i = 0; i < call.view_count; ++i)
    if (!find_view(run, call, index, i, symbols, buffers, &views[i])) return false;
  run.next_weights = prefetch_of(run, program, index, symbols, buffers);
  return loop->run(run, call, views) && !run.status && run.in_time(index, kCalls[call.opcode - 1].name);
}

}  // namespace tracea
