"""The cost model that ranks proposals and prunes what is not worth measuring."""

from __future__ import annotations

from tracea_graph.policy.cost import CostModel
from tracea_graph.policy.machine import Machine, measured_machine
from tracea_graph.policy.prices import price

__all__ = ["CostModel", "Machine", "measured_machine", "price"]
