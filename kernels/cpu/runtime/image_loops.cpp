// The host loops of images in blocks of channels: a unit by itself, since they take long to compile.
#include "runtime/channel_shuffle.h"
#include "runtime/conv.h"
#include "runtime/conv_first_layer.h"
#include "runtime/conv_plain.h"
#include "runtime/depthwise.h"
#include "runtime/host_loop.h"
#include "runtime/pool.h"
#include "runtime/reorder.h"
#include "runtime/resize.h"
#include "runtime/round_images_bf16x2.h"
#include "runtime/round_images_int16.h"
#include "runtime/winograd.h"

namespace tracea {

inline bool run_round_images(Run& run, const Call& call, const TensorView* views) {
  return call.opcode == kRoundImagesInt16 ? run_round_images_int16(run, call, views)
                                          : run_round_images_bf16x2(run, call, views);
}

constexpr LoopTable kImageLoops = by_op({
    {kConvOp, check_conv, run_conv},
    {kConvFirstLayerOp, nullptr, run_conv_first_layer},
    {kDepthwiseOp, nullptr, run_depthwise},
    {kWinogradOp, check_winograd, run_winograd},
    {kPoolOp, nullptr, run_pool},
    {kGlobalPoolOp, nullptr, run_global_pool},
    {kReorderToNchw16cOp, nullptr, run_reorder_to_nchw16c},
    {kReorderToNchwOp, nullptr, run_reorder_to_nchw},
    {kConvPlainOp, check_conv_plain, run_conv_plain},
    {kResizeOp, nullptr, run_resize},
    {kChannelShuffleOp, check_channel_shuffle, run_channel_shuffle},
    {kRoundImagesOp, nullptr, run_round_images},
    {kConvDispatchOp, check_winograd, run_conv_dispatch},
});
static_assert(has_all(kImageLoops, kImageUnit), "host_loop_units.py lists others");

const LoopTable image_loops = kImageLoops;

}  // namespace tracea
