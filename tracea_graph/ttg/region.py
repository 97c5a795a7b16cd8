"""Regions, the nodes of the region graph, and the uses of values between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tracea_graph.ir import Node

__all__ = ["Region", "ValueUse", "region_of"]


@dataclass(frozen=True, eq=False)
class Region:
    """One or more operators that run as a unit.

    * ``op``: an ONNX operator (``"MatMul"``, ``"domain::Op"``) or a custom op (``"FusedGemm"``);
    * ``params``: parameters of a custom op;
    * ``operands``: values in the order that the op defines; ``""`` where an optional one is
      absent;
    * ``nodes``: the original operators that the region replaces, in order;
    * ``rule``: the rewrite that made the region; empty for an original operator;
    * ``step_nodes``: the original operators of each step, if the region has several steps.
    """

    id: str
    op: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    nodes: tuple[Node, ...]
    params: Any = None
    rule: str = ""
    captures: tuple[str, ...] = ()
    step_nodes: tuple[tuple[Node, ...], ...] = ()

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Every value the region reads, including captured values but not absent operands."""
        return tuple(v for v in (*self.operands, *self.captures) if v)

    @cached_property
    def writes(self) -> tuple[str, ...]:
        return tuple(v for v in self.results if v)

    @property
    def node(self) -> Node:
        """The operator of a region that is a single original operator."""
        return self.nodes[0]

    @property
    def fused(self) -> bool:
        """Whether the region is a custom op."""
        return self.params is not None


@dataclass(frozen=True)
class ValueUse:
    """One operand that reads a value; ``operand`` is −1 if a subgraph captures the value."""

    region: Region
    operand: int


def region_of(node: Node, index: int) -> Region:
    """Return an original operator as a region."""
    op = node.op if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op}"
    return Region(f"n{index}", op, node.inputs, node.outputs, (node,), captures=node.captures)
