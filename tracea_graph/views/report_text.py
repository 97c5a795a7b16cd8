"""The report as text for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.views.kernel_table import KernelRow
from tracea_graph.views.layer_names import LayerNames
from tracea_graph.views.report_record import (
    CompressionRow,
    ReportRecord,
    RuleRow,
    StorageRow,
    TimingRow,
    WeightRow,
    with_explicit_folder,
)
from tracea_graph.views.terminal_tables import (
    FittedTable,
    format_three_digits,
    new_table,
    plain_text,
    text_cell,
)

__all__ = [
    "new_table",
    "plain_text",
    "render_kernels",
    "render_report",
    "render_rules",
    "text_cell",
]


GOOD, WARNED, DROPPED = "bold green", "bold yellow", "yellow"
"""Styles of an improvement, of a warning or an original that was kept, and of what was dropped."""


def render_report(report: ReportRecord, verbosity: int = 0) -> RenderableType:
    """Return timings, rewrites, outcome and files; with verbosity 1, full reasons and rules."""
    return Group(*_parts(report, verbosity))


def _parts(report: ReportRecord, verbosity: int) -> Iterator[RenderableType]:
    count = report.nodes_before
    yield Text(f"{plain_text(report.input)}: {count} node{'s' * (count != 1)}", style="bold")
    for table in _tables(report, verbosity > 0):
        yield from ("", table)
    yield ""
    if verbosity > 0:
        yield from _details(report)
    yield from (Text(plain_text(note)) for note in report.notes)
    for warning in report.warnings:
        yield Text(f"warning: {plain_text(warning)}", WARNED)
    untimed = report.improved and not report.timings
    outcome = "rewritten" if untimed else report.outcome
    yield Text(f"{outcome}: {plain_text(report.reason)}", GOOD if report.improved else WARNED)
    if report.improved:
        yield Text(_verification(report))
    yield from (Text(f"wrote {_sized(file)}") for file in report.files)
    if report.library:
        hint = plain_text(with_explicit_folder(report.library))
        yield Text(f'load it with options.register_custom_ops_library("{hint}")')


def _tables(report: ReportRecord, full: bool) -> Iterator[FittedTable]:
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


def _timings(title: str, rows: Sequence[TimingRow]) -> FittedTable:
    table = new_table(title)
    table.add_column("shape", folds=True)
    for name in ("threads", "before", "after", "speedup", "99 % bounds", "pairs"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            text_cell(row.binding),
            str(row.threads),
            f"{format_three_digits(row.before_ms)} ms",
            f"{format_three_digits(row.after_ms)} ms",
            f"{row.ratio:.2f}×",
            f"{row.low:.2f}–{row.high:.2f}",
            str(row.pairs),
        )
    return table


def _groups(report: ReportRecord, full: bool) -> FittedTable:
    """One line per group of equal rewrites; ``full`` gives reasons with all figures."""
    table = new_table("rewrites")
    table.add_column("layers", folds=True)
    if full:
        table.add_column("kernel", folds=True)
    for name in ("count", "nodes", "gain"):
        table.add_column(name, justify="right")
    table.add_column("verdict", folds=True)
    names = LayerNames(name for row in report.groups for name in row.originals)
    for row in report.groups:
        layers = names.of(row.originals)
        _, _, part = row.group.partition(" ") if layers else ("", "", "")
        figures = (str(row.count), str(len(row.originals)), row.gain)
        kernel = (text_cell(row.group),) if full else ()
        why = text_cell(row.reason if full else row.verdict, "" if row.kept else DROPPED)
        table.add_row(text_cell(f"{layers or row.group} {part}".strip()), *kernel, *figures, why)
    return table


def _weight_analysis(rows: Sequence[WeightRow]) -> FittedTable:
    """Structure in weights; weights of equal structure share a line."""
    alike: dict[tuple[str, str], list[WeightRow]] = {}
    for row in rows:
        alike.setdefault((row.structure, row.applied), []).append(row)
    table = new_table("weight analysis")
    for name in ("weight", "structure"):
        table.add_column(name, folds=True)
    for name in ("stored", "potential"):
        table.add_column(name, justify="right")
    table.add_column("applied", folds=True)
    for (structure, applied), some in alike.items():
        more = f" and {len(some) - 1} more" if some[1:] else ""
        sizes = (_size(sum(r.stored for r in some)), _size(sum(r.potential for r in some)))
        table.add_row(
            text_cell(some[0].weight) + more, text_cell(structure), *sizes, text_cell(applied)
        )
    return table


def _compact_weights(rows: Sequence[StorageRow]) -> FittedTable:
    """Bytes saved by kernels for sparse or low-rank weights, applied or not."""
    table = new_table("compact weights")
    table.add_column("kernel")
    table.add_column("structure")
    for name in ("count", "dense", "stored", "share"):
        table.add_column(name, justify="right")
    table.add_column("applied")
    for row in rows:
        share = f"{100 * row.stored / row.dense:.0f} %" if row.dense else ""
        sizes = _size(row.dense), _size(row.stored)
        applied = "yes" if row.kept else "no"
        table.add_row(text_cell(row.group), row.technique, str(row.count), *sizes, share, applied)
    return table


def _compressed(rows: Sequence[CompressionRow]) -> FittedTable:
    """The compressed matrix of each layer under the error budget."""
    table = new_table("compressed layers")
    table.add_column("layer", folds=True)
    table.add_column("technique")
    for name in ("matrix", "kept", "predicted", "holdout error", "model error", "saved"):
        table.add_column(name, justify="right")
    table.add_column("applied")
    for row in rows:
        held = "" if row.holdout_error is None else f"{row.holdout_error:.2g} ({row.ratio:.2f}×)"
        table.add_row(
            text_cell(row.layer),
            row.title,
            f"{row.k} × {row.n}",
            f"{100 * row.kept_share:.0f} %",
            f"{row.predicted:.2g}",
            held,
            f"{row.model_error:.2g}",
            f"{format_three_digits(row.saved_us / 1000)} ms",
            "yes" if row.kept else "no",
        )
    return table


def _details(report: ReportRecord) -> Iterator[RenderableType]:
    for label, said in report.rejected.items():
        yield Text(
            f"not verified with {plain_text(label)}, which the original rejects: "
            f"{plain_text(said)}"
        )
    for fault in report.faults:
        yield from (Text(plain_text(line)) for line in fault.splitlines())
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in report.seconds.items())
    yield Text(f"seconds: {steps}")


def render_kernels(rows: Sequence[KernelRow]) -> FittedTable:
    """Return a table of the variants that run a result, with the first reason of each."""
    table = new_table("kernel calls, as the policy decided")
    table.add_column("problem", folds=True)
    table.add_column("count", justify="right")
    table.add_column("variant", folds=True)
    table.add_column("why", folds=True)
    for row in rows:
        table.add_row(
            text_cell(row.problem),
            str(row.count),
            text_cell(row.variant_id),
            text_cell(row.reasons[0]),
        )
    return table


def render_rules(rows: Iterable[RuleRow]) -> FittedTable:
    """Return how often each rule was applied, or why it was not."""
    table = new_table("rules")
    table.add_column("rule")
    table.add_column("count", justify="right")
    table.add_column("verdict")
    table.add_column("reason", folds=True)
    for row in rows:
        table.add_row(text_cell(row.rule), str(row.count), row.verdict, text_cell(row.reason))
    return table


def _verification(report: ReportRecord) -> str:
    if report.status != "passed":
        return f"not verified: {plain_text(report.status_reason)}"
    if report.error is None:
        return "verified: there are no outputs to compare"
    own = f" (ONNX Runtime's own optimizations: {report.floor:.1e})" if report.floor else ""
    return f"verified: largest error {report.error:.1e} of max|y|{own}"


def _sized(file: str) -> str:
    """A file, with its size if it exists."""
    path = Path(file)
    return (
        f"{plain_text(file)} ({_size(path.stat().st_size)})"
        if path.is_file()
        else plain_text(file)
    )


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"
