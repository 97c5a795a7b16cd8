// Functions of kernels, written by schema_header.py: edit exported_functions.py and variants.py.
#pragma once
#include "tracea_kernels.h"

// Everything one instruction-set level offers; the generated table fills one per level, with null
// for kernels the library does not hold.
struct tracea_isa_table {
  const char* isa;             // its name in variants.py
  int32_t gemm_mr, gemm_nv;    // largest register tile
  int32_t bf16_mr, bf16_nv;  // the same of gemm_bf16
  int32_t int8_mr, int8_nv;  // and of gemm_int8
  int32_t nbits_mr, nbits_nv;  // and of gemm_nbits
  int32_t conv_pixels, conv_nv;
  int32_t bf16_pixels;        // conv_pixels of conv_bf16
  void (*gemm)(const tracea_gemm_tile*);
  void (*gemm_dot)(const tracea_gemm_dot_tile*);
  void (*gemm_pack)(const tracea_gemm_pack_tile*);
  void (*gemm_bf16)(const tracea_gemm_tile*);  // each lane holds a pair of bf16; k is a number of pairs
  void (*gemm_bf16_end)(void);
  void (*gemm_weight_only_bf16)(const tracea_gemm_tile*);  // with float32 on the left
  void (*round_bf16)(const tracea_round_tile*);
  void (*gemm_int16)(const tracea_gemm_tile*);  // each lane holds a pair of integers; k is a number of pairs
  void (*round_int16)(const tracea_round_int16_tile*);
  void (*gemm_int8)(const tracea_gemm_tile*);  // each lane holds four bytes; k is a number of fours
  void (*sum_rows_int8)(const tracea_sum_rows_tile*);
  void (*depthwise_nhwc_int8)(const tracea_depthwise_bytes_tile*);
  void (*round_int8)(const tracea_round_int8_tile*);
  int32_t (*winograd_image_int8)(const tracea_winograd_image_tile*);  // 0: this level has none
  int32_t (*winograd_nhwc_int8)(const tracea_winograd_bytes_tile*);  // likewise
  void (*gemm_nbits)(const tracea_nbits_tile*);
  void (*unpack_nbits)(const tracea_nbits_unpack_tile*);
  int32_t (*round_nbits)(const tracea_nbits_round_tile*);
  void (*gemm_bf16x2)(const tracea_gemm_tile*);  // as gemm_bf16; upper and lower halves take turns along k
  void (*gemm_bf16x2_end)(void);
  void (*round_bf16x2)(const tracea_round_tile*);  // rows of y are twice as long, filled up to whole turns
  void (*norm_layer)(const tracea_norm_tile*);
  void (*norm_rms)(const tracea_norm_tile*);
  void (*norm_group)(const tracea_norm_tile*);
  void (*norm_columns)(const tracea_norm_tile*);
  void (*gather)(const tracea_gather_tile*);
  void (*copy)(const tracea_copy_tile*);
  void (*attention)(const tracea_attention_tile*);
  int64_t (*attention_scratch)(int64_t, int64_t, int64_t);
  void (*attention_ranges)(const tracea_attention_tile*, tracea_attention_range*);
  void (*attention_f32_by_f16)(const tracea_attention_tile*);  // k and v are fp16, and columns of k lie side by side
  int64_t (*attention_f32_by_f16_scratch)(int64_t, int64_t, int64_t);
  void (*attention_f32_by_f16_ranges)(const tracea_attention_tile*, tracea_attention_range*);
  void (*round_f32_by_f16)(const tracea_round_tile*);  // to fp16, any columns
  void (*attention_f32_by_bf16)(const tracea_attention_tile*);  // k and v are bf16, and columns of k lie side by side
  int64_t (*attention_f32_by_bf16_scratch)(int64_t, int64_t, int64_t);
  void (*attention_f32_by_bf16_ranges)(const tracea_attention_tile*, tracea_attention_range*);
  void (*round_f32_by_bf16)(const tracea_round_tile*);  // to bf16, any columns
  void (*attention_f32_by_i8)(const tracea_attention_tile*);  // k and v are int8, and columns of k lie side by side
  int64_t (*attention_f32_by_i8_scratch)(int64_t, int64_t, int64_t);
  void (*attention_f32_by_i8_ranges)(const tracea_attention_tile*, tracea_attention_range*);
  void (*round_f32_by_i8)(const tracea_round_tile*);  // to the nearest of the integers from -128 to 127, which y holds in bytes
  void (*attention_bf16)(const tracea_attention_tile*);
  int64_t (*attention_bf16_scratch)(int64_t, int64_t, int64_t);
  void (*attention_bf16_ranges)(const tracea_attention_tile*, tracea_attention_range*);
  void (*conv)(const tracea_conv_tile*);
  void (*conv_narrow)(const tracea_conv_tile*);
  void (*depthwise)(const tracea_depthwise_tile*);
  void (*conv_bf16)(const tracea_conv_tile*);  // inputs are pairs of bf16; depth and strides are in pairs
  void (*conv_bf16_end)(void);
  void (*conv_first_layer_bf16)(const tracea_conv_tile*);  // inputs are float32, results may be bf16
  int32_t (*first_layer_split)(const tracea_first_layer_line*);
  void (*conv_bf16x2)(const tracea_conv_tile*);  // each lane holds a pair: of x the upper half first, of w the lower
  void (*conv_bf16x2_end)(void);
  void (*split_pixels)(const tracea_split_tile*);
  void (*depthwise_bf16)(const tracea_depthwise_tile*);  // strides of x are in pairs of elements
  void (*winograd_bf16_in)(const tracea_winograd_in_tile*);  // x and v are bf16; their strides are in pairs
  void (*winograd_bf16_out)(const tracea_winograd_out_tile*);  // v is float32
  void (*conv_int16)(const tracea_conv_tile*);  // each lane holds a pair of integers; depth and strides are in pairs
  void (*image_range)(tracea_image_tile*);
  void (*image_round)(tracea_image_tile*);
  void (*winograd_int16_in)(const tracea_winograd_in_tile*);  // x is float32; v is integers, and its plane is in pairs
  void (*winograd_int16_out)(const tracea_winograd_out_tile*);
  void (*pool)(const tracea_pool_tile*);
  void (*pool_bf16)(const tracea_pool_tile*);  // strides of x are in pairs of elements; computes maxima only
  void (*resize)(const tracea_resize_tile*);
  void (*channel_shuffle)(const tracea_channel_shuffle_tile*);
  void (*reorder_to_nchw16c)(const tracea_reorder_tile*);
  void (*reorder_to_nchw)(const tracea_reorder_tile*);
  void (*conv_plain)(const tracea_conv_plain_tile*);
  void (*winograd_in)(const tracea_winograd_in_tile*);
  void (*winograd_out)(const tracea_winograd_out_tile*);
  void (*reduce_rows)(const tracea_reduce_tile*);
  void (*reduce_columns)(const tracea_reduce_tile*);
  void (*arg_reduce_rows)(const tracea_arg_reduce_tile*);
  void (*arg_reduce_columns)(const tracea_arg_reduce_tile*);
  void (*top_k)(const tracea_top_k_tile*);
  void (*softmax_rows)(const tracea_softmax_tile*);
  void (*softmax_columns)(const tracea_softmax_tile*);
  void (*lstm)(const tracea_recurrent_tile*);
  void (*gru)(const tracea_recurrent_tile*);
  void (*gru_before)(const tracea_recurrent_tile*);
  void (*gemm_block_sparse)(const tracea_block_sparse_tile*);
  int32_t (*all_finite)(const float*, int64_t);
  void (*gemm_block_sparse_bf16)(const tracea_block_sparse_tile*);  // each lane holds a pair of bf16; steps of k are in pairs
  int32_t (*all_finite_bf16)(const float*, int64_t);
  const void* (*gemm_bitmap)(const tracea_bitmap_tile*);
  const void* (*gemm_bitmap_bf16)(const tracea_bitmap_tile*);  // stored numbers are bf16, A is float32
  int32_t chains;              // entries in chain_key / chain
  const int64_t* chain_key;    // ascending
  const tracea_chain_fn* chain;
#if defined(__aarch64__)
  void (*gemm_f16)(const tracea_gemm_tile*);  // two rows of 16 numbers lie where the 16 pairs of gemm_bf16 do
  void (*round_f16)(const tracea_round_tile*);
  void (*conv_f16)(const tracea_conv_tile*);  // strides of x are in pairs; two rows of 16 filters lie where pairs do
  void (*round_pixels_f16)(const tracea_split_tile*);
#endif
};

