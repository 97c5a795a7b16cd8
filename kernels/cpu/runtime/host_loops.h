// The host loop of each op: checks a call's views and divides its work among threads.
#pragma once
#include "runtime/arg_reduce.h"
#include "runtime/attention.h"
#include "runtime/bytes_equal.h"
#include "runtime/channel_shuffle.h"
#include "runtime/conv.h"
#include "runtime/conv_first_layer.h"
#include "runtime/conv_nhwc.h"
#include "runtime/conv_plain.h"
#include "runtime/copy.h"
#include "runtime/depthwise.h"
#include "runtime/elementwise.h"
#include "runtime/gather_elements.h"
#include "runtime/gather_nbits.h"
#include "runtime/gemm.h"
#include "runtime/gemm_bitmap.h"
#include "runtime/gemm_block_sparse.h"
#include "runtime/gemm_nbits.h"
#include "runtime/iota.h"
#include "runtime/kv_append.h"
#include "runtime/pool.h"
#include "runtime/pool_nhwc.h"
#include "runtime/recurrent.h"
#include "runtime/reduce.h"
#include "runtime/reorder.h"
#include "runtime/resize.h"
#include "runtime/round.h"
#include "runtime/round_images_bf16x2.h"
#include "runtime/round_images_int16.h"
#include "runtime/rows.h"
#include "runtime/softmax.h"
#include "runtime/sum_rows.h"
#include "runtime/top_k.h"
#include "runtime/weight_prefetch.h"
#include "runtime/winograd.h"

namespace tracea {

inline bool run_round_images(Run& run, const Call& call, const TensorView* views) {
  return call.opcode == kRoundImagesInt16 ? run_round_images_int16(run, call, views)
                                          : run_round_images_bf16x2(run, call, views);
}

struct HostLoop {
  Op op;
  bool (*check)(Signature& call);  // what its record does not say; null: nothing
  bool (*run)(Run& run, const Call& call, const TensorView* views);
};

constexpr HostLoop kHostLoops[] = {  // by op, whatever it computes in
    {kGemmOp, check_gemm, run_gemm},
    {kNormOp, check_norm, run_norm},
    {kElementwiseOp, nullptr, run_elementwise},
    {kEmbeddingOp, check_embedding, run_embedding},
    {kAttentionOp, check_attention, run_attention},
    {kConvOp, check_conv, run_conv},
    {kConvFirstLayerOp, nullptr, run_conv_first_layer},
    {kDepthwiseOp, nullptr, run_depthwise},
    {kWinogradOp, check_winograd, run_winograd},
    {kPoolOp, nullptr, run_pool},
    {kGlobalPoolOp, nullptr, run_global_pool},
    {kReorderToNchw16cOp, nullptr, run_reorder_to_nchw16c},
    {kReorderToNchwOp, nullptr, run_reorder_to_nchw},
    {kZeroPadOp, nullptr, run_zero_pad},
    {kConvPlainOp, check_conv_plain, run_conv_plain},
    {kRoundOp, nullptr, run_round},
    {kReduceOp, nullptr, run_reduce},
    {kSoftmaxOp, check_softmax, run_softmax},
    {kChannelNormOp, nullptr, run_channel_norm},
    {kCopyOp, check_copy, run_copy},
    {kRecurrentOp, check_recurrent, run_recurrent},
    {kGemmBlockSparseOp, nullptr, run_gemm_block_sparse},
    {kResizeOp, nullptr, run_resize},
    {kChannelShuffleOp, check_channel_shuffle, run_channel_shuffle},
    {kGemmBitmapOp, nullptr, run_gemm_bitmap},
    {kKvAppendOp, nullptr, run_kv_append},
    {kRoundImagesOp, nullptr, run_round_images},
    {kArgReduceOp, check_arg_reduce, run_arg_reduce},
    {kGatherElementsOp, check_gather_elements, run_gather_elements},
    {kConvDispatchOp, check_winograd, run_conv_dispatch},
    {kTopKOp, nullptr, run_top_k},
    {kIotaOp, check_iota, run_iota},
    {kBytesEqualOp, check_bytes_equal, run_bytes_equal},
    {kSumRowsOp, nullptr, run_sum_rows},
    {kGemmNbitsOp, nullptr, run_gemm_nbits},
    {kConvNhwcOp, check_conv_nhwc, run_conv_nhwc},
    {kPoolNhwcOp, check_pool_nhwc, run_pool_nhwc},
    {kGatherNbitsOp, nullptr, run_gather_nbits},
};

constexpr bool host_loops_in_order() {
  for (int32_t i = 0; i < kOps; ++i)
    if (kHostLoops[i].op != i) return false;
  return sizeof kHostLoops / sizeof *kHostLoops == kOps;
}
static_assert(host_loops_in_order(), "every op of schema.h has a host loop");
static_assert(sizeof kHeld / sizeof *kHeld == kLastOpcode, "kernels.h is that of schema.h");

inline const HostLoop& host_loop_of(const Call& call) {
  return kHostLoops[kCalls[call.opcode - 1].op];
}

inline bool check_call(Call& call, Error& error) {
  const HostLoop& loop = host_loop_of(call);
  Signature signature(call, error);
  if (!signature.matches() || (loop.check && !loop.check(signature))) return false;
  int32_t results = 0;  // a result may be left out
  for (int32_t i = 0; i < call.view_count; ++i) results += call.views[i].written;
  return results <= call.result_count || signature.fail("more results than it says");
}

inline bool run_call(Run& run, const Program& program, int32_t index, const int64_t* symbols,
                     const Memory* buffers) {
  const Call& call = program.calls[index];
  const HostLoop& loop = host_loop_of(call);
  const auto held = kHeld[call.opcode - 1];
  if (held && !held(*run.host.isa))
    return run.error.fail("This library holds no kernel for %s.", kCalls[call.opcode - 1].name);
  TensorView views[kMaxViews];
  for (int32_t i = 0; i < call.view_count; ++i)
    if (!find_view(run, call, index, i, symbols, buffers, &views[i])) return false;
  run.next_weights = prefetch_of(run, program, index, symbols, buffers);
  return loop.run(run, call, views) && !run.status && run.in_time(index, kCalls[call.opcode - 1].name);
}

}  // namespace tracea
