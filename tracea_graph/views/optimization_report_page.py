"""The report of an optimization as one HTML page: gains, changes, where the time goes, limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

from tracea_graph.kernels.kernel_metadata import KernelMetadata
from tracea_graph.views.layer_names import LayerNames
from tracea_graph.views.profile_record import Profile
from tracea_graph.views.report_record import (
    GroupRow,
    ReportRecord,
    RuleRow,
    TimingRow,
    speedup_range,
    with_explicit_folder,
)
from tracea_graph.views.terminal_tables import format_bytes, format_three_digits, plain_text
from tracea_graph.views.time_by_layer import LayerTime, OpTotals, layer_times, op_totals

__all__ = ["ReportProfiles", "report_fragment", "report_page"]

_MOST_LAYERS, _MOST_STEPS = 24, 40
_PETTY = 0.001
"""Share of the time below which a layer has no row of its own."""
_MOSTLY = 0.5
"""Share of the time whose work must be known for a sentence about the machine's limits."""
_MOST_NAMES = 400
"""Original names listed for one group of rewrites."""


@dataclass(frozen=True)
class ReportProfiles:
    """Profiles of the original model and of the result.

    A profile is None if it could not be taken; ``missing`` then says why.  ``kernels`` has facts
    about the result's kernels, by name.
    """

    before: Profile | None = None
    after: Profile | None = None
    missing: str = ""
    kernels: Mapping[str, KernelMetadata] = field(default_factory=dict)


@dataclass(frozen=True)
class _Change:
    """A group of equal rewrites as the page shows it."""

    row: GroupRow
    layers: str
    nodes: int
    share: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.row.originals[:_MOST_NAMES]


@dataclass(frozen=True)
class _Ops:
    """Totals of one op type before and after; None where the model has none."""

    op: str
    before: OpTotals | None
    after: OpTotals | None


@dataclass(frozen=True)
class _Kernel:
    """A kernel variant of the result: the calls that it runs, and its facts."""

    facts: KernelMetadata
    calls: Mapping[str, int]

    @property
    def fragments(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.facts.fragments.items())

    @property
    def used(self) -> str:
        return ", ".join(f"{count} × {call}" for call, count in self.calls.items())


@dataclass(frozen=True)
class _View:
    """What the page says about one report."""

    report: ReportRecord
    headline: str
    detail: str
    advice: str
    changes: Sequence[_Change] = ()
    dropped: Sequence[_Change] = ()
    profile: Profile | None = None
    layers: Sequence[LayerTime] = ()
    other_layers: Sequence[LayerTime] = ()
    missing: str = ""
    ops: Sequence[_Ops] = ()
    missed: Sequence[RuleRow] = ()
    kernels: Sequence[_Kernel] = ()
    limits: Sequence[str] = field(default_factory=tuple)

    @property
    def total(self) -> float:
        """Time of all layers, µs."""
        return sum(layer.us for layer in (*self.layers, *self.other_layers)) or 1.0

    @property
    def most(self) -> float:
        """Time of the slowest layer, µs."""
        return max((layer.us for layer in self.layers), default=0.0) or 1.0


def report_page(
    *reports: ReportRecord, profiles: Mapping[str, ReportProfiles] | None = None
) -> str:
    """Return one HTML page without external resources; model strings are escaped.

    ``profiles`` maps the output file of a report to the profiles taken for it.
    """
    views = [_view(r, (profiles or {}).get(r.output, ReportProfiles())) for r in reports]
    return _template().render(views=views, page=True)


def report_fragment(report: ReportRecord) -> str:
    """Return the HTML of one report for a notebook, without page and script."""
    return _template().render(views=[_view(report, ReportProfiles())], page=False)


def _view(report: ReportRecord, profiled: ReportProfiles) -> _View:
    profile = profiled.after if report.improved else profiled.before
    names = [name for row in report.groups for name in row.originals]
    for one in (profiled.before, profiled.after):
        names += [row.name for row in one.rows if not row.kernel] if one else []
    layer_names = LayerNames(names)
    changes = [_change(row, layer_names, profile) for row in report.groups]
    layers = sorted(layer_times(profile, layer_names), key=lambda one: -one.us) if profile else []
    total = sum(layer.us for layer in layers)
    shown = [one for one in layers[:_MOST_LAYERS] if one.us >= _PETTY * total]
    return _View(
        report,
        *_headline(report),
        changes=[c for c in changes if c.row.kept],
        dropped=[c for c in changes if not c.row.kept],
        profile=profile,
        layers=shown,
        other_layers=layers[len(shown) :],
        missing=profiled.missing,
        ops=_ops(profiled, report.improved),
        missed=[row for row in report.rules if row.verdict != "applied"],
        kernels=_kernels(report, profiled.kernels),
        limits=tuple(_limits(profile, layers)) if profile else (),
    )


