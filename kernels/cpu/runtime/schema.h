// The records of kernel calls, written by schema_header.py: edit calls.py.
#pragma once
#include <stdint.h>

namespace tracea {

constexpr int64_t kMaxStep = 65536;
constexpr int64_t kMaxWindow = 1099511627776;
constexpr int64_t kMaxParts = 16;
constexpr int64_t kMaxTables = 4;
constexpr int64_t kMaxShuffled = 9;
constexpr int64_t kMaxShuffledChannels = 1048576;
constexpr int64_t kMaxCompared = 11;

enum Opcode : int32_t {
  kGemm = 1, kNorm, kElementwise, kEmbedding, kAttention, kConv, kConvFirstLayer, kDepthwise,
  kWinograd, kPool, kGlobalPool, kReorderToNchw16c, kReorderToNchw, kZeroPad, kConvPlain,
  kGemmBf16, kRoundBf16, kReduce, kSoftmax, kChannelNorm, kCopy, kRecurrent, kGemmBlockSparse,
  kAttentionBf16, kConvBf16, kConvFirstLayerBf16, kDepthwiseBf16, kWinogradBf16, kResize,
  kChannelShuffle, kGemmBlockSparseBf16, kGemmBitmap, kGemmBitmapBf16, kGemmInt16, kRoundInt16,
  kKvAppend, kGemmBf16x2, kRoundBf16x2, kConvInt16, kRoundImagesInt16, kWinogradInt16,
  kArgReduce, kGatherElements, kConvDispatch, kTopK, kAttentionF32AsBf16, kConvDispatchBf16,
  kConvDispatchInt16, kPoolBf16, kRoundImagesBf16x2, kConvBf16x2, kIota, kBytesEqual, kGemmInt8,
  kSumRows, kGemmNbits, kConvNhwcInt8, kPoolNhwcInt8, kGatherNbits, kRoundInt8,
  kAttentionF32ByF16, kKvAppendF16, kAttentionF32ByBf16, kKvAppendBf16, kAttentionF32ByI8,
  kKvAppendI8, kMatmulBytes, kGemmF16, kRoundF16, kConvF16, kRoundImagesF16
};
#if defined(__aarch64__)
constexpr int32_t kLastOpcode = 71;
#else
constexpr int32_t kLastOpcode = 67;
#endif
enum Op : int32_t {
  kGemmOp, kNormOp, kElementwiseOp, kEmbeddingOp, kAttentionOp, kConvOp, kConvFirstLayerOp,
  kDepthwiseOp, kWinogradOp, kPoolOp, kGlobalPoolOp, kReorderToNchw16cOp, kReorderToNchwOp,
  kZeroPadOp, kConvPlainOp, kRoundOp, kReduceOp, kSoftmaxOp, kChannelNormOp, kCopyOp,
  kRecurrentOp, kGemmBlockSparseOp, kResizeOp, kChannelShuffleOp, kGemmBitmapOp, kKvAppendOp,
  kRoundImagesOp, kArgReduceOp, kGatherElementsOp, kConvDispatchOp, kTopKOp, kIotaOp,
  kBytesEqualOp, kSumRowsOp, kGemmNbitsOp, kConvNhwcOp, kPoolNhwcOp, kGatherNbitsOp,
  kMatmulBytesOp
};
constexpr int32_t kOps = 39;
enum LoopUnit : uint8_t { kCommonUnit, kImageUnit, kFurtherUnit };
constexpr LoopUnit kLoopUnits[] = {  // by op
  kCommonUnit, kCommonUnit, kCommonUnit, kCommonUnit, kCommonUnit, kImageUnit, kImageUnit,
  kImageUnit, kImageUnit, kImageUnit, kImageUnit, kImageUnit, kImageUnit, kCommonUnit,
  kImageUnit, kCommonUnit, kCommonUnit, kCommonUnit, kCommonUnit, kCommonUnit, kFurtherUnit,
  kFurtherUnit, kImageUnit, kImageUnit, kFurtherUnit, kCommonUnit, kImageUnit, kFurtherUnit,
  kCommonUnit, kImageUnit, kFurtherUnit, kCommonUnit, kCommonUnit, kCommonUnit, kFurtherUnit,
  kFurtherUnit, kCommonUnit, kCommonUnit, kFurtherUnit
};

// Places among a call's whole numbers, floats and views, and words' numbers.
namespace gemm_call {
enum Int : int32_t { kLayout, kParts, kZero };
enum View : int32_t { kX, kW, kBias, kRowScales, kXZero = 3, kColumnScales, kRowSums = 4 };
enum Layout : int32_t {
  kLayoutPanels, kLayoutKn, kLayoutNk, kLayoutVnni2, kLayoutWeightOnlyBf16, kLayoutInt16 = 7,
  kLayoutBf16x2 = 10, kLayoutInt8, kLayoutF16
};
}
namespace norm_call {
enum Int : int32_t { kKind, kInts };
enum Float : int32_t { kEpsilon };
enum View : int32_t { kX, kGamma, kBeta, kY, kYBf16 };
enum Kind : int32_t { kKindLayer, kKindRms };
}
namespace elementwise_call {
enum View : int32_t { kX };
}
namespace embedding_call {
enum Int : int32_t { kCount, kIndexType, kInts };
enum View : int32_t { kTables };
enum IndexType : int32_t { kIndexTypeI32 = 6, kIndexTypeI64 };
}
namespace attention_call {
enum Int : int32_t {
  kMaskKind, kZeroRows, kOrder, kWindowLeft, kWindowRight, kGlobalKeys, kTileKind, kTileGrid,
  kInts = 11
};
enum Float : int32_t { kScale, kFill, kSoftcap, kBeyond };
enum View : int32_t { kQ, kK, kV, kMask, kTiles, kY };
enum MaskKind : int32_t { kMaskKindNone, kMaskKindAdd, kMaskKindBool };
enum ZeroRows : int32_t {
  kZeroRowsNone, kZeroRowsGuarded, kZeroRowsMasked, kZeroRowsLowest, kZeroRowsInfinite
};
enum Order : int32_t { kOrderNone, kOrderTop, kOrderBottom, kOrderPlaced };
enum TileKind : int32_t { kTileKindNone, kTileKindMask, kTileKindBound };
}
namespace conv_call {
enum Int : int32_t {
  kStrides, kDilations = 2, kGroups = 4, kOcTail, kIcTail, kZeros, kHalo = 11, kInts = 15
};
enum Float : int32_t { kLow, kHigh };
enum View : int32_t { kX, kW, kBias, kAdd, kImageScales, kFilterScales };
}
namespace conv_first_layer_call {
enum Int : int32_t { kStrides, kDilations = 2, kPads = 4, kOcTail = 8, kHalo, kInts = 13 };
enum Float : int32_t { kLow, kHigh };
enum View : int32_t { kX, kW, kBias, kAdd, kInputs };
}
namespace depthwise_call {
enum Int : int32_t {
  kStrides, kDilations = 2, kTail = 4, kColumns, kHalo = 7, kRoundedFilters = 11
};
enum Float : int32_t { kLow, kHigh };
enum View : int32_t { kX, kW, kBias, kAdd, kInputs };
}
namespace winograd_call {
enum Int : int32_t { kTile, kOcTail, kIcTail, kHalo, kInts = 7 };
enum Float : int32_t { kLow, kHigh };
enum View : int32_t { kX, kW, kBias, kAdd, kImageScales, kFilterScales };
}
namespace pool_call {
enum Int : int32_t {
  kKind, kKernel, kStrides = 3, kDilations = 5, kPads = 7, kHalo = 11, kInts = 15
};
enum View : int32_t { kX, kY };
enum Kind : int32_t { kKindMax, kKindAverage, kKindAverageInside };
}
namespace global_pool_call {
enum Int : int32_t { kTail, kKind, kInts };
enum View : int32_t { kX, kY };
enum Kind : int32_t { kKindMax, kKindAverage };
}
namespace reorder_to_nchw16c_call {
enum Int : int32_t { kTail, kHalo, kInts = 5 };
enum View : int32_t { kX, kY };
}
namespace reorder_to_nchw_call {
enum Int : int32_t { kTail, kInts };
enum View : int32_t { kX, kY };
}
namespace zero_pad_call {
enum Int : int32_t { kHalo, kInts = 4 };
enum View : int32_t { kY };
}
namespace conv_plain_call {
enum Int : int32_t { kGroups, kStrides };
enum View : int32_t { kX, kW, kBias, kInputs };
}
namespace round_call {
enum View : int32_t { kX, kFactors };
}
namespace reduce_call {
enum Int : int32_t { kKind, kMean, kAxes, kInts };
enum View : int32_t { kX };
enum Kind : int32_t { kKindSum, kKindAbsolutes, kKindSquares, kKindMax, kKindMin, kKindProduct };
}
namespace softmax_call {
enum Int : int32_t { kAxis, kLog, kInts };
enum View : int32_t { kX };
}
namespace channel_norm_call {
enum Int : int32_t { kKind, kGroups, kInts };
enum Float : int32_t { kEpsilon };
enum View : int32_t { kX, kGamma, kBeta, kY };
enum Kind : int32_t { kKindLayer, kKindRms };
}
namespace copy_call {
enum View : int32_t { kX, kY };
}
namespace recurrent_call {
enum Int : int32_t { kCell, kReverse, kInts };
enum View : int32_t { kP, kR, kRest, kH0, kC0, kH, kC, kY };
enum Cell : int32_t { kCellLstm, kCellGru, kCellGruResetBefore };
}
namespace gemm_block_sparse_call {
enum Int : int32_t { kParts, kInts };
enum View : int32_t { kX, kW, kBias, kIndex, kInputs };
}
namespace resize_call {
enum Int : int32_t { kCoordinates, kHalo, kInts = 5 };
enum Float : int32_t { kScales };
enum View : int32_t { kX, kY };
enum Coordinates : int32_t {
  kCoordinatesHalfPixel, kCoordinatesAsymmetric, kCoordinatesAlignCorners,
  kCoordinatesPytorchHalfPixel, kCoordinatesNearest
};
}
namespace channel_shuffle_call {
enum Int : int32_t { kGroups, kFirst, kChannels, kHalo, kPartChannels = 7 };
enum View : int32_t { kParts };
}
namespace gemm_bitmap_call {
enum Int : int32_t { kParts, kInts };
enum View : int32_t { kX, kW, kBias, kIndex, kInputs };
}
namespace kv_append_call {
enum View : int32_t { kX, kPast, kPositions, kY };
}
namespace round_images_call {
enum Int : int32_t { kTail, kHalo, kInts = 5 };
enum View : int32_t { kX, kY, kScales };
}
namespace arg_reduce_call {
enum Int : int32_t { kAxis, kSmallest, kLast, kInts };
enum View : int32_t { kX };
}
namespace gather_elements_call {
enum Int : int32_t { kIndexType, kInts };
enum View : int32_t { kX, kIndex, kY };
enum IndexType : int32_t { kIndexTypeI32 = 6, kIndexTypeI64 };
}
namespace conv_dispatch_call {
enum Int : int32_t { kTile, kOcTail, kIcTail, kHalo, kInts = 7 };
enum Float : int32_t { kLow, kHigh };
enum View : int32_t { kDirect, kDirectScales, kImageScales = 6, kFilterScales };
}
namespace top_k_call {
enum Int : int32_t { kSmallest, kInts };
enum View : int32_t { kX, kY, kIndex };
}
namespace iota_call {
enum Int : int32_t { kYType, kInts };
enum Float : int32_t { kStart, kSteps };
enum View : int32_t { kY };
enum YType : int32_t { kYTypeF32 = 1, kYTypeI32 = 6, kYTypeI64 };
}
namespace bytes_equal_call {
enum Int : int32_t { kCount, kFurther, kInts };
enum View : int32_t { kX };
}
namespace sum_rows_call {
enum View : int32_t { kX, kSums, kY };
}
namespace gemm_nbits_call {
enum Int : int32_t { kParts, kBits, kBlock, kZeros, kInt8Rows, kInts };
enum View : int32_t { kX, kW, kBias, kScales, kInputs };
enum Zeros : int32_t { kZerosMiddle, kZerosInteger, kZerosFloat };
}
namespace conv_nhwc_call {
enum Int : int32_t {
  kKernel, kStrides = 2, kDilations = 4, kPads = 6, kGroups = 10, kZero, kInts
};
enum View : int32_t { kX, kW, kXZero, kInputs };
}
namespace pool_nhwc_call {
enum Int : int32_t { kKernel, kStrides = 2, kDilations = 4, kPads = 6, kInts = 10 };
enum View : int32_t { kX, kY };
}
namespace gather_nbits_call {
enum Int : int32_t { kColumns, kBits, kBlock, kZeros, kInts };
enum View : int32_t { kW, kScales, kIds, kY };
enum Zeros : int32_t { kZerosMiddle, kZerosInteger, kZerosFloat };
}
namespace matmul_bytes_call {
enum Int : int32_t { kZero, kWZero, kInts };
enum View : int32_t { kX, kW, kInputs };
}

enum CallChain : uint8_t { kNoChain, kChainRequired, kEpilogue, kPrologue };
enum CallSchedule : uint8_t { kNoSchedule, kGemmSchedule, kConvSchedule, kTaskSchedule };

// How many views an operand stands for, where that is not an attribute's value.
enum Many : int32_t {
  kOnce = -1, kChainOperands = -2, kChainInputs = -3, kChainResults = -4, kPerNumber = -5
};

// Open: there are axes without name, as many in every open operand of a call.
enum Trait : uint32_t { kOpen = 1, kAnyRank = 2, kOptional = 4, kWritten = 8 };

// One whole number, `count` in a row, or, with count 0, a list as long as the call has it.
struct AttributeSpec {
  const char* name;
  int64_t low, high;  // both included
  int32_t count;
  uint32_t words;  // of an enumeration, the numbers that have a word; else 0
};
struct OperandSpec {
  const char* name;
  int32_t rank;    // axes that are named
  uint32_t traits;
  int32_t many;    // Many, or the place of the attribute that says it
  uint32_t types;  // by ONNX element code; 0: as the chain has it
};
struct CallSpec {
  const char* name;
  Op op;
  CallChain chain;
  CallSchedule schedule;
  uint8_t attributes, floats, operands;  // attributes of whole numbers, single floats
  int8_t parts;     // the place of the number of results, or -1: one, or as many as the chain has
  bool float_list;  // behind the single floats
  const AttributeSpec* attribute;
  const OperandSpec* operand;
};

constexpr AttributeSpec kGemmInts[] = {
    {"layout", 0, 2, 1, 0x7},
    {"parts", 1, 16, 1, 0x0},
};
constexpr OperandSpec kGemmOperands[] = {
    {"x", 2, kOpen, kOnce, 0x2},
    {"w", 0, kAnyRank, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"inputs", 2, kOpen, kChainInputs, 0x0},
    {"y", 2, kOpen | kWritten, kChainResults, 0x0},
};
constexpr AttributeSpec kNormInts[] = {
    {"kind", 0, 1, 1, 0x3},
};
constexpr OperandSpec kNormOperands[] = {
    {"x", 2, 0, kOnce, 0x2},
    {"gamma", 1, kOptional, kOnce, 0x2},
    {"beta", 1, kOptional, kOnce, 0x2},
    {"y", 2, kOptional | kWritten, kOnce, 0x2},
    {"y_bf16", 2, kOptional | kWritten, kOnce, 0x10000},
};
constexpr OperandSpec kElementwiseOperands[] = {
    {"x", 0, kOpen, kChainOperands, 0x0},
    {"y", 0, kOpen | kWritten, kChainResults, 0x0},
};
constexpr AttributeSpec kEmbeddingInts[] = {
    {"count", 1, 4, 1, 0x0},
    {"index_type", 6, 7, 1, 0xc0},
};
constexpr OperandSpec kEmbeddingOperands[] = {
    {"tables", 2, 0, 0, 0x2},
    {"ids", 0, kOpen, 0, 0xc0},
    {"y", 1, kOpen | kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kAttentionInts[] = {
    {"mask_kind", 0, 2, 1, 0x7},
    {"zero_rows", 0, 4, 1, 0x1f},
    {"order", 0, 3, 1, 0xf},
    {"window_left", -1, 1099511627776, 1, 0x0},
    {"window_right", 0, 1099511627776, 1, 0x0},
    {"global_keys", 0, 1099511627776, 1, 0x0},
    {"tile_kind", 0, 2, 1, 0x7},
    {"tile_grid", 0, 2147483647, 4, 0x0},
};
constexpr OperandSpec kAttentionOperands[] = {
    {"q", 4, 0, kOnce, 0x2},
    {"k", 4, 0, kOnce, 0x2},
    {"v", 4, 0, kOnce, 0x2},
    {"mask", 0, kAnyRank | kOptional, kOnce, 0x282},
    {"tiles", 1, kOptional, kOnce, 0x40},
    {"y", 4, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kConvInts[] = {
    {"strides", 1, 65536, 2, 0x0},
    {"dilations", 1, 65536, 2, 0x0},
    {"groups", 1, 65536, 1, 0x0},
    {"oc_tail", 1, 16, 1, 0x0},
    {"ic_tail", 1, 16, 1, 0x0},
    {"zeros", 0, 65536, 4, 0x0},
    {"halo", 0, 65536, 4, 0x0},
};
constexpr OperandSpec kConvOperands[] = {
    {"x", 5, 0, kOnce, 0x2},
    {"w", 6, 0, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x2},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kConvFirstLayerInts[] = {
    {"strides", 1, 65536, 2, 0x0},
    {"dilations", 1, 65536, 2, 0x0},
    {"pads", 0, 65536, 4, 0x0},
    {"oc_tail", 1, 16, 1, 0x0},
    {"halo", 0, 65536, 4, 0x0},
};
constexpr OperandSpec kConvFirstLayerOperands[] = {
    {"x", 4, 0, kOnce, 0x2},
    {"w", 5, 0, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x2},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kDepthwiseInts[] = {
    {"strides", 1, 65536, 2, 0x0},
    {"dilations", 1, 65536, 2, 0x0},
    {"tail", 1, 16, 1, 0x0},
    {"columns", 0, 65536, 2, 0x0},
    {"halo", 0, 65536, 4, 0x0},
};
constexpr OperandSpec kDepthwiseOperands[] = {
    {"x", 5, 0, kOnce, 0x2},
    {"w", 4, 0, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x2},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kWinogradInts[] = {
    {"tile", 2, 4, 1, 0x14},
    {"oc_tail", 1, 16, 1, 0x0},
    {"ic_tail", 1, 16, 1, 0x0},
    {"halo", 0, 65536, 4, 0x0},
};
constexpr OperandSpec kWinogradOperands[] = {
    {"x", 5, 0, kOnce, 0x2},
    {"w", 5, 0, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x2},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kPoolInts[] = {
    {"kind", 0, 2, 1, 0x7},
    {"kernel", 1, 65536, 2, 0x0},
    {"strides", 1, 65536, 2, 0x0},
    {"dilations", 1, 65536, 2, 0x0},
    {"pads", 0, 65536, 4, 0x0},
    {"halo", 0, 65536, 4, 0x0},
};
constexpr OperandSpec kPoolOperands[] = {
    {"x", 5, 0, kOnce, 0x2},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kGlobalPoolInts[] = {
    {"tail", 1, 16, 1, 0x0},
    {"kind", 0, 1, 1, 0x3},
};
constexpr OperandSpec kGlobalPoolOperands[] = {
    {"x", 5, 0, kOnce, 0x2},
    {"y", 2, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kReorderToNchw16cInts[] = {
    {"tail", 1, 16, 1, 0x0},
    {"halo", 0, 65536, 4, 0x0},
};
constexpr OperandSpec kReorderToNchw16cOperands[] = {
    {"x", 4, 0, kOnce, 0x2},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kReorderToNchwInts[] = {
    {"tail", 1, 16, 1, 0x0},
};
constexpr OperandSpec kReorderToNchwOperands[] = {
    {"x", 5, 0, kOnce, 0x2},
    {"y", 4, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kZeroPadInts[] = {
    {"halo", 0, 65536, 4, 0x0},
};
constexpr OperandSpec kZeroPadOperands[] = {
    {"y", 5, kWritten, kOnce, 0x10002},
};
constexpr AttributeSpec kConvPlainInts[] = {
    {"groups", 1, 65536, 1, 0x0},
    {"strides", 1, 65536, 0, 0x0},
    {"dilations", 1, 65536, 0, 0x0},
    {"starts", 0, 65536, 0, 0x0},
};
constexpr OperandSpec kConvPlainOperands[] = {
    {"x", 2, kOpen, kOnce, 0x2},
    {"w", 2, kOpen, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"inputs", 2, kOpen, kChainInputs, 0x0},
    {"y", 2, kOpen | kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kGemmBf16Ints[] = {
    {"layout", 3, 4, 1, 0x18},
    {"parts", 1, 16, 1, 0x0},
};
constexpr OperandSpec kGemmBf16Operands[] = {
    {"x", 2, kOpen, kOnce, 0x10002},
    {"w", 0, kAnyRank, kOnce, 0x10000},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"inputs", 2, kOpen, kChainInputs, 0x0},
    {"y", 2, kOpen | kWritten, kChainResults, 0x0},
};
constexpr OperandSpec kRoundBf16Operands[] = {
    {"x", 2, 0, kOnce, 0x2},
    {"y", 2, kWritten, kOnce, 0x10000},
};
constexpr AttributeSpec kReduceInts[] = {
    {"kind", 0, 5, 1, 0x3f},
    {"mean", 0, 1, 1, 0x0},
    {"axes", 0, 255, 1, 0x0},
};
constexpr OperandSpec kReduceOperands[] = {
    {"x", 0, kOpen, kChainOperands, 0x0},
    {"y", 0, kOpen | kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kSoftmaxInts[] = {
    {"axis", 0, 7, 1, 0x0},
    {"log", 0, 1, 1, 0x0},
};
constexpr AttributeSpec kChannelNormInts[] = {
    {"kind", 0, 1, 1, 0x3},
    {"groups", 0, 2147483647, 1, 0x0},
};
constexpr OperandSpec kChannelNormOperands[] = {
    {"x", 3, 0, kOnce, 0x2},
    {"gamma", 1, kOptional, kOnce, 0x2},
    {"beta", 1, kOptional, kOnce, 0x2},
    {"y", 3, kWritten, kOnce, 0x2},
};
constexpr OperandSpec kCopyOperands[] = {
    {"x", 0, kOpen, kOnce, 0xfffffffe},
    {"y", 0, kOpen | kWritten, kOnce, 0xfffffffe},
};
constexpr AttributeSpec kRecurrentInts[] = {
    {"cell", 0, 2, 1, 0x7},
    {"reverse", 0, 3, 1, 0x0},
};
constexpr OperandSpec kRecurrentOperands[] = {
    {"p", 4, 0, kOnce, 0x2},
    {"r", 4, 0, kOnce, 0x2},
    {"rest", 2, kOptional, kOnce, 0x2},
    {"h0", 3, kOptional, kOnce, 0x2},
    {"c0", 3, kOptional, kOnce, 0x2},
    {"h", 3, kOptional | kWritten, kOnce, 0x2},
    {"c", 3, kOptional | kWritten, kOnce, 0x2},
    {"y", 4, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kGemmBlockSparseInts[] = {
    {"parts", 1, 16, 1, 0x0},
};
constexpr OperandSpec kGemmBlockSparseOperands[] = {
    {"x", 2, 0, kOnce, 0x2},
    {"w", 3, 0, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"index", 1, 0, kOnce, 0x40},
    {"inputs", 2, 0, kChainInputs, 0x0},
    {"y", 2, kWritten, kChainResults, 0x0},
};
constexpr OperandSpec kAttentionBf16Operands[] = {
    {"q", 4, 0, kOnce, 0x10000},
    {"k", 4, 0, kOnce, 0x10000},
    {"v", 4, 0, kOnce, 0x10000},
    {"mask", 0, kAnyRank | kOptional, kOnce, 0x282},
    {"tiles", 1, kOptional, kOnce, 0x40},
    {"y", 4, kWritten, kOnce, 0x10002},
};
constexpr OperandSpec kConvBf16Operands[] = {
    {"x", 5, 0, kOnce, 0x10000},
    {"w", 7, 0, kOnce, 0x10000},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x10002},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x10002},
};
constexpr OperandSpec kConvFirstLayerBf16Operands[] = {
    {"x", 4, 0, kOnce, 0x2},
    {"w", 5, 0, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x10002},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x10002},
};
constexpr AttributeSpec kDepthwiseBf16Ints[] = {
    {"strides", 1, 65536, 2, 0x0},
    {"dilations", 1, 65536, 2, 0x0},
    {"tail", 1, 16, 1, 0x0},
    {"columns", 0, 65536, 2, 0x0},
    {"halo", 0, 65536, 4, 0x0},
    {"rounded_filters", 0, 1, 1, 0x0},
};
constexpr OperandSpec kDepthwiseBf16Operands[] = {
    {"x", 5, 0, kOnce, 0x10000},
    {"w", 4, 0, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x10002},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x10002},
};
constexpr OperandSpec kWinogradBf16Operands[] = {
    {"x", 5, 0, kOnce, 0x10000},
    {"w", 6, 0, kOnce, 0x10000},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x10002},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x10002},
};
constexpr AttributeSpec kResizeInts[] = {
    {"coordinates", 0, 4, 1, 0x1f},
    {"halo", 0, 65536, 4, 0x0},
};
constexpr AttributeSpec kChannelShuffleInts[] = {
    {"groups", 1, 1048576, 1, 0x0},
    {"first", 0, 9437184, 1, 0x0},
    {"channels", 1, 9437184, 1, 0x0},
    {"halo", 0, 65536, 4, 0x0},
    {"part_channels", 1, 1048576, 0, 0x0},
};
constexpr OperandSpec kChannelShuffleOperands[] = {
    {"parts", 5, 0, kPerNumber, 0x2},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr OperandSpec kGemmBlockSparseBf16Operands[] = {
    {"x", 2, 0, kOnce, 0x10000},
    {"w", 4, 0, kOnce, 0x10000},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"index", 1, 0, kOnce, 0x40},
    {"inputs", 2, 0, kChainInputs, 0x0},
    {"y", 2, kWritten, kChainResults, 0x0},
};
constexpr OperandSpec kGemmBitmapOperands[] = {
    {"x", 2, 0, kOnce, 0x2},
    {"w", 1, 0, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"index", 2, 0, kOnce, 0x40},
    {"inputs", 2, 0, kChainInputs, 0x0},
    {"y", 2, kWritten, kChainResults, 0x0},
};
constexpr OperandSpec kGemmBitmapBf16Operands[] = {
    {"x", 2, 0, kOnce, 0x2},
    {"w", 1, 0, kOnce, 0x10000},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"index", 2, 0, kOnce, 0x40},
    {"inputs", 2, 0, kChainInputs, 0x0},
    {"y", 2, kWritten, kChainResults, 0x0},
};
constexpr AttributeSpec kGemmInt16Ints[] = {
    {"layout", 7, 7, 1, 0x80},
    {"parts", 1, 16, 1, 0x0},
};
constexpr OperandSpec kGemmInt16Operands[] = {
    {"x", 2, kOpen, kOnce, 0x20},
    {"w", 0, kAnyRank, kOnce, 0x20},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"row_scales", 1, 0, kOnce, 0x2},
    {"column_scales", 1, 0, kOnce, 0x2},
    {"inputs", 2, kOpen, kChainInputs, 0x0},
    {"y", 2, kOpen | kWritten, kChainResults, 0x0},
};
constexpr OperandSpec kRoundInt16Operands[] = {
    {"x", 2, 0, kOnce, 0x2},
    {"y", 2, kWritten, kOnce, 0x20},
    {"scales", 1, kWritten, kOnce, 0x2},
};
constexpr OperandSpec kKvAppendOperands[] = {
    {"x", 4, 0, kOnce, 0x2},
    {"past", 4, kOptional, kOnce, 0x2},
    {"positions", 1, 0, kOnce, 0x80},
    {"y", 4, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kGemmBf16x2Ints[] = {
    {"layout", 10, 10, 1, 0x400},
    {"parts", 1, 16, 1, 0x0},
};
constexpr OperandSpec kGemmBf16x2Operands[] = {
    {"x", 2, kOpen, kOnce, 0x10000},
    {"w", 0, kAnyRank, kOnce, 0x10000},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"inputs", 2, kOpen, kChainInputs, 0x0},
    {"y", 2, kOpen | kWritten, kChainResults, 0x0},
};
constexpr OperandSpec kConvInt16Operands[] = {
    {"x", 5, 0, kOnce, 0x20},
    {"w", 7, 0, kOnce, 0x20},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x2},
    {"image_scales", 1, 0, kOnce, 0x2},
    {"filter_scales", 1, 0, kOnce, 0x2},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr OperandSpec kRoundImagesInt16Operands[] = {
    {"x", 5, 0, kOnce, 0x2},
    {"y", 5, kOptional | kWritten, kOnce, 0x20},
    {"scales", 1, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kWinogradInt16Ints[] = {
    {"tile", 2, 2, 1, 0x4},
    {"oc_tail", 1, 16, 1, 0x0},
    {"ic_tail", 1, 16, 1, 0x0},
    {"halo", 0, 65536, 4, 0x0},
};
constexpr OperandSpec kWinogradInt16Operands[] = {
    {"x", 5, 0, kOnce, 0x2},
    {"w", 6, 0, kOnce, 0x20},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x2},
    {"image_scales", 1, 0, kOnce, 0x2},
    {"filter_scales", 1, 0, kOnce, 0x2},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kArgReduceInts[] = {
    {"axis", 0, 7, 1, 0x0},
    {"smallest", 0, 1, 1, 0x0},
    {"last", 0, 1, 1, 0x0},
};
constexpr OperandSpec kArgReduceOperands[] = {
    {"x", 0, kOpen, kChainOperands, 0x0},
    {"y", 0, kOpen | kWritten, kOnce, 0x80},
};
constexpr AttributeSpec kGatherElementsInts[] = {
    {"index_type", 6, 7, 1, 0xc0},
};
constexpr OperandSpec kGatherElementsOperands[] = {
    {"x", 0, kOpen, kOnce, 0x2},
    {"index", 0, kOpen, kOnce, 0xc0},
    {"y", 0, kOpen | kWritten, kOnce, 0x2},
};
constexpr OperandSpec kConvDispatchOperands[] = {
    {"direct", 6, 0, kOnce, 0x2},
    {"x", 5, 0, kOnce, 0x2},
    {"w", 5, 0, kOnce, 0x2},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x2},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kTopKInts[] = {
    {"smallest", 0, 1, 1, 0x0},
};
constexpr OperandSpec kTopKOperands[] = {
    {"x", 2, 0, kOnce, 0x2},
    {"y", 2, kWritten, kOnce, 0x2},
    {"index", 2, kWritten, kOnce, 0x80},
};
constexpr OperandSpec kConvDispatchBf16Operands[] = {
    {"direct", 7, 0, kOnce, 0x10000},
    {"x", 5, 0, kOnce, 0x10000},
    {"w", 6, 0, kOnce, 0x10000},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x10002},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x10002},
};
constexpr OperandSpec kConvDispatchInt16Operands[] = {
    {"direct", 7, 0, kOnce, 0x20},
    {"direct_scales", 1, 0, kOnce, 0x2},
    {"x", 5, 0, kOnce, 0x2},
    {"w", 6, 0, kOnce, 0x20},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x2},
    {"image_scales", 1, 0, kOnce, 0x2},
    {"filter_scales", 1, 0, kOnce, 0x2},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr AttributeSpec kPoolBf16Ints[] = {
    {"kind", 0, 0, 1, 0x1},
    {"kernel", 1, 65536, 2, 0x0},
    {"strides", 1, 65536, 2, 0x0},
    {"dilations", 1, 65536, 2, 0x0},
    {"pads", 0, 65536, 4, 0x0},
    {"halo", 0, 65536, 4, 0x0},
};
constexpr OperandSpec kPoolBf16Operands[] = {
    {"x", 5, 0, kOnce, 0x10000},
    {"y", 5, kWritten, kOnce, 0x10000},
};
constexpr OperandSpec kRoundImagesBf16x2Operands[] = {
    {"x", 5, 0, kOnce, 0x2},
    {"y", 5, kWritten, kOnce, 0x10000},
};
constexpr AttributeSpec kIotaInts[] = {
    {"y_type", 1, 7, 1, 0xc2},
};
constexpr OperandSpec kIotaOperands[] = {
    {"y", 0, kOpen | kWritten, kOnce, 0xc2},
};
constexpr AttributeSpec kBytesEqualInts[] = {
    {"count", 1, 11, 1, 0x0},
    {"further", 0, 1, 1, 0x0},
};
constexpr OperandSpec kBytesEqualOperands[] = {
    {"x", 1, 0, 0, 0xfffffffe},
    {"reference", 1, 0, 0, 0xfffffffe},
    {"y", 1, kWritten, kOnce, 0x200},
};
constexpr AttributeSpec kGemmInt8Ints[] = {
    {"layout", 11, 11, 1, 0x800},
    {"parts", 1, 16, 1, 0x0},
    {"zero", -128, 255, 1, 0x0},
};
constexpr OperandSpec kGemmInt8Operands[] = {
    {"x", 2, kOpen, kOnce, 0xc},
    {"w", 0, kAnyRank, kOnce, 0x8},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"x_zero", 1, kOptional, kOnce, 0xc},
    {"row_sums", 1, kOptional, kOnce, 0x40},
    {"inputs", 2, kOpen, kChainInputs, 0x0},
    {"y", 2, kOpen | kWritten, kChainResults, 0x0},
};
constexpr OperandSpec kSumRowsOperands[] = {
    {"x", 2, 0, kOnce, 0xc},
    {"sums", 1, kOptional | kWritten, kOnce, 0x40},
    {"y", 2, kOptional | kWritten, kOnce, 0xc},
};
constexpr AttributeSpec kGemmNbitsInts[] = {
    {"parts", 1, 16, 1, 0x0},
    {"bits", 2, 8, 1, 0x114},
    {"block", 16, 32768, 1, 0x0},
    {"zeros", 0, 2, 1, 0x7},
    {"int8_rows", 0, 1, 1, 0x0},
};
constexpr OperandSpec kGemmNbitsOperands[] = {
    {"x", 2, 0, kOnce, 0x2},
    {"w", 2, 0, kOnce, 0x4},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"scales", 4, 0, kOnce, 0x2},
    {"inputs", 2, 0, kChainInputs, 0x0},
    {"y", 2, kWritten, kChainResults, 0x0},
};
constexpr AttributeSpec kConvNhwcInt8Ints[] = {
    {"kernel", 1, 65536, 2, 0x0},
    {"strides", 1, 65536, 2, 0x0},
    {"dilations", 1, 65536, 2, 0x0},
    {"pads", 0, 65536, 4, 0x0},
    {"groups", 1, 65536, 1, 0x0},
    {"zero", -128, 255, 1, 0x0},
};
constexpr OperandSpec kConvNhwcInt8Operands[] = {
    {"x", 4, 0, kOnce, 0xc},
    {"w", 4, 0, kOnce, 0x8},
    {"x_zero", 1, kOptional, kOnce, 0xc},
    {"inputs", 2, 0, kChainInputs, 0x0},
    {"y", 2, kWritten, kChainResults, 0x0},
};
constexpr AttributeSpec kPoolNhwcInt8Ints[] = {
    {"kernel", 1, 65536, 2, 0x0},
    {"strides", 1, 65536, 2, 0x0},
    {"dilations", 1, 65536, 2, 0x0},
    {"pads", 0, 65536, 4, 0x0},
};
constexpr OperandSpec kPoolNhwcInt8Operands[] = {
    {"x", 4, 0, kOnce, 0xc},
    {"y", 4, kWritten, kOnce, 0xc},
};
constexpr AttributeSpec kGatherNbitsInts[] = {
    {"columns", 1, 2147483647, 1, 0x0},
    {"bits", 2, 8, 1, 0x114},
    {"block", 16, 32768, 1, 0x0},
    {"zeros", 0, 2, 1, 0x7},
};
constexpr OperandSpec kGatherNbitsOperands[] = {
    {"w", 2, 0, kOnce, 0x4},
    {"scales", 4, 0, kOnce, 0x2},
    {"ids", 1, 0, kOnce, 0xc0},
    {"y", 2, kWritten, kOnce, 0x2},
};
constexpr OperandSpec kRoundInt8Operands[] = {
    {"x", 2, 0, kOnce, 0x2},
    {"factors", 1, kOptional, kOnce, 0x2},
    {"y", 2, kWritten, kOnce, 0x4},
    {"scales", 1, kWritten, kOnce, 0x2},
};
constexpr OperandSpec kAttentionF32ByF16Operands[] = {
    {"q", 4, 0, kOnce, 0x2},
    {"k", 4, 0, kOnce, 0x400},
    {"v", 4, 0, kOnce, 0x400},
    {"mask", 0, kAnyRank | kOptional, kOnce, 0x282},
    {"tiles", 1, kOptional, kOnce, 0x40},
    {"y", 4, kWritten, kOnce, 0x2},
};
constexpr OperandSpec kKvAppendF16Operands[] = {
    {"x", 4, 0, kOnce, 0x2},
    {"past", 4, kOptional, kOnce, 0x400},
    {"positions", 1, 0, kOnce, 0x80},
    {"y", 4, kWritten, kOnce, 0x400},
};
constexpr OperandSpec kAttentionF32ByBf16Operands[] = {
    {"q", 4, 0, kOnce, 0x2},
    {"k", 4, 0, kOnce, 0x10000},
    {"v", 4, 0, kOnce, 0x10000},
    {"mask", 0, kAnyRank | kOptional, kOnce, 0x282},
    {"tiles", 1, kOptional, kOnce, 0x40},
    {"y", 4, kWritten, kOnce, 0x2},
};
constexpr OperandSpec kKvAppendBf16Operands[] = {
    {"x", 4, 0, kOnce, 0x2},
    {"past", 4, kOptional, kOnce, 0x10000},
    {"positions", 1, 0, kOnce, 0x80},
    {"y", 4, kWritten, kOnce, 0x10000},
};
constexpr OperandSpec kAttentionF32ByI8Operands[] = {
    {"q", 4, 0, kOnce, 0x2},
    {"k", 4, 0, kOnce, 0x8},
    {"v", 4, 0, kOnce, 0x8},
    {"mask", 0, kAnyRank | kOptional, kOnce, 0x282},
    {"tiles", 1, kOptional, kOnce, 0x40},
    {"y", 4, kWritten, kOnce, 0x2},
};
constexpr OperandSpec kKvAppendI8Operands[] = {
    {"x", 4, 0, kOnce, 0x2},
    {"past", 4, kOptional, kOnce, 0x8},
    {"positions", 1, 0, kOnce, 0x80},
    {"y", 4, kWritten, kOnce, 0x8},
};
constexpr AttributeSpec kMatmulBytesInts[] = {
    {"zero", -128, 255, 1, 0x0},
    {"w_zero", -128, 255, 1, 0x0},
};
constexpr OperandSpec kMatmulBytesOperands[] = {
    {"x", 2, kOpen, kOnce, 0xc},
    {"w", 2, kOpen, kOnce, 0xc},
    {"inputs", 2, kOpen, kChainInputs, 0x0},
    {"y", 2, kOpen | kWritten, kChainResults, 0x0},
};
constexpr AttributeSpec kGemmF16Ints[] = {
    {"layout", 12, 12, 1, 0x1000},
    {"parts", 1, 16, 1, 0x0},
};
constexpr OperandSpec kGemmF16Operands[] = {
    {"x", 2, kOpen, kOnce, 0x400},
    {"w", 0, kAnyRank, kOnce, 0x400},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"inputs", 2, kOpen, kChainInputs, 0x0},
    {"y", 2, kOpen | kWritten, kChainResults, 0x0},
};
constexpr OperandSpec kRoundF16Operands[] = {
    {"x", 2, 0, kOnce, 0x2},
    {"y", 2, kWritten, kOnce, 0x400},
};
constexpr OperandSpec kConvF16Operands[] = {
    {"x", 5, 0, kOnce, 0x400},
    {"w", 7, 0, kOnce, 0x400},
    {"bias", 1, kOptional, kOnce, 0x2},
    {"add", 5, kOptional, kOnce, 0x2},
    {"inputs", 5, 0, kChainInputs, 0x0},
    {"y", 5, kWritten, kOnce, 0x2},
};
constexpr OperandSpec kRoundImagesF16Operands[] = {
    {"x", 5, 0, kOnce, 0x2},
    {"y", 5, kWritten, kOnce, 0x400},
};
constexpr CallSpec kCalls[] = {  // by opcode - 1
    {"gemm", kGemmOp, kEpilogue, kGemmSchedule,
     2, 0, 5, 1, false, kGemmInts, kGemmOperands},
    {"norm", kNormOp, kNoChain, kNoSchedule,
     1, 1, 5, -1, false, kNormInts, kNormOperands},
    {"elementwise", kElementwiseOp, kChainRequired, kTaskSchedule,
     0, 0, 2, -1, false, nullptr, kElementwiseOperands},
    {"embedding", kEmbeddingOp, kNoChain, kNoSchedule,
     2, 0, 3, -1, false, kEmbeddingInts, kEmbeddingOperands},
    {"attention", kAttentionOp, kNoChain, kTaskSchedule,
     8, 4, 6, -1, false, kAttentionInts, kAttentionOperands},
    {"conv", kConvOp, kEpilogue, kConvSchedule,
     7, 2, 6, -1, false, kConvInts, kConvOperands},
    {"conv_first_layer", kConvFirstLayerOp, kEpilogue, kNoSchedule,
     5, 2, 6, -1, false, kConvFirstLayerInts, kConvFirstLayerOperands},
    {"depthwise", kDepthwiseOp, kEpilogue, kConvSchedule,
     5, 2, 6, -1, false, kDepthwiseInts, kDepthwiseOperands},
    {"winograd", kWinogradOp, kEpilogue, kConvSchedule,
     4, 2, 6, -1, false, kWinogradInts, kWinogradOperands},
    {"pool", kPoolOp, kNoChain, kNoSchedule,
     6, 0, 2, -1, false, kPoolInts, kPoolOperands},
    {"global_pool", kGlobalPoolOp, kNoChain, kNoSchedule,
     2, 0, 2, -1, false, kGlobalPoolInts, kGlobalPoolOperands},
    {"reorder_to_nchw16c", kReorderToNchw16cOp, kNoChain, kNoSchedule,
     2, 0, 2, -1, false, kReorderToNchw16cInts, kReorderToNchw16cOperands},
    {"reorder_to_nchw", kReorderToNchwOp, kNoChain, kNoSchedule,
     1, 0, 2, -1, false, kReorderToNchwInts, kReorderToNchwOperands},
    {"zero_pad", kZeroPadOp, kNoChain, kNoSchedule,
     1, 0, 1, -1, false, kZeroPadInts, kZeroPadOperands},
    {"conv_plain", kConvPlainOp, kEpilogue, kNoSchedule,
     4, 0, 5, -1, false, kConvPlainInts, kConvPlainOperands},
    {"gemm_bf16", kGemmOp, kEpilogue, kGemmSchedule,
     2, 0, 5, 1, false, kGemmBf16Ints, kGemmBf16Operands},
    {"round_bf16", kRoundOp, kNoChain, kNoSchedule,
     0, 0, 2, -1, false, nullptr, kRoundBf16Operands},
    {"reduce", kReduceOp, kPrologue, kNoSchedule,
     3, 0, 2, -1, false, kReduceInts, kReduceOperands},
    {"softmax", kSoftmaxOp, kPrologue, kNoSchedule,
     2, 0, 2, -1, false, kSoftmaxInts, kReduceOperands},
    {"channel_norm", kChannelNormOp, kNoChain, kNoSchedule,
     2, 1, 4, -1, false, kChannelNormInts, kChannelNormOperands},
    {"copy", kCopyOp, kNoChain, kNoSchedule,
     0, 0, 2, -1, false, nullptr, kCopyOperands},
    {"recurrent", kRecurrentOp, kNoChain, kNoSchedule,
     2, 0, 8, -1, false, kRecurrentInts, kRecurrentOperands},
    {"gemm_block_sparse", kGemmBlockSparseOp, kEpilogue, kTaskSchedule,
     1, 0, 6, 0, false, kGemmBlockSparseInts, kGemmBlockSparseOperands},
    {"attention_bf16", kAttentionOp, kNoChain, kTaskSchedule,
     8, 4, 6, -1, false, kAttentionInts, kAttentionBf16Operands},
    {"conv_bf16", kConvOp, kEpilogue, kConvSchedule,
     7, 2, 6, -1, false, kConvInts, kConvBf16Operands},
    {"conv_first_layer_bf16", kConvFirstLayerOp, kEpilogue, kNoSchedule,
     5, 2, 6, -1, false, kConvFirstLayerInts, kConvFirstLayerBf16Operands},
    {"depthwise_bf16", kDepthwiseOp, kEpilogue, kConvSchedule,
     6, 2, 6, -1, false, kDepthwiseBf16Ints, kDepthwiseBf16Operands},
    {"winograd_bf16", kWinogradOp, kEpilogue, kConvSchedule,
     4, 2, 6, -1, false, kWinogradInts, kWinogradBf16Operands},
    {"resize", kResizeOp, kNoChain, kNoSchedule,
     2, 2, 2, -1, false, kResizeInts, kPoolOperands},
    {"channel_shuffle", kChannelShuffleOp, kNoChain, kNoSchedule,
     5, 0, 2, -1, false, kChannelShuffleInts, kChannelShuffleOperands},
    {"gemm_block_sparse_bf16", kGemmBlockSparseOp, kEpilogue, kTaskSchedule,
     1, 0, 6, 0, false, kGemmBlockSparseInts, kGemmBlockSparseBf16Operands},
    {"gemm_bitmap", kGemmBitmapOp, kEpilogue, kNoSchedule,
     1, 0, 6, 0, false, kGemmBlockSparseInts, kGemmBitmapOperands},
    {"gemm_bitmap_bf16", kGemmBitmapOp, kEpilogue, kNoSchedule,
     1, 0, 6, 0, false, kGemmBlockSparseInts, kGemmBitmapBf16Operands},
    {"gemm_int16", kGemmOp, kEpilogue, kGemmSchedule,
     2, 0, 7, 1, false, kGemmInt16Ints, kGemmInt16Operands},
    {"round_int16", kRoundOp, kNoChain, kNoSchedule,
     0, 0, 3, -1, false, nullptr, kRoundInt16Operands},
    {"kv_append", kKvAppendOp, kNoChain, kNoSchedule,
     0, 0, 4, -1, false, nullptr, kKvAppendOperands},
    {"gemm_bf16x2", kGemmOp, kEpilogue, kGemmSchedule,
     2, 0, 5, 1, false, kGemmBf16x2Ints, kGemmBf16x2Operands},
    {"round_bf16x2", kRoundOp, kNoChain, kNoSchedule,
     0, 0, 2, -1, false, nullptr, kRoundBf16Operands},
    {"conv_int16", kConvOp, kEpilogue, kConvSchedule,
     7, 2, 8, -1, false, kConvInts, kConvInt16Operands},
    {"round_images_int16", kRoundImagesOp, kNoChain, kNoSchedule,
     2, 0, 3, -1, false, kReorderToNchw16cInts, kRoundImagesInt16Operands},
    {"winograd_int16", kWinogradOp, kEpilogue, kConvSchedule,
     4, 2, 8, -1, false, kWinogradInt16Ints, kWinogradInt16Operands},
    {"arg_reduce", kArgReduceOp, kPrologue, kNoSchedule,
     3, 0, 2, -1, false, kArgReduceInts, kArgReduceOperands},
    {"gather_elements", kGatherElementsOp, kNoChain, kNoSchedule,
     1, 0, 3, -1, false, kGatherElementsInts, kGatherElementsOperands},
    {"conv_dispatch", kConvDispatchOp, kEpilogue, kNoSchedule,
     4, 2, 7, -1, false, kWinogradInts, kConvDispatchOperands},
    {"top_k", kTopKOp, kNoChain, kNoSchedule,
     1, 0, 3, -1, false, kTopKInts, kTopKOperands},
    {"attention_f32_as_bf16", kAttentionOp, kNoChain, kTaskSchedule,
     8, 4, 6, -1, false, kAttentionInts, kAttentionOperands},
    {"conv_dispatch_bf16", kConvDispatchOp, kEpilogue, kNoSchedule,
     4, 2, 7, -1, false, kWinogradInts, kConvDispatchBf16Operands},
    {"conv_dispatch_int16", kConvDispatchOp, kEpilogue, kNoSchedule,
     4, 2, 10, -1, false, kWinogradInt16Ints, kConvDispatchInt16Operands},
    {"pool_bf16", kPoolOp, kNoChain, kNoSchedule,
     6, 0, 2, -1, false, kPoolBf16Ints, kPoolBf16Operands},
    {"round_images_bf16x2", kRoundImagesOp, kNoChain, kNoSchedule,
     2, 0, 2, -1, false, kReorderToNchw16cInts, kRoundImagesBf16x2Operands},
    {"conv_bf16x2", kConvOp, kEpilogue, kConvSchedule,
     7, 2, 6, -1, false, kConvInts, kConvBf16Operands},
    {"iota", kIotaOp, kNoChain, kNoSchedule,
     1, 1, 1, -1, true, kIotaInts, kIotaOperands},
    {"bytes_equal", kBytesEqualOp, kNoChain, kNoSchedule,
     2, 0, 3, -1, false, kBytesEqualInts, kBytesEqualOperands},
    {"gemm_int8", kGemmOp, kEpilogue, kGemmSchedule,
     3, 0, 7, 1, false, kGemmInt8Ints, kGemmInt8Operands},
    {"sum_rows", kSumRowsOp, kNoChain, kNoSchedule,
     0, 0, 3, -1, false, nullptr, kSumRowsOperands},
    {"gemm_nbits", kGemmNbitsOp, kEpilogue, kTaskSchedule,
     5, 0, 6, 0, false, kGemmNbitsInts, kGemmNbitsOperands},
    {"conv_nhwc_int8", kConvNhwcOp, kEpilogue, kNoSchedule,
     6, 0, 5, -1, false, kConvNhwcInt8Ints, kConvNhwcInt8Operands},
    {"pool_nhwc_int8", kPoolNhwcOp, kNoChain, kNoSchedule,
     4, 0, 2, -1, false, kPoolNhwcInt8Ints, kPoolNhwcInt8Operands},
    {"gather_nbits", kGatherNbitsOp, kNoChain, kNoSchedule,
     4, 0, 4, -1, false, kGatherNbitsInts, kGatherNbitsOperands},
    {"round_int8", kRoundOp, kNoChain, kNoSchedule,
     0, 0, 4, -1, false, nullptr, kRoundInt8Operands},
    {"attention_f32_by_f16", kAttentionOp, kNoChain, kTaskSchedule,
     8, 4, 6, -1, false, kAttentionInts, kAttentionF32ByF16Operands},
    {"kv_append_f16", kKvAppendOp, kNoChain, kNoSchedule,
     0, 0, 4, -1, false, nullptr, kKvAppendF16Operands},
    {"attention_f32_by_bf16", kAttentionOp, kNoChain, kTaskSchedule,
     8, 4, 6, -1, false, kAttentionInts, kAttentionF32ByBf16Operands},
    {"kv_append_bf16", kKvAppendOp, kNoChain, kNoSchedule,
     0, 0, 4, -1, false, nullptr, kKvAppendBf16Operands},
    {"attention_f32_by_i8", kAttentionOp, kNoChain, kTaskSchedule,
     8, 4, 6, -1, false, kAttentionInts, kAttentionF32ByI8Operands},
    {"kv_append_i8", kKvAppendOp, kNoChain, kNoSchedule,
     0, 0, 4, -1, false, nullptr, kKvAppendI8Operands},
    {"matmul_bytes", kMatmulBytesOp, kEpilogue, kNoSchedule,
     2, 0, 4, -1, false, kMatmulBytesInts, kMatmulBytesOperands},
#if defined(__aarch64__)
    {"gemm_f16", kGemmOp, kEpilogue, kGemmSchedule,
     2, 0, 5, 1, false, kGemmF16Ints, kGemmF16Operands},
    {"round_f16", kRoundOp, kNoChain, kNoSchedule,
     0, 0, 2, -1, false, nullptr, kRoundF16Operands},
    {"conv_f16", kConvOp, kEpilogue, kNoSchedule,
     7, 2, 6, -1, false, kConvInts, kConvF16Operands},
    {"round_images_f16", kRoundImagesOp, kNoChain, kNoSchedule,
     2, 0, 2, -1, false, kReorderToNchw16cInts, kRoundImagesF16Operands},
#endif
};

// What profilers show of calls, by opcode - 1.
constexpr const char* kPhases[] = {
    "mma: gemm",
    "reduce: norm",
    "copy: elementwise",
    "copy: embedding",
    "mma: attention",
    "mma: conv",
    "mma: conv_first_layer",
    "mma: depthwise",
    "mma: winograd",
    "copy: pool",
    "copy: global_pool",
    "copy: reorder_to_nchw16c",
    "copy: reorder_to_nchw",
    "copy: zero_pad",
    "mma: conv_plain",
    "mma: gemm_bf16",
    "copy: round_bf16",
    "reduce: reduce",
    "reduce: softmax",
    "reduce: channel_norm",
    "copy: copy",
    "mma: recurrent",
    "mma: gemm_block_sparse",
    "mma: attention_bf16",
    "mma: conv_bf16",
    "mma: conv_first_layer_bf16",
    "mma: depthwise_bf16",
    "mma: winograd_bf16",
    "copy: resize",
    "copy: channel_shuffle",
    "mma: gemm_block_sparse_bf16",
    "mma: gemm_bitmap",
    "mma: gemm_bitmap_bf16",
    "mma: gemm_int16",
    "copy: round_int16",
    "copy: kv_append",
    "mma: gemm_bf16x2",
    "copy: round_bf16x2",
    "mma: conv_int16",
    "copy: round_images_int16",
    "mma: winograd_int16",
    "reduce: arg_reduce",
    "copy: gather_elements",
    "mma: conv_dispatch",
    "reduce: top_k",
    "mma: attention_f32_as_bf16",
    "mma: conv_dispatch_bf16",
    "mma: conv_dispatch_int16",
    "copy: pool_bf16",
    "copy: round_images_bf16x2",
    "mma: conv_bf16x2",
    "host: iota",
    "host: bytes_equal",
    "mma: gemm_int8",
    "reduce: sum_rows",
    "mma: gemm_nbits",
    "mma: conv_nhwc_int8",
    "copy: pool_nhwc_int8",
    "copy: gather_nbits",
    "copy: round_int8",
    "mma: attention_f32_by_f16",
    "copy: kv_append_f16",
    "mma: attention_f32_by_bf16",
    "copy: kv_append_bf16",
    "mma: attention_f32_by_i8",
    "copy: kv_append_i8",
    "mma: matmul_bytes",
#if defined(__aarch64__)
    "mma: gemm_f16",
    "copy: round_f16",
    "mma: conv_f16",
    "copy: round_images_f16",
#endif
};

}  // namespace tracea
