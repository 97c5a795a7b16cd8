"""The policy: the cost model that ranks proposals, and the engine that decides about kernels."""

from __future__ import annotations

from tracea_graph.policy.cost_model import CostModel, decision_time_share
from tracea_graph.policy.kernel_catalog import KernelCatalog
from tracea_graph.policy.kernel_decision import (
    CandidateVariant,
    KernelPlan,
    PolicyDecision,
    RejectedVariant,
)
from tracea_graph.policy.machine_model import Machine
from tracea_graph.policy.operator_topology import (
    BlockSparse,
    Channelwise,
    Dense,
    LowRank,
    OperatorTopology,
    Permuted,
    Pointwise,
    Rowwise,
    Transformed,
    UnstructuredSparse,
    Windowed,
)
from tracea_graph.policy.policy_engine import CallDecision, PolicyEngine
from tracea_graph.policy.processor_families import ProcessorFamily
from tracea_graph.policy.search_space import Config, SearchSpace

__all__ = [
    "BlockSparse",
    "CallDecision",
    "CandidateVariant",
    "Channelwise",
    "Config",
    "CostModel",
    "Dense",
    "KernelCatalog",
    "KernelPlan",
    "LowRank",
    "Machine",
    "OperatorTopology",
    "Permuted",
    "Pointwise",
    "PolicyDecision",
    "PolicyEngine",
    "ProcessorFamily",
    "RejectedVariant",
    "Rowwise",
    "SearchSpace",
    "Transformed",
    "UnstructuredSparse",
    "Windowed",
    "decision_time_share",
]
