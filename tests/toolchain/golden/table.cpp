#include "runtime/table.h"

extern "C" {
void tracea_f32_gemm_4x16__scalar(const tracea_gemm_tile*);
void tracea_f32_gemm_dot_4x16__scalar(const tracea_gemm_dot_tile*);
void tracea_f32_gemm_pack_4x16__scalar(const tracea_gemm_pack_tile*);
void tracea_f32_norm_layer_4x1__scalar(const tracea_norm_tile*);
void tracea_f32_norm_rms_4x1__scalar(const tracea_norm_tile*);
void tracea_f32_norm_group_4x1__scalar(const tracea_norm_tile*);
void tracea_f32_norm_columns_4x1__scalar(const tracea_norm_tile*);
void tracea_f32_chain_0ba9ea4be6701e84__scalar(const tracea_chain_tile*);
void tracea_f32_chain_115eed4f99ea72b9__scalar(const tracea_chain_tile*);
void tracea_f32_gemm_6x16__avx2(const tracea_gemm_tile*);
void tracea_f32_gemm_dot_6x16__avx2(const tracea_gemm_dot_tile*);
void tracea_f32_gemm_pack_6x16__avx2(const tracea_gemm_pack_tile*);
void tracea_f32_norm_layer_4x8__avx2(const tracea_norm_tile*);
void tracea_f32_norm_rms_4x8__avx2(const tracea_norm_tile*);
void tracea_f32_norm_group_4x8__avx2(const tracea_norm_tile*);
void tracea_f32_norm_columns_4x8__avx2(const tracea_norm_tile*);
void tracea_f32_chain_0ba9ea4be6701e84__avx2(const tracea_chain_tile*);
void tracea_f32_chain_115eed4f99ea72b9__avx2(const tracea_chain_tile*);
}

extern "C" const tracea_chain_type tracea_chain_types[] = {
    {840460417190862468, 1, 1,
     {0, 0, 0, 0, 0, 0, 0, 0}, {1, 0, 0, 0, 0, 0, 0, 0}, {1, 0}, 0, 0, {}, nullptr},
    {1251698672596054713, 2, 1,
     {0, 1, 0, 0, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0, 0, 0}, {1, 0}, 0, 0, {}, nullptr},
    {}};
extern "C" const int32_t tracea_chain_count = 2;
static const int64_t chain_keys[] = {840460417190862468, 1251698672596054713};

static const tracea_chain_fn chains_scalar[] = {tracea_f32_chain_0ba9ea4be6701e84__scalar, tracea_f32_chain_115eed4f99ea72b9__scalar};

static const tracea_chain_fn chains_avx2[] = {tracea_f32_chain_0ba9ea4be6701e84__avx2, tracea_f32_chain_115eed4f99ea72b9__avx2};

static const tracea_isa_table levels[] = {
    {"scalar", 4, 1, 4, 1, 4, 1, 3, 1, 2, 1, 2, tracea_f32_gemm_4x16__scalar, tracea_f32_gemm_dot_4x16__scalar, tracea_f32_gemm_pack_4x16__scalar, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, tracea_f32_norm_layer_4x1__scalar, tracea_f32_norm_rms_4x1__scalar, tracea_f32_norm_group_4x1__scalar, tracea_f32_norm_columns_4x1__scalar, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
     2, chain_keys, chains_scalar},
    {"avx2", 6, 1, 6, 1, 3, 1, 3, 1, 6, 1, 6, tracea_f32_gemm_6x16__avx2, tracea_f32_gemm_dot_6x16__avx2, tracea_f32_gemm_pack_6x16__avx2, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, tracea_f32_norm_layer_4x8__avx2, tracea_f32_norm_rms_4x8__avx2, tracea_f32_norm_group_4x8__avx2, tracea_f32_norm_columns_4x8__avx2, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
     2, chain_keys, chains_avx2}};

static const int32_t elements_0[] = {1, 1, 1, 1, 1};

static const int32_t elements_1[] = {1, 1, 1};

static const tracea_op_type types[] = {
    {"FusedGemm_b2", 3, 2, elements_0},
    {"FusedNorm_a1", 2, 1, elements_1}};

extern "C" const tracea::LoopTable* const tracea_loop_tables[] = {nullptr, nullptr, nullptr};
extern "C" const uint64_t tracea_table_digest = 4938875269727516075ULL;

extern "C" const tracea_library tracea_library_table = {
    "tracea.0123456789", 2, levels, 2, types};
