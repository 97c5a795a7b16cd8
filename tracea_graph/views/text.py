"""The report as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracea_graph.views.kernels import KernelRow
from tracea_graph.views.report import (
    CompressionRow,
    ReportRecord,
    RuleRow,
    StorageRow,
    TimingRow,
    WeightRow,
    with_folder,
)

__all__ = ["cell", "new_table", "plain", "render_kernels", "render_report", "render_rules"]


def render_report(report: ReportRecord, verbosity: int = 0) -> RenderableType:
    """Return timings, rewrites, outcome and files; with verbosity 1, full reasons and rules."""
    return Group(*_parts(report, verbosity))


def plain(text: str) -> str:
    """Return one line without control characters: terminals obey escapes in names."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _parts(report: ReportRecord, verbosity: int) -> Iterator[RenderableType]:
    yield Text(f"{plain(report.input)}: {report.nodes_before} nodes", style="bold")
    for table in _tables(report, verbosity > 0):
        yield from ("", table)
    yield ""
    if verbosity > 0:
        yield from _details(report)
    yield from (Text(plain(note)) for note in report.notes)
    for warning in report.warnings:
        yield Text(f"warning: {plain(warning)}")
    yield Text(f"{report.outcome}: {plain(report.reason)}", style="bold")
    if report.improved:
        yield Text(_verification(report))
    yield from (Text(f"wrote {_sized(file)}") for file in report.files)
    if report.library:
        hint = plain(with_folder(report.library))
        yield Text(f'load it with options.register_custom_ops_library("{hint}")')


def _tables(report: ReportRecord, full: bool) -> Iterator[Table]:
    if report.timings:
        yield _timings("original against result", report.timings)
    if report.tried:
        yield _timings("original against all rewrites tried", report.tried)
    if report.groups:
        yield _groups(report, full)
    if report.weight_analysis:
        yield _weight_analysis(report.weight_analysis)
    if report.compact_weights:
        yield _compact_weights(report.compact_weights)
    if report.compressed:
        yield _compressed(report.compressed)
    if full and report.kernel_calls:
        yield render_kernels(report.kernel_calls)
    if full and report.rules:
        yield render_rules(report.rules)


def _timings(title: str, rows: Sequence[TimingRow]) -> Table:
    table = new_table(title)
    table.add_column("shape", overflow="fold")
    for name in ("threads", "before", "after", "speedup", "99 % bounds", "pairs"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            cell(row.binding),
            str(row.threads),
            f"{three_digits(row.before_ms)} ms",
            f"{three_digits(row.after_ms)} ms",
            f"{row.ratio:.2f}×",
            f"{row.low:.2f}–{row.high:.2f}",
            str(row.pairs),
        )
    return table


