"""The result of ``bench --retune``: which operator types stay kernels on this machine, and why."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.views.text import cell, new_table, plain

__all__ = ["Retuned", "RetunedRow", "render_retuned"]


@dataclass(frozen=True)
class RetunedRow:
    """One operator type: how many nodes have it, whether they stay kernels, and why."""

    type: str
    nodes: int
    kept: bool
    reason: str


@dataclass(frozen=True)
class Retuned:
    """``speedup`` is what stays against plain ONNX, by thread count and binding."""

    model: str
    rows: tuple[RetunedRow, ...]
    speedup: Mapping[str, float]
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def dropped(self) -> tuple[str, ...]:
        """The types whose nodes run on their bodies from now on."""
        return tuple(row.type for row in self.rows if not row.kept)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Indented JSON with sorted keys."""
        return json.dumps(self.to_dict(), indent=1, sort_keys=True) + "\n"


def render_retuned(found: Retuned) -> RenderableType:
    """A line about the whole, then one for each operator type."""
    return Group(*_parts(found))


def _parts(found: Retuned) -> Iterator[RenderableType]:
    kept = len(found.rows) - len(found.dropped)
    change = "rewritten" if found.dropped else "unchanged"
    yield Text(
        f"{plain(found.model)}: {kept} of {len(found.rows)} kinds of kernels stay, {change}"
    )
    table = new_table("kernels")
    table.add_column("type", no_wrap=True)
    table.add_column("nodes", justify="right")
    table.add_column("on this machine", overflow="fold")
    for row in found.rows:
        table.add_row(cell(row.type), str(row.nodes), cell(row.reason))
    yield table
    for where, ratio in found.speedup.items():
        yield Text(f"{ratio:.2f}× as fast as plain ONNX at {plain(where)}")
    yield from (Text(f"warning: {plain(warning)}") for warning in found.warnings)
