"""The cost model: it ranks proposals and prunes those not worth measuring."""

from __future__ import annotations

from tracea_graph.policy.cost import CostModel
from tracea_graph.policy.decision_cost import decision_cost
from tracea_graph.policy.machine import Machine
from tracea_graph.policy.space import Config, SearchSpace
from tracea_graph.policy.topology import (
    BlockSparse,
    Dense,
    LowRank,
    OperatorTopology,
    Processor,
    TopologyDecision,
    Windowed,
)
from tracea_graph.policy.topology import decide as decide_topology

__all__ = [
    "BlockSparse",
    "Config",
    "CostModel",
    "Dense",
    "LowRank",
    "Machine",
    "OperatorTopology",
    "Processor",
    "SearchSpace",
    "TopologyDecision",
    "Windowed",
    "decide_topology",
    "decision_cost",
]  # fmt: skip
