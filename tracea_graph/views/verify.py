"""How a comparison of two models reads, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.check.verify import Verification
from tracea_graph.views.text import cell, new_table, plain

__all__ = ["Comparison", "comparison_json", "render_comparison"]

_VERDICTS = {
    "passed": "equal within tolerance",
    "failed": "not equal",
    "inconclusive": "cannot tell",
}


@dataclass(frozen=True)
class Comparison:
    """What was found; ``kernels`` of ``nodes`` nodes of the second model ran as kernels."""

    original: str
    candidate: str
    library: str
    verification: Verification
    kernels: int
    nodes: int


def comparison_json(found: Comparison) -> str:
    """Indented JSON with sorted keys; an infinite error is null."""
    record = dataclasses.asdict(found)
    for entry in record["verification"]["outputs"]:
        for name in ("max_abs", "relative", "floor"):
            entry[name] = entry[name] if entry[name] < float("inf") else None
    return json.dumps(record, indent=1, sort_keys=True)


def render_comparison(found: Comparison) -> RenderableType:
    """A row per output and input set, then the verdict in a sentence."""
    return Group(*_parts(found))


def _parts(found: Comparison) -> Iterator[RenderableType]:
    verification = found.verification
    if verification.outputs:
        table = new_table(f"{plain(found.candidate)} against {plain(found.original)}")
        for name in ("output", "inputs"):
            table.add_column(name, overflow="fold")
        for name in ("max |error|", "of max|y|", "cosine", "ONNX Runtime's own"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", overflow="fold")
        for o in verification.outputs:
            verdict = ("equal" if o.passed else "not equal") + (f": {o.note}" if o.note else "")
            figures = (
                f"{o.max_abs:.2e}",
                f"{o.relative:.2e}",
                f"{o.cosine:.9f}",
                f"{o.floor:.1e}",
            )
            table.add_row(cell(o.output), cell(o.feed), *figures, cell(verdict))
        yield table
    for label, why in verification.rejected.items():
        yield Text(f"the original refuses {plain(label)}: {plain(why)}")
    if found.library:
        yield Text(
            f"{found.kernels} of {found.nodes} nodes run as kernels of {plain(found.library)}"
        )
    yield Text(f"{_VERDICTS[verification.status]}: {plain(verification.sentence)}")
