"""Why a model became what it became: every region's story, as a record and as words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.views.report import RuleRow, unnamed
from tracea_graph.views.text import cell, new_table, plain, render_rules, three_digits

__all__ = ["Explanation", "Story", "render_explanation", "render_node"]


@dataclass(frozen=True)
class Story:
    """One region after the passes: what it replaces, and what was tried on its operators.

    ``rule`` is empty for an unchanged operator.  ``before_us`` and ``after_us`` are predicted
    times of one run; ``measured`` the gain of the whole model from it and its equals, if a report
    of an earlier run has it.  ``steps`` are the rules that built it, in order; ``missed`` those
    that nearly applied, with the first reason that failed; ``superseded`` what lost to another;
    ``untouched`` is why no rule came near; ``inside`` how a program of several steps is to run.
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
    missed: tuple[tuple[str, str], ...] = ()
    superseded: tuple[tuple[str, str], ...] = ()
    untouched: str = ""
    inside: str = ""


@dataclass(frozen=True)
class Explanation:
    """All regions of a model in order, and the rules' account."""

    model: str
    assumed: str
    stories: tuple[Story, ...]
    rules: tuple[RuleRow, ...]
    note: str = ""

    def about(self, node: str) -> tuple[Story, ...]:
        """The regions that an original operator went into, or that write a value."""
        return tuple(s for s in self.stories if node in s.nodes or node in s.results)

    def to_json(self) -> str:
        """Indented JSON with sorted keys."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)


def render_explanation(told: Explanation) -> RenderableType:
    """Equal regions share a row; then what is unchanged, and every near miss."""
    return Group(*_parts(told))


def render_node(told: Explanation, node: str) -> RenderableType:
    """Everything about the regions one operator went into."""
    return Group(*(part for story in told.about(node) for part in _story(story)))


def _parts(told: Explanation) -> Iterator[RenderableType]:
    yield Text(f"{plain(told.model)}: predicted for {plain(told.assumed)}")
    if told.note:
        yield Text(plain(told.note))
    fused: dict[tuple[object, ...], list[Story]] = {}
    left: dict[str, list[Story]] = {}
    for story in told.stories:
        if story.rule:
            key = (story.op, story.rule, story.kinds, round(story.after_us, 1))
            fused.setdefault(key, []).append(story)
        else:
            left.setdefault(story.op, []).append(story)
    if fused:
        table = new_table("fused")
        table.add_column("region", no_wrap=True)
        table.add_column("count", justify="right")
        for name in ("built by", "replaces"):
            table.add_column(name, overflow="fold")
        for name in ("predicted µs", "measured"):
            table.add_column(name, justify="right", no_wrap=True)
        for group in fused.values():
            first = group[0]
            table.add_row(
                cell(first.op), str(len(group)), cell(", ".join(first.steps)),
                cell(_counted(first.kinds)), _times(first), cell(first.measured),
            )  # fmt: skip
        yield from ("", table)
    if left:
        table = new_table("unchanged")
        table.add_column("operator", no_wrap=True)
        table.add_column("count", justify="right")
        table.add_column("predicted µs in all", justify="right", no_wrap=True)
        table.add_column("why", overflow="fold")
        for op, group in sorted(left.items(), key=lambda item: -sum(s.after_us for s in item[1])):
            total = sum(s.after_us for s in group)
            said = "; ".join(_whys(group))
            table.add_row(cell(op), str(len(group)), three_digits(total), cell(said))
        yield from ("", table)
    if told.rules:
        yield from ("", render_rules(told.rules))
    yield ""
    yield Text("tracea explain MODEL --node NAME tells the story of one operator")


def _whys(group: Sequence[Story]) -> Iterator[str]:
    """Reasons that differ in the tensors they name only are said once, with the first of them."""
    alike: dict[str, list[str]] = {}
    for story in group:
        said = [f"{rules}: {reason}" for reason, rules in _shared(story.missed)]
        said += [f"{rules}: superseded, {reason}" for reason, rules in _shared(story.superseded)]
        for words in (*said, *filter(None, (story.untouched,))):
            alike.setdefault(unnamed(words), []).append(words)
    for same in alike.values():
        more = f", and {len(same) - 1} more" if len(same) > 1 else ""
        yield same[0] + more


def _shared(told: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each reason, and the rules that failed for it."""
    rules: dict[str, list[str]] = {}
    for rule, reason in told:
        rules.setdefault(reason, []).append(rule)
    return [(reason, ", ".join(names)) for reason, names in rules.items()]


def _story(story: Story) -> Iterator[RenderableType]:
    title = f"{story.op} " + (f"by {story.rule}" if story.rule else "unchanged")
    yield Text(plain(title), style="bold")
    yield Text(plain(f"  writes {', '.join(story.results)}"))
    if story.rule:
        yield Text(plain(f"  replaces {', '.join(story.nodes)}"))
        yield Text(plain(f"  built by {', '.join(story.steps)}"))
    if story.inside:
        yield Text(plain(f"  {story.inside}"))
    measured = f", measured {story.measured}" if story.measured else ""
    yield Text(plain(f"  predicted {_times(story)} µs{measured}"))
    for reason, rules in _shared(story.missed):
        yield Text(plain(f"  {rules} did not apply: {reason}"))
    for reason, rules in _shared(story.superseded):
        yield Text(plain(f"  {rules} superseded: {reason}"))
    if story.untouched:
        yield Text(plain(f"  no rule applies: {story.untouched}"))


def _times(story: Story) -> str:
    if not story.rule:
        return three_digits(story.after_us)
    return f"{three_digits(story.before_us)} → {three_digits(story.after_us)}"


def _counted(kinds: tuple[str, ...]) -> str:
    counts = {kind: kinds.count(kind) for kind in kinds}
    return ", ".join(kind if n == 1 else f"{n} {kind}" for kind, n in counts.items())
