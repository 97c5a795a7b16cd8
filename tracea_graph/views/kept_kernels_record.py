"""The record of ``bench --retune``: which operator types stay kernels on this machine, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tracea_graph.json_documents import to_json
from tracea_graph.reason_codes import Code

__all__ = ["Retuned", "RetunedRow"]


@dataclass(frozen=True)
class RetunedRow:
    """One operator type: how many nodes have it, whether they stay kernels, and why."""

    type: str
    nodes: int
    kept: bool
    reason: str
    code: Code


@dataclass(frozen=True)
class Retuned:
    """Result of retuning; ``speedup`` over plain ONNX is given by thread count and binding."""

    model: str
    rows: tuple[RetunedRow, ...]
    speedup: Mapping[str, float]
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    schema_version: Literal[1] = 1

    @property
    def dropped(self) -> tuple[str, ...]:
        """Operator types whose nodes run on their ONNX bodies from now on."""
        return tuple(row.type for row in self.rows if not row.kept)

    def to_json(self) -> str:
        """Return indented JSON with sorted keys."""
        return to_json(self)
