"""The report of a shape check: every contradiction of a model, as a document and as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.json_documents import to_json
from tracea_graph.views.report_text import new_table, plain_text, text_cell

__all__ = ["ShapeReport", "ShapeRow", "render_shapes"]


@dataclass(frozen=True)
class ShapeRow:
    """One contradiction, at the operator that computes ``value``.

    ``kind`` is ``operands`` (they do not fit together), ``declared`` (the declared shape is not
    the computed one), ``type`` (the declared type is not the computed one), ``sizes`` (a
    declaration does not hold for all sizes) or ``unknown`` (the rank is not known).  Only the
    strict policy reports the last two.
    """

    kind: str
    node: str
    value: str
    reason: str


@dataclass(frozen=True)
class ShapeReport:
    """All contradictions of a model in the order of its operators: ``docs/schema/shapes.json``.

    ``values`` counts the tensors whose shapes were checked.
    """

    model: str
    policy: str
    values: int
    contradictions: tuple[ShapeRow, ...]
    schema_version: Literal[1] = 1

    @property
    def ok(self) -> bool:
        """Whether there are no contradictions."""
        return not self.contradictions

    def to_json(self) -> str:
        """Return the document ``docs/schema/shapes.json``."""
        return to_json(self).rstrip()

    def __rich__(self) -> RenderableType:
        return render_shapes(self)


def render_shapes(report: ShapeReport) -> RenderableType:
    """Return a table of all contradictions, or a sentence if there are none."""
    return Group(*_parts(report))


def _parts(report: ShapeReport) -> Iterator[RenderableType]:
    if report.contradictions:
        table = new_table("shape contradictions")
        for name in ("kind", "operator", "tensor", "why"):
            table.add_column(name, folds=True)
        for row in report.contradictions:
            table.add_row(*map(text_cell, (row.kind, row.node, row.value, row.reason)))
        yield table
    count = len(report.contradictions) or "no"
    said = f"{count} contradiction{'s' * (len(report.contradictions) != 1)}"
    by = f"among {report.values} tensors, by the {report.policy} policy"
    yield Text(f"{plain_text(report.model)}: {said} {by}")