def _groups(report: ReportRecord, full: bool) -> Table:
    """One line per group of equal rewrites; ``full`` gives reasons with all figures."""
    table = new_table("rewrites")
    table.add_column("kernel", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("gain", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for row in report.groups:
        why = row.reason if full else row.verdict
        table.add_row(cell(row.group), str(row.count), row.gain, cell(why))
    return table


def _weight_analysis(rows: Sequence[WeightRow]) -> Table:
    """Structure in weights; weights of equal structure share a line."""
    alike: dict[tuple[str, str], list[WeightRow]] = {}
    for row in rows:
        alike.setdefault((row.structure, row.applied), []).append(row)
    table = new_table("weight analysis")
    for name in ("weight", "structure"):
        table.add_column(name, overflow="fold")
    for name in ("stored", "potential"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("applied", overflow="fold")
    for (structure, applied), some in alike.items():
        more = f" and {len(some) - 1} more" if some[1:] else ""
        sizes = (_size(sum(r.stored for r in some)), _size(sum(r.potential for r in some)))
        table.add_row(cell(some[0].weight) + more, cell(structure), *sizes, cell(applied))
    return table


def _compact_weights(rows: Sequence[StorageRow]) -> Table:
    """Bytes saved by kernels for sparse or low-rank weights, applied or not."""
    table = new_table("compact weights")
    table.add_column("kernel", no_wrap=True)
    table.add_column("structure", no_wrap=True)
    for name in ("count", "dense", "stored", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("applied", no_wrap=True)
    for row in rows:
        share = f"{100 * row.stored / row.dense:.0f} %" if row.dense else ""
        sizes = _size(row.dense), _size(row.stored)
        applied = "yes" if row.kept else "no"
        table.add_row(cell(row.group), row.technique, str(row.count), *sizes, share, applied)
    return table


def _compressed(rows: Sequence[CompressionRow]) -> Table:
    """The compressed matrix of each layer under the error budget."""
    table = new_table("compressed layers")
    table.add_column("layer", overflow="fold")
    table.add_column("technique", no_wrap=True)
    for name in ("matrix", "kept", "predicted", "holdout error", "model error", "saved"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("applied", no_wrap=True)
    for row in rows:
        held = "" if row.holdout_error is None else f"{row.holdout_error:.2g} ({row.ratio:.2f}×)"
        table.add_row(
            cell(row.layer),
            row.title,
            f"{row.k} × {row.n}",
            f"{100 * row.kept_share:.0f} %",
            f"{row.predicted:.2g}",
            held,
            f"{row.model_error:.2g}",
            f"{three_digits(row.saved_us / 1000)} ms",
            "yes" if row.kept else "no",
        )
    return table


def _details(report: ReportRecord) -> Iterator[RenderableType]:
    for label, said in report.rejected.items():
        yield Text(f"not verified with {plain(label)}, which the original rejects: {plain(said)}")
    for fault in report.faults:
        yield from (Text(plain(line)) for line in fault.splitlines())
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in report.seconds.items())
    yield Text(f"seconds: {steps}")


def render_kernels(rows: Sequence[KernelRow]) -> Table:
    """Return a table of the variants that run a result, with the first reason of each."""
    table = new_table("kernel calls, as the policy decided")
    table.add_column("problem", overflow="fold")
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("variant", overflow="fold")
    table.add_column("why", overflow="fold")
    for row in rows:
        table.add_row(
            cell(row.problem), str(row.count), cell(row.variant_id), cell(row.reasons[0])
        )
    return table


def render_rules(rows: Iterable[RuleRow]) -> Table:
    """Return how often each rule was applied, or why it was not."""
    table = new_table("rules")
    table.add_column("rule", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for row in rows:
        table.add_row(cell(row.rule), str(row.count), row.verdict, cell(row.reason))
    return table


def new_table(title: str) -> Table:
    """Return an empty table in the style of all views."""
    return Table(
        title=cell(title),
        title_justify="left",
        title_style="italic",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )


_GAP, _FOLDED = 3, 20
"""Characters between two columns, and the minimum width of a cell that wraps."""


@dataclass(frozen=True)
class Column:
    """A column of a :class:`FittedTable`; one that ``folds`` needs no more than 20 characters.

    If space is short, the column with the largest ``spare`` is dropped first; 0 is never dropped.
    """

    name: str
    justify: Literal["left", "right"] = "left"
    folds: bool = False
    spare: int = 0


@dataclass
class FittedTable:
    """A table that drops columns rather than characters if it is too wide."""

    title: str
    columns: Sequence[Column]
    rows: list[tuple[Text | str, ...]] = field(default_factory=list)

    def add_row(self, *cells: Text | str) -> None:
        """Add cells for the first columns; the others stay empty."""
        self.rows.append((*cells, *[""] * (len(self.columns) - len(cells))))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        kept = self._fitting(options.max_width)
        table = new_table(self.title)
        for i in kept:
            one = self.columns[i]
            table.add_column(one.name, justify=one.justify, overflow="fold", no_wrap=not one.folds)
        for row in self.rows:
            table.add_row(*(row[i] for i in kept))
        yield table

    def _fitting(self, width: int) -> list[int]:
        """Columns that fit the width."""
        kept = list(range(len(self.columns)))
        while sum(map(self._least, kept)) + _GAP * (len(kept) - 1) > width:
            last = max(kept, key=lambda i: (self.columns[i].spare, i))
            if not self.columns[last].spare:
                break
            kept.remove(last)
        return kept

    def _least(self, column: int) -> int:
        """Minimum width of a column in characters."""
        one = self.columns[column]
        width = max((len(str(row[column])) for row in self.rows), default=0)
        return min(max(width, len(one.name)), _FOLDED) if one.folds else max(width, len(one.name))


def three_digits(number: float) -> str:
    """Format with three significant digits, without exponent: ``0.0123``, ``4.57``, ``2560``."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:.0f}"


def cell(text: str) -> Text:
    """Return text that is not parsed as markup."""
    return Text(plain(text))


def _verification(report: ReportRecord) -> str:
    if report.status != "passed":
        return f"not verified: {plain(report.status_reason)}"
    if report.error is None:
        return "verified: there are no outputs to compare"
    own = f" (ONNX Runtime's own optimizations: {report.floor:.1e})" if report.floor else ""
    return f"verified: largest error {report.error:.1e} of max|y|{own}"


def _sized(file: str) -> str:
    """A file, with its size if it exists."""
    path = Path(file)
    return f"{plain(file)} ({_size(path.stat().st_size)})" if path.is_file() else plain(file)


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"
