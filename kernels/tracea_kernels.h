// The binary contract between the library's runtime (plans, drivers, threads) and its
// micro-kernels (arithmetic).  Kernels see pointers, sizes and strides; never ONNX Runtime.
//
// Conventions: strides count elements, not bytes.  Pointers need only element alignment.
// A kernel touches nothing outside the rows and columns it is given (masked tails), except the
// weight panels, which are padded to 16 columns.  Kernels keep no state: any number of threads may
// run one kernel at once.  Results do not depend on how a problem is cut into tiles.
#pragma once
#include <stdint.h>

#define TRACEA_PANEL 16       // columns of one packed weight panel: [ceil(N/16)][K][16]
#define TRACEA_MAX_OPERANDS 8  // of a chain
#define TRACEA_MAX_RESULTS 2
#define TRACEA_MAX_TABLES 4    // of an embedding

#ifdef __cplusplus
extern "C" {
#endif

// C[mr x n] = init + A[mr x k] * B[k x n] with n = 16 * (nv - 1) + last.
typedef struct {
  int64_t k;
  const float* a;      // element (i, k) of A lies at a + i * lda + k * a_step
  int64_t lda, a_step;
  const float* b;      // vector j of row r lies at b + j * b_panel + r * b_row
  int64_t b_panel;     // packed: k * 16; plain [K,N]: 16
  int64_t b_row;       // packed: 16;     plain [K,N]: its row stride
  const float* init;   // null for zero; a bias (init_stride 0); or earlier sums, which may be C
  int64_t init_stride;
  float* c;
  int64_t ldc;
  int32_t mr;          // 1 .. tracea_gemm_info.mr
  int32_t nv;          // 1 .. tracea_gemm_info.nv
  int32_t last;        // columns of the last panel, 1 .. 16; only those are stored
  int32_t b_exact;     // 1: B may not be read past column `last` (plain weights)
  const char* prefetch;        // null, or the first cache line wanted next
  int32_t prefetch_lines;      // lines to prefetch, spread over the k loop
} tracea_gemm_tile;
typedef void (*tracea_gemm_fn)(const tracea_gemm_tile*);

// C[m x n] = bias + A[m x k] * B[n x k] transposed, for few rows of A: both are read along k, B
// once and in the order of memory.
typedef struct {
  int64_t m, n, k;
  const float* a;
  int64_t lda;
  const float* b;
  int64_t ldb;
  const float* bias;   // n values, or null for zero
  float* c;
  int64_t ldc;
} tracea_gemm_dot_tile;
typedef void (*tracea_gemm_dot_fn)(const tracea_gemm_dot_tile*);

// Panels from a matrix of any strides: to[p * panel + r * 16 + j] = from[r * row + c * column] with
// column c = 16 * p + j, zero for c from `columns` on.
typedef struct {
  int64_t k, columns;
  const float* from;
  int64_t row, column;
  float* to;
  int64_t panel;
} tracea_gemm_pack_tile;
typedef void (*tracea_gemm_pack_fn)(const tracea_gemm_pack_tile*);

// y = x in bf16, rows of an even number of elements: a zero follows an odd one's last.
typedef struct {
  int64_t rows, cols;
  const float* x;
  int64_t x_stride;
  uint16_t* y;
  int64_t y_stride;
} tracea_round_tile;
typedef void (*tracea_round_fn)(const tracea_round_tile*);

// One elementwise chain over rows x cols.  Operand kinds and steps are compiled in:
// full and row operands advance by one element per column, col and scalar ones do not.
typedef struct {
  int64_t rows, cols;
  const void* in[TRACEA_MAX_OPERANDS];
  int64_t in_stride[TRACEA_MAX_OPERANDS];  // row stride: 0 for row and scalar operands
  void* out[TRACEA_MAX_RESULTS];           // may be the same memory as a full operand
  int64_t out_stride[TRACEA_MAX_RESULTS];
} tracea_chain_tile;
typedef void (*tracea_chain_fn)(const tracea_chain_tile*);

// y = (x - mean) / sqrt(var + eps) * gamma + beta over the last axis (layer), or
// y = x / sqrt(mean(x*x) + eps) * gamma (rms).  gamma, beta may be null.  y may be x.
typedef struct {
  int64_t rows, cols;
  const float* x;
  int64_t x_stride;
  const float* gamma;
  const float* beta;
  float eps;
  float* y;
  int64_t y_stride;
} tracea_norm_tile;
typedef void (*tracea_norm_fn)(const tracea_norm_tile*);

// y[r] = sum over tables t of row[t][r] (each a pointer to `cols` floats); rows are prefetched ahead.
typedef struct {
  int64_t rows, cols;
  int32_t tables;
  const float* const* row[TRACEA_MAX_TABLES];
  float* y;
  int64_t y_stride;
} tracea_gather_tile;
typedef void (*tracea_gather_fn)(const tracea_gather_tile*);

// Scaled dot-product attention for `heads` heads of q that share k and v, and query rows
// [0, queries) of each:
//   s = scale * q k^T, keys [0, keys); then softcap * tanh(s / softcap) if there is a cap
//   s = fill for keys from `seen + row * seen_step` on, if causal
//   y = softmax(s with the mask) v
// mask_kind: 0 none; 1 additive f32; 2 boolean bytes, true keeps the key (causal drops like false).
// A row whose keys are all masked by -inf or false gives zeros if zero_rows, else what ONNX
// Runtime's Softmax gives on a row of equal very low scores: the average (see kernels/README.md).
typedef struct {
  int64_t queries, keys, head, head_v;  // head: q/k width; head_v: v width; 1 .. 256
  int64_t heads;
  const float* q; int64_t q_stride, q_head;  // steps from row to row and from head to head;
  const float* k; int64_t k_stride, k_col;   // columns lie side by side, but either step of k is 1
  const float* v; int64_t v_stride;
  const void* mask; int64_t mask_row, mask_col, mask_head;  // mask_col is 0 or 1
  int64_t seen, seen_step;
  int32_t mask_kind, causal, zero_rows;
  int32_t direct;                        // 1: few queries; k is read in place, not packed
  float scale, fill, softcap;
  float* y; int64_t y_stride, y_head;
  void* scratch;                         // >= tracea_attention_scratch(...) bytes, 64-byte aligned
} tracea_attention_tile;
typedef void (*tracea_attention_fn)(const tracea_attention_tile*);
typedef int64_t (*tracea_attention_scratch_fn)(int64_t keys, int64_t head, int64_t head_v);

// Everything one instruction-set level offers; the generated table fills one per level, with null
// for kernels the library does not hold.
typedef struct {
  const char* isa;             // "scalar", "avx2", "avx512"
  int32_t gemm_mr, gemm_nv;    // largest register tile
  tracea_gemm_fn gemm;
  tracea_gemm_dot_fn gemm_dot;
  tracea_gemm_pack_fn gemm_pack;
  tracea_gemm_fn gemm_bf16, gemm_mixed;  // lanes of a tile are pairs of bf16, k counts pairs
  tracea_round_fn round_bf16;
  tracea_norm_fn norm_layer, norm_rms;
  tracea_gather_fn gather;
  tracea_attention_fn attention;
  tracea_attention_scratch_fn attention_scratch;
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
