"""Generate ``runtime/policy.h``: what the policy decides for calls that no plan was made for.

Calls of the C interface get the schedules and activations that planned programs get.
"""

from __future__ import annotations

from dataclasses import astuple

from tracea_graph.kernels.activations import ACTIVATIONS
from tracea_graph.kernels.cpu.phases.conv_winograd import FEW_FILTERS
from tracea_graph.kernels.cpu.phases.pack_filters import FEW_CHANNELS
from tracea_graph.kernels.cpu.schedule import GEMM_SCHEDULES

__all__ = ["policy_header"]

_HEAD = """\
// The policy's tables for the C interface, written by policy_header.py: edit schedule.py,
// activations.py and phases/.
#pragma once
#include "runtime/plan.h"

namespace tracea {

"""


def policy_header() -> str:
    """The text of ``runtime/policy.h``."""
    schedules = (f"    {{{', '.join(map(str, astuple(s)))}}},\n" for s in GEMM_SCHEDULES)
    chains = (f"    {chain.key},  // {name}\n" for name, chain in ACTIVATIONS.items())
    return "".join(
        (
            _HEAD,
            f"constexpr int32_t kGemmPolicies = {len(GEMM_SCHEDULES)};\n",
            "constexpr GemmSchedule kGemmPolicy[] = {\n", *schedules, "};\n\n",
            "// Input channels up to which images are read unblocked, and filters up to which\n"
            "// Winograd's transform does not pay.\n",
            f"constexpr int64_t kFewChannels = {FEW_CHANNELS}, kFewFilters = {FEW_FILTERS};\n\n",
            f"constexpr int32_t kActivations = {len(ACTIVATIONS)};\n",
            "// Chains by TraceaActivation - 1.\n",
            "constexpr int64_t kActivationChain[] = {\n", *chains, "};\n",
            "\n}  // namespace tracea\n",
        )
    )  # fmt: skip
