"""A comparison of two models as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.check.verify_outputs import Verification
from tracea_graph.json_documents import to_json
from tracea_graph.views.terminal_tables import Column, FittedTable, plain_text, text_cell

__all__ = ["VerifyReport", "comparison_json", "render_comparison"]

_VERDICTS = {
    "passed": "equal within tolerance",
    "failed": "not equal",
    "inconclusive": "cannot tell",
}


@dataclass(frozen=True)
class VerifyReport:
    """Result of comparing the outputs of two models.

    The first model has ``original_nodes`` nodes, the second ``nodes``, of which ``kernels`` ran as
    generated kernels; one kernel may compute many nodes of the first.
    """

    original: str
    candidate: str
    library: str
    verification: Verification
    kernels: int
    nodes: int
    original_nodes: int
    schema_version: Literal[1] = 1


def comparison_json(found: VerifyReport) -> str:
    """Return the document ``docs/schema/verify.json``."""
    return to_json(found).rstrip()


def render_comparison(found: VerifyReport) -> RenderableType:
    """Return a row per output and input set, then the verdict in a sentence."""
    return Group(*_parts(found))


def _parts(found: VerifyReport) -> Iterator[RenderableType]:
    verification = found.verification
    if verification.outputs:
        table = FittedTable(
            f"{plain_text(found.candidate)} against {plain_text(found.original)}",
            [
                Column("output", folds=True), Column("inputs", folds=True),
                Column("max |error|", "right", spare=1), Column("of max|y|", "right"),
                Column("cosine", "right", spare=2), Column("ONNX Runtime's own", "right", spare=3),
                Column("verdict", folds=True),
            ],
        )  # fmt: skip
        for o in verification.outputs:
            verdict = ("equal" if o.passed else "not equal") + (f": {o.note}" if o.note else "")
            figures = (
                f"{o.max_abs:.2e}",
                f"{o.relative:.2e}",
                f"{o.cosine:.9f}",
                f"{o.floor:.1e}",
            )
            table.add_row(text_cell(o.output), text_cell(o.feed), *figures, text_cell(verdict))
        yield table
    for label, why in verification.rejected.items():
        yield Text(f"the original rejects {plain_text(label)}: {plain_text(why)}")
    if found.library:
        before, library = found.original_nodes, plain_text(found.library)
        yield Text(
            f"{before} node{'s' * (before != 1)} became {found.nodes}, {found.kernels} of them "
            f"kernels of {library}"
        )
    yield Text(f"{_VERDICTS[verification.status]}: {plain_text(verification.sentence)}")
