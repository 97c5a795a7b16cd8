"""Explanation of every region of a model after the passes, as a record and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.json_documents import to_json
from tracea_graph.reason_codes import EXPECTED, Code
from tracea_graph.views.kernel_table import KernelRow
from tracea_graph.views.layer_names import LayerNames
from tracea_graph.views.op_type_table import OpTypeRow, op_type_table
from tracea_graph.views.report_record import RuleRow, without_tensor_names
from tracea_graph.views.report_text import render_kernels, render_rules
from tracea_graph.views.terminal_tables import (
    format_three_digits,
    new_table,
    plain_text,
    text_cell,
)

__all__ = [
    "Explanation",
    "LaunchRow",
    "NearMiss",
    "RegionExplanation",
    "StepExplanation",
    "render_explanation",
    "render_node",
]


@dataclass(frozen=True)
class NearMiss:
    """A rule that was not applied to a region, and why.

    If another rule was applied instead, ``times_us`` has two predicted times of the operators that
    either rule would replace: with this rule, and without any rule.  Otherwise it is None.
    """

    rule: str
    reason: str
    code: Code
    times_us: tuple[float, float] | None = None


@dataclass(frozen=True)
class StepExplanation:
    """One step of a program: its op, and the original operators it computes."""

    op: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class LaunchRow:
    """A kernel that a device launches in every run.

    ``nodes`` are the original operators whose results it computes; ``reason`` says why it is not
    part of the launch before it.
    """

    kernel: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class RegionExplanation:
    """One region after the passes: what it replaces, and the rules tried on its operators.

    ``rule`` is empty for an unchanged operator.  ``before_us`` and ``after_us`` are predicted
    times of one run; ``measured`` is the gain of the whole model from this and equal regions, if a
    report of an earlier run has it.  ``steps`` are the rules that built the region, in order;
    ``missed`` are rules that nearly applied, with the first reason that failed; ``superseded`` are
    rules that lost to another rule; ``untouched`` is why no rule came close.  ``inside`` is the
    execution plan of a program of several steps; ``kernel_calls`` is what the policy decided about
    its calls; ``launches`` are the kernels that a device runs in order, empty on a CPU.
    """

    op: str
    rule: str
    results: tuple[str, ...]
    nodes: tuple[str, ...]
    kinds: tuple[str, ...]
    before_us: float
    after_us: float
    measured: str = ""
    steps: tuple[str, ...] = ()
    missed: tuple[NearMiss, ...] = ()
    superseded: tuple[NearMiss, ...] = ()
    untouched: str = ""
    untouched_code: Code | None = None
    inside: str = ""
    kernel_calls: tuple[KernelRow, ...] = ()
    inner: tuple[StepExplanation, ...] = ()
    launches: tuple[LaunchRow, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """All regions of a model in order, and how often each rule was applied.

    ``before`` and ``after`` are sums by op type over the original model and over the model after
    the passes.
    """

    model: str
    assumed: str
    regions: tuple[RegionExplanation, ...]
    rules: tuple[RuleRow, ...]
    note: str = ""
    before: tuple[OpTypeRow, ...] = ()
    after: tuple[OpTypeRow, ...] = ()
    schema_version: Literal[1] = 1

    def about(self, node: str) -> tuple[RegionExplanation, ...]:
        """Return the regions that replace an original operator or write a value."""
        return tuple(s for s in self.regions if node in s.nodes or node in s.results)

    @property
    def kernel_calls(self) -> tuple[KernelRow, ...]:
        """Kernel calls of all regions; equal ones in one row."""
        counts: dict[KernelRow, int] = {}
        for row in (row for region in self.regions for row in region.kernel_calls):
            alike = replace(row, count=1)
            counts[alike] = counts.get(alike, 0) + row.count
        return tuple(replace(row, count=count) for row, count in counts.items())

    def to_json(self) -> str:
        """Return the document ``docs/schema/explain.json``."""
        return to_json(self).rstrip()


def render_explanation(explanation: Explanation) -> RenderableType:
    """Return a table in which equal regions share a row, unchanged operators, and near misses."""
    return Group(*_parts(explanation))


def render_node(explanation: Explanation, node: str) -> RenderableType:
    """Return everything about the regions that replace one operator."""
    names = LayerNames(name for region in explanation.regions for name in region.nodes)
    found = explanation.about(node)
    return Group(*(part for region in found for part in _explained(region, node, names)))


def _parts(explanation: Explanation) -> Iterator[RenderableType]:
    yield Text(f"{plain_text(explanation.model)}: predicted for {plain_text(explanation.assumed)}")
    if explanation.note:
        yield Text(plain_text(explanation.note))
    fused: dict[tuple[object, ...], list[RegionExplanation]] = {}
    left: dict[str, list[RegionExplanation]] = {}
    for region in explanation.regions:
        if region.rule:
            key = (region.op, region.rule, region.kinds, round(region.after_us, 1))
            fused.setdefault(key, []).append(region)
        else:
            left.setdefault(region.op, []).append(region)
    if fused:
        table = new_table("fused")
        table.add_column("layers", folds=True)
        table.add_column("region", spare=1)
        table.add_column("count", justify="right")
        table.add_column("built by", folds=True, spare=3)
        table.add_column("replaces", folds=True)
        table.add_column("predicted µs", justify="right")
        table.add_column("measured", justify="right")
        names = LayerNames(name for region in explanation.regions for name in region.nodes)
        for group in fused.values():
            first = group[0]
            table.add_row(
                text_cell(names.of([name for region in group for name in region.nodes])),
                text_cell(first.op), str(len(group)), text_cell(", ".join(first.steps)),
                text_cell(_counted(first.kinds)), _times(first), text_cell(first.measured),
            )  # fmt: skip
        yield from ("", table)
    if left:
        table = new_table("unchanged")
        table.add_column("operator", folds=True)
        table.add_column("count", justify="right")
        table.add_column("predicted µs", justify="right")
        table.add_column("why", folds=True)
        for op, group in sorted(left.items(), key=lambda item: -sum(s.after_us for s in item[1])):
            total = sum(s.after_us for s in group)
            said = "; ".join(_whys(group))
            table.add_row(
                text_cell(op), str(len(group)), format_three_digits(total), text_cell(said)
            )
        yield from ("", table)
    for title, rows in (("before", explanation.before), ("after", explanation.after)):
        if rows:
            pairs = [(row.op, row) for row in rows]
            yield from ("", op_type_table(f"op types {title}", pairs, "predicted µs"))
    if calls := explanation.kernel_calls:
        yield from ("", render_kernels(calls))
    if any(region.launches for region in explanation.regions):
        yield from ("", _launch_table(explanation))
    if explanation.rules:
        yield from ("", render_rules(explanation.rules))
    yield ""
    yield Text("tracea explain MODEL --node NAME explains one operator")


def _launch_table(explanation: Explanation) -> RenderableType:
    """Return the launches of a run by layer; layers with equal launches share their rows."""
    launches = [row for region in explanation.regions for row in region.launches]
    names = LayerNames(name for region in explanation.regions for name in region.nodes)
    layers, layer = list[tuple[str, list[LaunchRow]]](), ""
    for row in launches:
        layer = names.block(row.nodes) or layer
        if not layers or layers[-1][0] != layer:
            layers.append((layer, []))
        layers[-1][1].append(row)
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, rows in layers:
        alike.setdefault(tuple((row.kernel, row.reason) for row in rows), []).append(name)
    table = new_table(f"the {len(launches)} launches of a run, in order")
    table.add_column("layers", folds=True)
    table.add_column("launch", justify="right")
    table.add_column("kernel")
    table.add_column("why it is not fused into the one before", folds=True)
    for rows_of, found in alike.items():
        whole = found[0] if len(found) == 1 else f"{found[0]} … {found[-1]} ({len(found)})"
        for i, (kernel, reason) in enumerate(rows_of):
            said = "" if i else text_cell(whole)
            table.add_row(said, f"{i + 1}/{len(rows_of)}", text_cell(kernel), text_cell(reason))
    return table


def _whys(group: Sequence[RegionExplanation]) -> Iterator[str]:
    """Reasons; those that differ only in tensor names are listed once, with the first of them."""
    alike: dict[str, list[str]] = {}
    for region in group:
        missed = [miss for miss in region.missed if miss.code not in EXPECTED]
        said = [f"{rules}: {reason}" for reason, rules in _shared(missed)]
        said += [f"{rules}: superseded, {reason}" for reason, rules in _shared(region.superseded)]
        for words in (*said, *filter(None, (region.untouched,))):
            alike.setdefault(without_tensor_names(words), []).append(words)
    for same in alike.values():
        more = f", and {len(same) - 1} more" if len(same) > 1 else ""
        yield same[0] + more


def _shared(misses: Sequence[NearMiss]) -> list[tuple[str, str]]:
    """Each reason with the rules that failed for it."""
    rules: dict[str, list[str]] = {}
    for miss in misses:
        rules.setdefault(miss.reason, []).append(miss.rule)
    return [(reason, ", ".join(names)) for reason, names in rules.items()]


_MOST_NODES = 12
"""Original nodes that the explanation of one node lists."""


def _explained(
    region: RegionExplanation, node: str, names: LayerNames
) -> Iterator[RenderableType]:
    title = f"{region.op} " + (f"by {region.rule}" if region.rule else "unchanged")
    yield Text(plain_text(title), style="bold")
    if region.rule:
        yield from (Text(plain_text(line)) for line in _became(region, node, names))
    yield Text(plain_text(f"  writes {', '.join(region.results)}"))
    if region.rule:
        yield Text(plain_text(f"  built by {', '.join(region.steps)}"))
    if region.inside:
        yield Text(plain_text(f"  {region.inside}"))
    measured = f", measured {region.measured}" if region.measured else ""
    yield Text(plain_text(f"  predicted {_times(region)} µs{measured}"))
    for row in region.kernel_calls:
        count = f"{row.count} × " if row.count > 1 else ""
        yield Text(plain_text(f"  runs {count}{row.problem}: {'; '.join(row.reasons)}"))
    missed = [m for m in region.missed if not region.rule or m.code not in EXPECTED]
    for reason, rules in _shared(missed):
        yield Text(plain_text(f"  {rules} did not apply: {reason}"))
    for reason, rules in _shared(region.superseded):
        yield Text(plain_text(f"  {rules} superseded: {reason}"))
    for loser in region.superseded:
        if loser.times_us:
            own, other = map(format_three_digits, loser.times_us)
            yield Text(
                plain_text(f"  with {loser.rule} first: predicted {own} µs instead of {other}")
            )
    if region.untouched:
        yield Text(plain_text(f"  no rule applies: {region.untouched}"))


def _became(region: RegionExplanation, node: str, names: LayerNames) -> Iterator[str]:
    """What became of a node: the step that computes it, and the nodes beside it in that step."""
    count = len(region.nodes)
    beside: Sequence[str] = region.nodes
    steps = [i for i, step in enumerate(region.inner) if node in step.nodes]
    if steps:
        first = region.inner[steps[0]]
        which = f"{steps[0] + 1}" if len(steps) == 1 else f"{steps[0] + 1} to {steps[-1] + 1}"
        yield f"  {node} runs in {first.op}, step {which} of {len(region.inner)}"
        beside = first.nodes
    yield f"  replaces {count} node{'s' * (count > 1)}: {names.of(region.nodes)}"
    others = [name for name in beside if name != node]
    if others:
        yield f"  together with {len(others)} node{'s' * (len(others) > 1)}:"
        yield from (f"    {name}" for name in others[:_MOST_NODES])
    if len(others) > _MOST_NODES:
        yield f"    and {len(others) - _MOST_NODES} more (--json lists all)"


def _times(region: RegionExplanation) -> str:
    if not region.rule:
        return format_three_digits(region.after_us)
    return f"{format_three_digits(region.before_us)} → {format_three_digits(region.after_us)}"


def _counted(kinds: tuple[str, ...]) -> str:
    counts = {kind: kinds.count(kind) for kind in kinds}
    return ", ".join(kind if n == 1 else f"{n} {kind}" for kind, n in counts.items())
