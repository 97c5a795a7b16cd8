// Which driver runs which opcode.
#pragma once
#include "runtime/ahead.h"
#include "runtime/append.h"
#include "runtime/arg.h"
#include "runtime/attention.h"
#include "runtime/block.h"
#include "runtime/conv.h"
#include "runtime/conv_plain.h"
#include "runtime/conv_stem.h"
#include "runtime/depthwise.h"
#include "runtime/copy.h"
#include "runtime/deal.h"
#include "runtime/elementwise.h"
#include "runtime/gemm.h"
#include "runtime/gemm_blocks.h"
#include "runtime/gemm_masked.h"
#include "runtime/grid.h"
#include "runtime/images.h"
#include "runtime/pool.h"
#include "runtime/recurrent.h"
#include "runtime/reduce.h"
#include "runtime/resize.h"
#include "runtime/round.h"
#include "runtime/rows.h"
#include "runtime/same_bytes.h"
#include "runtime/softmax.h"
#include "runtime/split.h"
#include "runtime/take.h"
#include "runtime/top_k.h"
#include "runtime/winograd.h"

namespace tracea {

struct KernelDriver {
  Opcode opcode;
  bool (*check)(Signature& call);  // what its record does not say; null: nothing
  bool (*run)(Run& run, const Call& call, const Box* views);
  bool (*held)(const tracea_isa_table& isa);  // the library has the kernel; null: needs none
};

constexpr auto holds_conv = [](const tracea_isa_table& t) { return t.conv != nullptr; };
constexpr auto holds_conv_int16 = [](const tracea_isa_table& t) {
  return t.conv_int16 != nullptr;
};
constexpr auto holds_conv_bf16 = [](const tracea_isa_table& t) { return t.conv_bf16 != nullptr; };
constexpr auto holds_conv_bf16x2 = [](const tracea_isa_table& t) {
  return t.conv_bf16x2 != nullptr;
};
constexpr auto holds_pool = [](const tracea_isa_table& t) { return t.pool != nullptr; };
constexpr auto holds_block = [](const tracea_isa_table& t) { return t.unblock != nullptr; };

constexpr KernelDriver kDrivers[] = {  // by opcode - 1
    {kGemm, check_gemm, run_gemm, [](const tracea_isa_table& t) { return t.gemm != nullptr; }},
    {kNorm, check_norm, run_norm, [](const tracea_isa_table& t) { return t.norm_rms != nullptr; }},
    {kElementwise, nullptr, run_elementwise, nullptr},
    {kEmbedding, check_embedding, run_embedding,
     [](const tracea_isa_table& t) { return t.gather != nullptr; }},
    {kAttention, check_attention, run_attention,
     [](const tracea_isa_table& t) { return t.attention != nullptr; }},
    {kConv, nullptr, run_conv, holds_conv},
    {kConvStem, nullptr, run_conv_stem, holds_conv},
    {kDepthwise, nullptr, run_depthwise,
     [](const tracea_isa_table& t) { return t.depthwise != nullptr; }},
    {kWinograd, nullptr, run_winograd,
     [](const tracea_isa_table& t) { return t.conv && t.winograd_out; }},
    {kPool, nullptr, run_pool, holds_pool},
    {kPoolAll, nullptr, run_pool_all, holds_pool},
    {kBlock, nullptr, run_block, holds_block},
    {kUnblock, nullptr, run_unblock, holds_block},
    {kHalo, nullptr, run_halo, nullptr},
    {kConvPlain, check_conv_plain, run_conv_plain,
     [](const tracea_isa_table& t) { return t.conv_plain != nullptr; }},
    {kGemmBf16, check_gemm, run_gemm,
     [](const tracea_isa_table& t) { return t.gemm_bf16 != nullptr; }},
    {kRoundBf16, nullptr, run_round,
     [](const tracea_isa_table& t) { return t.round_bf16 != nullptr; }},
    {kReduce, nullptr, run_reduce,
     [](const tracea_isa_table& t) { return t.reduce_rows != nullptr; }},
    {kSoftmax, check_softmax, run_softmax,
     [](const tracea_isa_table& t) { return t.softmax_rows != nullptr; }},
    {kChannelNorm, nullptr, run_channel_norm,
     [](const tracea_isa_table& t) { return t.norm_group != nullptr; }},
    {kCopy, check_copy, run_copy, [](const tracea_isa_table& t) { return t.copy != nullptr; }},
    {kRecurrent, check_recurrent, run_recurrent,
     [](const tracea_isa_table& t) { return t.gru != nullptr; }},
    {kGemmBlocks, nullptr, run_gemm_blocks,
     [](const tracea_isa_table& t) { return t.gemm_blocks && t.gemm_pack; }},
    {kAttentionBf16, check_attention, run_attention,
     [](const tracea_isa_table& t) { return t.attention_bf16 != nullptr; }},
    {kConvBf16, check_conv_bf16, run_conv, holds_conv_bf16},
    {kConvStemBf16, nullptr, run_conv_stem, holds_conv_bf16},
    {kDepthwiseBf16, nullptr, run_depthwise,
     [](const tracea_isa_table& t) { return t.depthwise_bf16 != nullptr; }},
    {kWinogradBf16, check_winograd_bf16, run_winograd,
     [](const tracea_isa_table& t) { return t.conv_bf16 && t.winograd_bf16_out; }},
    {kResize, nullptr, run_resize,
     [](const tracea_isa_table& t) { return t.resize != nullptr; }},
    {kDeal, check_deal, run_deal, [](const tracea_isa_table& t) { return t.deal != nullptr; }},
    {kGemmBlocksBf16, nullptr, run_gemm_blocks,
     [](const tracea_isa_table& t) { return t.gemm_blocks_bf16 && t.gemm_pack; }},
    {kGemmMasked, nullptr, run_gemm_masked,
     [](const tracea_isa_table& t) { return t.gemm_masked != nullptr; }},
    {kGemmMaskedBf16, nullptr, run_gemm_masked,
     [](const tracea_isa_table& t) { return t.gemm_masked_bf16 != nullptr; }},
    {kGemmInt16, check_gemm, run_gemm,
     [](const tracea_isa_table& t) { return t.gemm_int16 != nullptr; }},
    {kRoundInt16, nullptr, run_round_int16,
     [](const tracea_isa_table& t) { return t.round_int16 != nullptr; }},
    {kAppend, nullptr, run_append, nullptr},
    {kGemmBf16x2, check_gemm, run_gemm,
     [](const tracea_isa_table& t) { return t.gemm_bf16x2 != nullptr; }},
    {kRoundBf16x2, nullptr, run_round_bf16x2,
     [](const tracea_isa_table& t) { return t.round_bf16x2 != nullptr; }},
    {kConvInt16, nullptr, run_conv, holds_conv_int16},
    {kRoundImagesInt16, nullptr, run_round_images, holds_conv_int16},
    {kWinogradInt16, nullptr, run_winograd,
     [](const tracea_isa_table& t) { return t.conv_int16 && t.winograd_int16_out; }},
    {kArg, check_arg, run_arg, [](const tracea_isa_table& t) { return t.arg_rows != nullptr; }},
    {kTake, check_take, run_take, [](const tracea_isa_table&) { return true; }},
    {kConvOrWinograd, nullptr, run_conv_or_winograd,
     [](const tracea_isa_table& t) { return t.conv && t.winograd_out; }},
    {kTopK, nullptr, run_top_k, [](const tracea_isa_table& t) { return t.top_k != nullptr; }},
    {kAttentionF32AsBf16, check_attention, run_attention,
     [](const tracea_isa_table& t) { return t.attention && t.attention_bf16 && t.round_bf16; }},
    {kConvOrWinogradBf16, check_winograd_bf16, run_conv_or_winograd,
     [](const tracea_isa_table& t) { return t.conv_bf16 && t.winograd_bf16_out; }},
    {kConvOrWinogradInt16, nullptr, run_conv_or_winograd,
     [](const tracea_isa_table& t) { return t.conv_int16 && t.winograd_int16_out; }},
    {kPoolBf16, nullptr, run_pool,
     [](const tracea_isa_table& t) { return t.pool_bf16 != nullptr; }},
    {kRoundImagesBf16x2, nullptr, run_split_images, holds_conv_bf16x2},
    {kConvBf16x2, check_conv_bf16x2, run_conv, holds_conv_bf16x2},
    {kGrid, check_grid, run_grid, nullptr},
    {kSameBytes, check_same_bytes, run_same_bytes, nullptr},
};

constexpr bool drivers_in_order() {
  for (int32_t i = 0; i < kLastOpcode; ++i)
    if (kDrivers[i].opcode != i + 1) return false;
  return sizeof kDrivers / sizeof *kDrivers == kLastOpcode;
}
static_assert(drivers_in_order(), "every call of schema.h has its driver");

inline bool check_call(Call& call, Fault& fault) {
  const KernelDriver& driver = kDrivers[call.opcode - 1];
  Signature signature(call, fault);
  if (!signature.matches() || (driver.check && !driver.check(signature))) return false;
  int32_t results = 0;  // a result may be left out
  for (int32_t i = 0; i < call.view_count; ++i) results += call.views[i].written;
  return results <= call.result_count || signature.fail("more results than it says");
}

inline bool run_call(Run& run, const Program& program, int32_t index, const int64_t* symbols,
                     const Memory* buffers) {
  const Call& call = program.calls[index];
  const KernelDriver& driver = kDrivers[call.opcode - 1];
  if (driver.held && !driver.held(*run.host.isa))
    return run.fault.fail("This library holds no kernel for %s.", kCalls[call.opcode - 1].name);
  Box views[kMaxViews];
  for (int32_t i = 0; i < call.view_count; ++i)
    if (!find_view(run, call, index, i, symbols, buffers, &views[i])) return false;
  run.ahead = ahead_of(run, program, index, symbols, buffers);
  return driver.run(run, call, views) && !run.status;
}

}  // namespace tracea
