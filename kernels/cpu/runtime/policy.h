// The policy's tables for the C interface, written by policy_header.py: edit schedule.py,
// activations.py and phases/.
#pragma once
#include "runtime/plan.h"

namespace tracea {

constexpr int32_t kGemmPolicies = 4;
constexpr GemmSchedule kGemmPolicy[] = {
    {4, 0, 128, 0, 0},
    {32, 0, 128, 0, 1},
    {512, 0, 256, 0, 1},
    {2147483647, 0, 256, 0, 1},
};

// Input channels up to which images are read unblocked, and filters up to which
// Winograd's transform does not pay.
constexpr int64_t kFewChannels = 8, kFewFilters = 4;

constexpr int32_t kActivations = 6;
// Chains by TraceaActivation - 1.
constexpr int64_t kActivationChain[] = {
    840460417190862468,  // relu
    84087032877684627,  // sigmoid
    464161659792521133,  // tanh
    1471952422913505675,  // gelu
    1030031398357528173,  // gelu_tanh
    3128356848960731164,  // silu
};

}  // namespace tracea
