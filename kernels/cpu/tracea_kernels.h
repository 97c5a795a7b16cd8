// The binary contract between the library's runtime (plans, drivers, threads) and its
// micro-kernels (arithmetic).  Kernels see pointers, sizes and strides; never ONNX Runtime.
//
// Conventions: strides count elements, not bytes.  Pointers need only element alignment.
// A kernel touches nothing outside the rows and columns it is given (masked tails), except the
// weight panels, which are padded to 16 columns.  Kernels keep no state: any number of threads may
// run one kernel at once.  Results do not depend on how a problem is cut into tiles.
//
// What a kernel is handed is declared by what it goes through; here is the table of all of them.
#pragma once
#include "tracea_images.h"
#include "tracea_products.h"
#include "tracea_rows.h"

#ifdef __cplusplus
extern "C" {
#endif

// Everything one instruction-set level offers; the generated table fills one per level, with null
// for kernels the library does not hold.
typedef struct {
  const char* isa;             // its name in variants.py
  int32_t gemm_mr, gemm_nv;    // largest register tile
  int32_t pairs_mr, pairs_nv;  // the same of gemm_bf16
  int32_t conv_pixels, conv_nv;
  int32_t pairs_pixels;        // conv_pixels of conv_bf16
  tracea_gemm_fn gemm;
  tracea_gemm_dot_fn gemm_dot;
  tracea_gemm_pack_fn gemm_pack;
  tracea_gemm_fn gemm_bf16;              // lanes of a tile are pairs of bf16, k counts pairs
  tracea_gemm_end_fn gemm_bf16_end;
  tracea_gemm_fn gemm_mixed;             // the same with float32 on the left
  tracea_round_fn round_bf16;
  tracea_norm_fn norm_layer, norm_rms, norm_group, norm_columns;
  tracea_gather_fn gather;
  tracea_attention_fn attention;
  tracea_attention_scratch_fn attention_scratch;
  tracea_attention_ranges_fn attention_ranges;
  tracea_conv_fn conv, conv_narrow;
  tracea_depthwise_fn depthwise;
  tracea_pool_fn pool;
  tracea_block_fn block, unblock;
  tracea_conv_plain_fn conv_plain;
  tracea_winograd_in_fn winograd_in;
  tracea_winograd_out_fn winograd_out;
  tracea_reduce_fn reduce_rows, reduce_columns;
  tracea_softmax_fn softmax_rows, softmax_columns;
  tracea_copy_fn copy;
  tracea_recurrent_fn lstm, gru, gru_before;
  tracea_blocks_fn gemm_blocks;
  tracea_finite_fn all_finite;
  tracea_attention_fn attention_bf16;
  tracea_attention_scratch_fn attention_bf16_scratch;
  tracea_attention_ranges_fn attention_bf16_ranges;
  tracea_conv_fn conv_bf16;              // inputs are pairs of bf16, depth and strides count pairs
  tracea_conv_end_fn conv_bf16_end;
  tracea_conv_fn conv_stem_bf16;         // inputs are float32, results may be bf16
  tracea_stem_fn stem_split;
  tracea_depthwise_fn depthwise_bf16;    // strides of x count pairs
  tracea_winograd_in_fn winograd_bf16_in;    // x and v are bf16, their strides count pairs
  tracea_winograd_out_fn winograd_bf16_out;  // v is float32
  tracea_resize_fn resize;
  tracea_deal_fn deal;
  tracea_blocks_fn gemm_blocks_bf16;     // lanes are pairs of bf16, steps of k count pairs
  tracea_finite_fn all_finite_bf16;
  tracea_masked_fn gemm_masked;
  tracea_masked_fn gemm_masked_bf16;     // stored numbers are bf16, A is float32
  tracea_gemm_fn gemm_int16;             // lanes are pairs of integers, k counts pairs
  tracea_round_int16_fn round_int16;
  tracea_gemm_fn gemm_bf16x2;            // as gemm_bf16; upper and lower halves take turns along k
  tracea_gemm_end_fn gemm_bf16x2_end;
  tracea_round_fn round_bf16x2;          // rows of y are twice as long, filled up to whole turns
  tracea_conv_fn conv_int16;             // lanes are pairs of integers, depth and strides count pairs
  tracea_image_fn image_range, image_round;
  tracea_winograd_in_fn winograd_int16_in;   // x is float32; v integers, its plane counts pairs
  tracea_winograd_out_fn winograd_int16_out;
  tracea_arg_fn arg_rows, arg_columns;
  tracea_top_k_fn top_k;
  tracea_pool_fn pool_bf16;              // strides of x count pairs; maxima alone
  tracea_conv_fn conv_bf16x2;            // lanes are pairs: of x upper halves first, of w lower ones
  tracea_conv_end_fn conv_bf16x2_end;
  tracea_split_fn split_pixels;
  int32_t chains;              // entries in chain_key / chain
  const int64_t* chain_key;    // ascending
  const tracea_chain_fn* chain;
} tracea_isa_table;

// One custom-op type of this library.
typedef struct {
  const char* name;            // "FusedGemm_3f2a91"
  int32_t inputs, outputs;
  const int32_t* input_type;   // ONNX element codes
  const int32_t* output_type;
} tracea_op_type;

// The generated table (table.cpp): defined once per library, read by the runtime.
typedef struct {
  const char* domain;          // "tracea.<10 hex>"
  int32_t isas;                // levels present, lowest first
  const tracea_isa_table* isa;
  int32_t types;
  const tracea_op_type* type;
} tracea_library;
extern const tracea_library tracea_library_table;

#ifdef __cplusplus
}
#endif
