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
#include "runtime/softmax.h"
#include "runtime/split.h"
#include "runtime/take.h"
#include "runtime/top_k.h"
#include "runtime/winograd.h"

namespace tracea {

struct KernelDriver {
  const char* name;
  bool (*check)(Signature& call);
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

constexpr KernelDriver kDrivers[] = {
    // by opcode - 1
    {"gemm", check_gemm, run_gemm, [](const tracea_isa_table& t) { return t.gemm != nullptr; }},
    {"norm", check_norm, run_norm, [](const tracea_isa_table& t) { return t.norm_rms != nullptr; }},
    {"elementwise", check_elementwise, run_elementwise, nullptr},
    {"embedding", check_embedding, run_embedding,
     [](const tracea_isa_table& t) { return t.gather != nullptr; }},
    {"attention", check_attention, run_attention,
     [](const tracea_isa_table& t) { return t.attention != nullptr; }},
    {"conv", check_conv, run_conv, holds_conv},
    {"conv_stem", check_conv_stem, run_conv_stem, holds_conv},
    {"depthwise", check_depthwise, run_depthwise,
     [](const tracea_isa_table& t) { return t.depthwise != nullptr; }},
    {"winograd", check_winograd, run_winograd,
     [](const tracea_isa_table& t) { return t.conv && t.winograd_out; }},
    {"pool", check_pool, run_pool, holds_pool},
    {"pool_all", check_pool_all, run_pool_all, holds_pool},
    {"block", check_block, run_block, holds_block},
    {"unblock", check_unblock, run_unblock, holds_block},
    {"halo", check_halo_call, run_halo, nullptr},
    {"conv_plain", check_conv_plain, run_conv_plain,
     [](const tracea_isa_table& t) { return t.conv_plain != nullptr; }},
    {"gemm_bf16", check_gemm_bf16, run_gemm,
     [](const tracea_isa_table& t) { return t.gemm_bf16 != nullptr; }},
    {"round_bf16", check_round, run_round,
     [](const tracea_isa_table& t) { return t.round_bf16 != nullptr; }},
    {"reduce", check_reduce, run_reduce,
     [](const tracea_isa_table& t) { return t.reduce_rows != nullptr; }},
    {"softmax", check_softmax, run_softmax,
     [](const tracea_isa_table& t) { return t.softmax_rows != nullptr; }},
    {"channel_norm", check_channel_norm, run_channel_norm,
     [](const tracea_isa_table& t) { return t.norm_group != nullptr; }},
    {"copy", check_copy, run_copy, [](const tracea_isa_table& t) { return t.copy != nullptr; }},
    {"recurrent", check_recurrent, run_recurrent,
     [](const tracea_isa_table& t) { return t.gru != nullptr; }},
    {"gemm_blocks", check_gemm_blocks, run_gemm_blocks,
     [](const tracea_isa_table& t) { return t.gemm_blocks && t.gemm_pack; }},
    {"attention_bf16", check_attention_bf16, run_attention,
     [](const tracea_isa_table& t) { return t.attention_bf16 != nullptr; }},
    {"conv_bf16", check_conv_bf16, run_conv, holds_conv_bf16},
    {"conv_stem_bf16", check_conv_stem_bf16, run_conv_stem, holds_conv_bf16},
    {"depthwise_bf16", check_depthwise_bf16, run_depthwise,
     [](const tracea_isa_table& t) { return t.depthwise_bf16 != nullptr; }},
    {"winograd_bf16", check_winograd_bf16, run_winograd,
     [](const tracea_isa_table& t) { return t.conv_bf16 && t.winograd_bf16_out; }},
    {"resize", check_resize, run_resize,
     [](const tracea_isa_table& t) { return t.resize != nullptr; }},
    {"deal", check_deal, run_deal, [](const tracea_isa_table& t) { return t.deal != nullptr; }},
    {"gemm_blocks_bf16", check_gemm_blocks_bf16, run_gemm_blocks,
     [](const tracea_isa_table& t) { return t.gemm_blocks_bf16 && t.gemm_pack; }},
    {"gemm_masked", check_gemm_masked, run_gemm_masked,
     [](const tracea_isa_table& t) { return t.gemm_masked != nullptr; }},
    {"gemm_masked_bf16", check_gemm_masked_bf16, run_gemm_masked,
     [](const tracea_isa_table& t) { return t.gemm_masked_bf16 != nullptr; }},
    {"gemm_int16", check_gemm_int16, run_gemm,
     [](const tracea_isa_table& t) { return t.gemm_int16 != nullptr; }},
    {"round_int16", check_round_int16, run_round_int16,
     [](const tracea_isa_table& t) { return t.round_int16 != nullptr; }},
    {"append", check_append, run_append, nullptr},
    {"gemm_bf16x2", check_gemm_bf16x2, run_gemm,
     [](const tracea_isa_table& t) { return t.gemm_bf16x2 != nullptr; }},
    {"round_bf16x2", check_round, run_round_bf16x2,
     [](const tracea_isa_table& t) { return t.round_bf16x2 != nullptr; }},
    {"conv_int16", check_conv_int16, run_conv, holds_conv_int16},
    {"round_images", check_round_images, run_round_images, holds_conv_int16},
    {"winograd_int16", check_winograd_int16, run_winograd,
     [](const tracea_isa_table& t) { return t.conv_int16 && t.winograd_int16_out; }},
    {"arg", check_arg, run_arg, [](const tracea_isa_table& t) { return t.arg_rows != nullptr; }},
    {"take", check_take, run_take, [](const tracea_isa_table&) { return true; }},
    {"conv_or_winograd", check_conv_or_winograd, run_conv_or_winograd,
     [](const tracea_isa_table& t) { return t.conv && t.winograd_out; }},
    {"top_k", check_top_k, run_top_k, [](const tracea_isa_table& t) { return t.top_k != nullptr; }},
    {"attention_rounded", check_attention, run_attention,
     [](const tracea_isa_table& t) { return t.attention && t.attention_bf16 && t.round_bf16; }},
    {"conv_or_winograd_bf16", check_conv_or_winograd_bf16, run_conv_or_winograd,
     [](const tracea_isa_table& t) { return t.conv_bf16 && t.winograd_bf16_out; }},
    {"conv_or_winograd_int16", check_conv_or_winograd_int16, run_conv_or_winograd,
     [](const tracea_isa_table& t) { return t.conv_int16 && t.winograd_int16_out; }},
    {"pool_bf16", check_pool_bf16, run_pool,
     [](const tracea_isa_table& t) { return t.pool_bf16 != nullptr; }},
    {"split_images", check_split_images, run_split_images, holds_conv_bf16x2},
    {"conv_bf16x2", check_conv_bf16x2, run_conv, holds_conv_bf16x2},
    {"grid", check_grid, run_grid, nullptr},
};

inline bool check_call(Call& call, Fault& fault) {
  const KernelDriver& driver = kDrivers[call.opcode - 1];
  Signature signature(call, fault, driver.name);
  if (!driver.check(signature)) return false;
  int32_t results = 0;  // a result may be left out
  for (int32_t i = 0; i < call.view_count; ++i) results += call.views[i].written;
  return results <= call.result_count || signature.fail("more results than it says");
}

inline bool run_call(Run& run, const Program& program, int32_t index, const int64_t* symbols,
                     const Memory* buffers) {
  const Call& call = program.calls[index];
  const KernelDriver& driver = kDrivers[call.opcode - 1];
  if (driver.held && !driver.held(*run.host.isa))
    return run.fault.fail("This library holds no kernel for %s.", driver.name);
  Box views[kMaxViews];
  for (int32_t i = 0; i < call.view_count; ++i)
    if (!find_view(run, call, index, i, symbols, buffers, &views[i])) return false;
  run.ahead = ahead_of(run, program, index, symbols, buffers);
  return driver.run(run, call, views) && !run.status;
}

}  // namespace tracea
