"""Text of the result of ``bench --retune``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.views.kept_kernels_record import Retuned
from tracea_graph.views.terminal_tables import new_table, plain_text, text_cell

__all__ = ["render_retuned"]


def render_retuned(found: Retuned) -> RenderableType:
    """Return a summary line, then one line per operator type."""
    return Group(*_parts(found))


def _parts(found: Retuned) -> Iterator[RenderableType]:
    kept = len(found.rows) - len(found.dropped)
    change = "rewritten" if found.dropped else "unchanged"
    yield Text(
        f"{plain_text(found.model)}: {kept} of {len(found.rows)} kernel types kept, {change}"
    )
    table = new_table("kernels")
    table.add_column("type")
    table.add_column("nodes", justify="right")
    table.add_column("on this machine", folds=True)
    for row in found.rows:
        table.add_row(text_cell(row.type), str(row.nodes), text_cell(row.reason))
    yield table
    for where, ratio in found.speedup.items():
        yield Text(f"{ratio:.2f}× as fast as plain ONNX at {plain_text(where)}")
    yield from (Text(f"warning: {plain_text(warning)}") for warning in found.warnings)