namespace tracea {

// Whether a level has the kernels of a call, by opcode - 1; null: it needs none.
constexpr bool (*kHeld[])(const tracea_isa_table&) = {
    [](const tracea_isa_table& t) { return t.gemm != nullptr; },  // gemm
    [](const tracea_isa_table& t) { return t.norm_layer != nullptr; },  // norm
    nullptr,  // elementwise
    [](const tracea_isa_table& t) { return t.gather != nullptr; },  // embedding
    [](const tracea_isa_table& t) { return t.attention != nullptr; },  // attention
    [](const tracea_isa_table& t) { return t.conv != nullptr; },  // conv
    [](const tracea_isa_table& t) { return t.conv != nullptr; },  // conv_first_layer
    [](const tracea_isa_table& t) { return t.depthwise != nullptr; },  // depthwise
    [](const tracea_isa_table& t) { return t.conv != nullptr && t.winograd_in != nullptr; },  // winograd
    [](const tracea_isa_table& t) { return t.pool != nullptr; },  // pool
    [](const tracea_isa_table& t) { return t.pool != nullptr; },  // global_pool
    [](const tracea_isa_table& t) { return t.reorder_to_nchw16c != nullptr; },  // reorder_to_nchw16c
    [](const tracea_isa_table& t) { return t.reorder_to_nchw16c != nullptr; },  // reorder_to_nchw
    nullptr,  // zero_pad
    [](const tracea_isa_table& t) { return t.conv_plain != nullptr; },  // conv_plain
    [](const tracea_isa_table& t) { return t.gemm_bf16 != nullptr; },  // gemm_bf16
    [](const tracea_isa_table& t) { return t.gemm_bf16 != nullptr; },  // round_bf16
    [](const tracea_isa_table& t) { return t.reduce_rows != nullptr; },  // reduce
    [](const tracea_isa_table& t) { return t.softmax_rows != nullptr; },  // softmax
    [](const tracea_isa_table& t) { return t.norm_layer != nullptr; },  // channel_norm
    [](const tracea_isa_table& t) { return t.copy != nullptr; },  // copy
    [](const tracea_isa_table& t) { return t.lstm != nullptr; },  // recurrent
    [](const tracea_isa_table& t) { return t.gemm != nullptr && t.gemm_block_sparse != nullptr; },  // gemm_block_sparse
    [](const tracea_isa_table& t) { return t.attention_bf16 != nullptr; },  // attention_bf16
    [](const tracea_isa_table& t) { return t.conv_bf16 != nullptr; },  // conv_bf16
    [](const tracea_isa_table& t) { return t.conv_bf16 != nullptr; },  // conv_first_layer_bf16
    [](const tracea_isa_table& t) { return t.depthwise_bf16 != nullptr; },  // depthwise_bf16
    [](const tracea_isa_table& t) { return t.conv_bf16 != nullptr && t.winograd_bf16_in != nullptr; },  // winograd_bf16
    [](const tracea_isa_table& t) { return t.resize != nullptr; },  // resize
    [](const tracea_isa_table& t) { return t.channel_shuffle != nullptr; },  // channel_shuffle
    [](const tracea_isa_table& t) { return t.gemm != nullptr && t.gemm_block_sparse_bf16 != nullptr; },  // gemm_block_sparse_bf16
    [](const tracea_isa_table& t) { return t.gemm_bitmap != nullptr; },  // gemm_bitmap
    [](const tracea_isa_table& t) { return t.gemm_bitmap_bf16 != nullptr; },  // gemm_bitmap_bf16
    [](const tracea_isa_table& t) { return t.gemm_int16 != nullptr; },  // gemm_int16
    [](const tracea_isa_table& t) { return t.gemm_int16 != nullptr; },  // round_int16
    nullptr,  // kv_append
    [](const tracea_isa_table& t) { return t.gemm_bf16x2 != nullptr; },  // gemm_bf16x2
    [](const tracea_isa_table& t) { return t.gemm_bf16x2 != nullptr; },  // round_bf16x2
    [](const tracea_isa_table& t) { return t.conv_int16 != nullptr; },  // conv_int16
    [](const tracea_isa_table& t) { return t.conv_int16 != nullptr; },  // round_images_int16
    [](const tracea_isa_table& t) { return t.conv_int16 != nullptr && t.winograd_int16_in != nullptr; },  // winograd_int16
    [](const tracea_isa_table& t) { return t.arg_reduce_rows != nullptr; },  // arg_reduce
    nullptr,  // gather_elements
    [](const tracea_isa_table& t) { return t.conv != nullptr && t.winograd_in != nullptr; },  // conv_dispatch
    [](const tracea_isa_table& t) { return t.top_k != nullptr; },  // top_k
    [](const tracea_isa_table& t) { return t.attention != nullptr && t.attention_bf16 != nullptr && t.gemm_bf16 != nullptr; },  // attention_f32_as_bf16
    [](const tracea_isa_table& t) { return t.conv_bf16 != nullptr && t.winograd_bf16_in != nullptr; },  // conv_dispatch_bf16
    [](const tracea_isa_table& t) { return t.conv_int16 != nullptr && t.winograd_int16_in != nullptr; },  // conv_dispatch_int16
    [](const tracea_isa_table& t) { return t.pool_bf16 != nullptr; },  // pool_bf16
    [](const tracea_isa_table& t) { return t.conv_bf16x2 != nullptr; },  // round_images_bf16x2
    [](const tracea_isa_table& t) { return t.conv_bf16x2 != nullptr; },  // conv_bf16x2
    nullptr,  // iota
    nullptr,  // bytes_equal
    [](const tracea_isa_table& t) { return t.gemm_int8 != nullptr; },  // gemm_int8
    [](const tracea_isa_table& t) { return t.gemm_int8 != nullptr; },  // sum_rows
    [](const tracea_isa_table& t) { return t.gemm != nullptr && t.gemm_nbits != nullptr; },  // gemm_nbits
    [](const tracea_isa_table& t) { return t.gemm_int8 != nullptr; },  // conv_nhwc_int8
    nullptr,  // pool_nhwc_int8
    nullptr,  // gather_nbits
    [](const tracea_isa_table& t) { return t.gemm_int8 != nullptr; },  // round_int8
    [](const tracea_isa_table& t) { return t.attention_f32_by_f16 != nullptr; },  // attention_f32_by_f16
    [](const tracea_isa_table& t) { return t.attention_f32_by_f16 != nullptr; },  // kv_append_f16
    [](const tracea_isa_table& t) { return t.attention_f32_by_bf16 != nullptr; },  // attention_f32_by_bf16
    [](const tracea_isa_table& t) { return t.attention_f32_by_bf16 != nullptr; },  // kv_append_bf16
    [](const tracea_isa_table& t) { return t.attention_f32_by_i8 != nullptr; },  // attention_f32_by_i8
    [](const tracea_isa_table& t) { return t.attention_f32_by_i8 != nullptr; },  // kv_append_i8
    [](const tracea_isa_table& t) { return t.gemm_int8 != nullptr; },  // matmul_bytes
#if defined(__aarch64__)
    [](const tracea_isa_table& t) { return t.gemm_f16 != nullptr; },  // gemm_f16
    [](const tracea_isa_table& t) { return t.gemm_f16 != nullptr; },  // round_f16
    [](const tracea_isa_table& t) { return t.conv_f16 != nullptr; },  // conv_f16
    [](const tracea_isa_table& t) { return t.conv_f16 != nullptr; },  // round_images_f16
#endif
};

}  // namespace tracea
