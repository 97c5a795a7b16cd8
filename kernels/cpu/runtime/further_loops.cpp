// The host loops that few models need: a unit by itself, since they take long to compile.
#include "runtime/arg_reduce.h"
#include "runtime/conv_nhwc.h"
#include "runtime/gemm_bitmap.h"
#include "runtime/gemm_block_sparse.h"
#include "runtime/gemm_nbits.h"
#include "runtime/host_loop.h"
#include "runtime/matmul_bytes.h"
#include "runtime/recurrent.h"
#include "runtime/top_k.h"

namespace tracea {

constexpr LoopTable kFurtherLoops = by_op({
    {kRecurrentOp, check_recurrent, run_recurrent},
    {kGemmBlockSparseOp, nullptr, run_gemm_block_sparse},
    {kGemmBitmapOp, nullptr, run_gemm_bitmap},
    {kArgReduceOp, check_arg_reduce, run_arg_reduce},
    {kTopKOp, nullptr, run_top_k},
    {kGemmNbitsOp, nullptr, run_gemm_nbits},
    {kConvNhwcOp, check_conv_nhwc, run_conv_nhwc},
    {kMatmulBytesOp, nullptr, run_matmul_bytes},
});
static_assert(has_all(kFurtherLoops, kFurtherUnit), "host_loop_units.py lists others");

const LoopTable further_loops = kFurtherLoops;

}  // namespace tracea