def _kernels(report: ReportRecord, known: Mapping[str, KernelMetadata]) -> list[_Kernel]:
    """Return the variants that have facts, in the order of their first calls."""
    calls: dict[str, dict[str, int]] = {}
    for row in report.kernel_calls:
        own = calls.setdefault(row.variant_id, {})
        own[row.call] = own.get(row.call, 0) + row.count
    return [_Kernel(known[name], own) for name, own in calls.items() if name in known]


def _headline(report: ReportRecord) -> tuple[str, str, str]:
    """Return the headline, a sentence below it, and what to do next."""
    if not report.improved:
        return "The original was kept", _sentence(report.reason), report.next_step
    if not report.timings:
        return "Rewritten, not timed", _sentence(report.reason), ""
    worst = min(report.timings, key=lambda row: row.low)
    speed = f"{speedup_range([row.ratio for row in report.timings])} as fast"
    first = report.timings[0]
    headline = f"{_time(first.before_ms)} became {_time(first.after_ms)}: {speed}"
    bound = f"At least {worst.low:.2f}× with 99 % confidence" if worst.low > 0 else ""
    when = f"timed on {report.timed_at}, by an equal earlier run" if report.timed_at else ""
    return headline, "; ".join(filter(None, (bound, when))), ""


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:].rstrip('.')}." if reason else ""


def _time(ms: float) -> str:
    """A time in ms, or in µs below a tenth of one."""
    if 0 < ms < 0.0995:
        return f"{format_three_digits(1000 * ms)} µs"
    return f"{format_three_digits(ms)} ms"


def _change(row: GroupRow, names: LayerNames, profile: Profile | None) -> _Change:
    share = None
    if profile is not None and row.kept and profile.us:
        nodes = set(row.originals)
        us = sum(r.us for r in profile.rows if r.kernel and not nodes.isdisjoint(r.originals))
        share = us / profile.us
    layers = names.of(row.originals)
    _, _, part = row.group.partition(" ") if layers else ("", "", "")
    return _Change(row, f"{layers or row.group} {part}".strip(), len(row.originals), share)


def _ops(profiled: ReportProfiles, improved: bool) -> list[_Ops]:
    before = op_totals(profiled.before) if profiled.before else {}
    after = op_totals(profiled.after) if profiled.after and improved else {}
    found = [_Ops(op, before.get(op), after.get(op)) for op in {**before, **after}]
    return sorted(found, key=lambda o: -max(t.us for t in (o.before, o.after) if t is not None))


def _limits(profile: Profile, layers: Sequence[LayerTime]) -> Iterator[str]:
    """What the machine still allows, in sentences."""
    inside = sum(layer.us for layer in layers) or 1.0  # of kernel calls, as the table shows them
    known = sum(layer.known_us for layer in layers)
    floor = sum(layer.limit_us for layer in layers)
    total = profile.us or 1.0
    outside = sum(row.us for row in profile.rows if not row.kernel)
    if floor and known > _MOSTLY * inside:
        yield (
            f"{floor / known:.0%} of the layers' time is what this machine's peak arithmetic and "
            f"bandwidth require ({profile.roofs.source}): the same work cannot run more than "
            f"{known / floor:.1f}× as fast here."
        )
    if outside > 0.005 * total:
        count = sum(not row.kernel for row in profile.rows)
        yield f"{outside / total:.0%} of the time is spent in {count} operators of ONNX Runtime."
    gap = profile.run_ms * 1e3 - total
    if not profile.warnings and gap > 0.05 * profile.run_ms * 1e3:
        share = gap / (profile.run_ms * 1e3)
        yield f"{share:.0%} of a run passes between nodes, where nothing is computed."


def _percent(number: float) -> str:
    return f"{100 * number:.1f} %" if number < 0.0995 else f"{100 * number:.0f} %"


def _flops(number: float) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.0f}" if number else ""


def _breaking(text: str) -> Markup:
    """Text in which a line may end after each part of a path."""
    return Markup("/<wbr>").join(plain_text(text).split("/"))


def _bars(rows: Sequence[TimingRow]) -> Iterator[tuple[TimingRow, float, float]]:
    """Timings with the lengths of their bars, in percent."""
    for row in rows:
        longest = max(row.before_ms, row.after_ms) or 1.0
        yield row, 100 * row.before_ms / longest, 100 * row.after_ms / longest


@cache
def _template() -> jinja2.Template:
    folder = resources.files("tracea_graph.views")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "as_path": with_explicit_folder, "plain": plain_text, "time": _time, "percent": _percent,
        "bars": _bars,
        "bytes": format_bytes, "flops": _flops, "file_name": lambda path: Path(path).name,
        "breaking": _breaking,
    }  # fmt: skip
    environment.globals |= {
        "style": folder.joinpath("page.css").read_text("utf-8"),
        "script": folder.joinpath("page.js").read_text("utf-8"),
        "most_steps": _MOST_STEPS,
    }
    return environment.from_string(folder.joinpath("report.html.jinja").read_text("utf-8"))
