"""A profile as a table: a row per group of equal nodes, with its kernel calls below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tracea_graph.views.bench import environment_line
from tracea_graph.views.layer_names import LayerNames
from tracea_graph.views.op_type_table import op_type_table
from tracea_graph.views.profile_record import (
    EXPLAINED,
    SHORTEST,
    NodeGroup,
    Profile,
    ProfileRow,
    notable_groups,
)
from tracea_graph.views.terminal_tables import (
    Column,
    FittedTable,
    format_bytes,
    format_three_digits,
    plain_text,
)
from tracea_graph.views.time_by_layer import op_totals

_FEWER = "winograd"
"""The kernel that multiplies less than a direct convolution, whose FLOPs are counted."""

__all__ = [
    "abridge_names",
    "profile_cells",
    "profile_headline",
    "profile_summary",
    "render_profile",
]


def render_profile(profile: Profile, verbosity: int = 0) -> RenderableType:
    """Return a row per group; from verbosity 1 on a row per node with its original nodes."""
    return Group(*_parts(profile, verbosity))


def _parts(profile: Profile, verbosity: int) -> Iterator[RenderableType]:
    spare = {"GFLOP/s": 3, "GB/s": 3, "of bandwidth": 1, "before": 5, "after": 4}
    figures = ("µs", "share", "GFLOP/s", "of peak", "GB/s", "of bandwidth", "before", "after")
    columns = [
        Column("node" if verbosity else "layer", folds=True),
        *(() if verbosity else (Column("kernel"),)),
        Column("size" if verbosity else "size (nodes)", spare=2),
        *(Column(name, "right", spare=spare.get(name, 0)) for name in figures),
        Column("bound"),
    ]
    if verbosity:
        columns.append(Column("original nodes", folds=True))
    table = FittedTable(profile_headline(profile), columns)
    if verbosity:
        for row in profile.rows:
            originals = Text(plain_text(abridge_names(row.originals)))
            table.add_row(
                Text(plain_text(row.name)), row.size, *profile_cells(row, profile), originals
            )
            for call in row.calls if len(row.calls) > 1 else ():
                table.add_row(_inner(call), call.size, *profile_cells(call, profile))
    else:
        named, rest = notable_groups(profile)
        names = LayerNames(name for row in profile.rows for name in row.originals or (row.name,))
        for family in named:
            size = f"{family.rows[0].size} ({len(family.rows)})".strip()
            table.add_row(*_label(family, names), size, *profile_cells(family.total, profile))
            for call in family.calls:
                layer = Text(f"  {plain_text(names.of(call.originals))}", style="italic")
                table.add_row(layer, call.op, call.size, *profile_cells(call, profile))
        if rest:
            rows = _rest(rest, profile)
            table.add_row(Text("the rest", style="dim"), "", f"({len(rest)})", *rows)
    yield table
    totals = [(op, sums) for op, sums in op_totals(profile).items()]
    yield from ("", op_type_table("by op type or kernel", totals, "µs"), "")
    yield from (Text(line) for line in profile_summary(profile))


def profile_headline(profile: Profile) -> str:
    """Return model, binding and threads."""
    plural = "s" * (profile.threads > 1)
    return f"{profile.model}, {profile.binding}, {profile.threads} thread{plural}"


def profile_cells(row: ProfileRow, profile: Profile) -> tuple[str, ...]:
    """Return the cells of a node's row.

    They are µs, their share, GFLOP/s and GB/s each with its percentage of the limit, bytes before
    and after fusion, and the bound.
    """
    share = f"{row.us / (profile.us or 1.0):.1%}"
    if row.bytes is None or row.us < SHORTEST:
        return (format_three_digits(row.us), share, "", "", "", "", "", "", row.bound)
    computed = (f"{row.gflops:.1f}", f"{row.compute_us / row.us:.0%}") if row.flops else ("", "")
    moved = (f"{row.bytes / row.us / 1e3:.1f}", f"{row.memory_us / row.us:.0%}")
    before = format_bytes(row.unfused) if row.unfused and row.unfused > row.bytes else ""
    return (
        format_three_digits(row.us),
        share,
        *computed,
        *moved,
        before,
        format_bytes(row.bytes),
        f"{row.bound}*" if fewer_operations(row) else row.bound,
    )


def fewer_operations(row: ProfileRow) -> bool:
    """Return whether a kernel computes its result with fewer operations than are counted."""
    return row.op.startswith(_FEWER)


def abridge_names(names: Sequence[str]) -> str:
    """Format node names with their common path written once: ``a/b/{X, Y}, a/Z``."""
    groups: dict[str, list[str]] = {}
    for name in names:
        path, slash, last = name.rpartition("/")
        groups.setdefault(path + slash, []).append(last)
    return ", ".join(
        f"{path}{{{', '.join(last)}}}"
        if len(last) > 1 and path
        else ", ".join(path + n for n in last)
        for path, last in groups.items()
    )


def profile_summary(profile: Profile) -> Iterator[str]:
    """Yield totals, limits and the method of measurement."""
    known = [row for row in profile.rows if row.bytes is not None]
    before, after = (sum(getattr(r, n) or 0.0 for r in known) for n in ("unfused", "bytes"))
    levels = ", ".join(f"{m.name} {m.gbytes:.0f} GB/s" for m in profile.roofs.memories)
    nodes = f"{len(profile.rows)} node{'s' * (len(profile.rows) != 1)}"
    yield (
        f"{profile.us / 1e3:.2f} ms in {nodes}, {profile.in_programs:.1%} of it in programs; "
        f"a whole run takes {profile.run_ms:.2f} ms"
    )
    yield (
        f"bytes moved: {format_bytes(before)} before (operator by operator), "
        f"{format_bytes(after)} after (what a node must read and write)"
    )
    peaks = ", ".join(f"{peak:.0f} GFLOP/s {name}" for name, peak in profile.roofs.peaks.items())
    yield f"limits ({profile.roofs.source}): {peaks}, {levels}"
    yield (
        f"{profile.profiling_us:g} µs of profiling overhead were subtracted from each node's "
        f"median; a node whose bounds explain less than {EXPLAINED:.0%} of its time is bound by "
        "overhead"
    )
    if any(fewer_operations(call) for row in profile.rows for call in row.calls):
        yield (
            "* Winograd kernels multiply up to 4 times less than the direct convolution, whose "
            "FLOPs are counted here; their GFLOP/s may therefore exceed the peak"
        )
    yield from map(plain_text, profile.notes)
    yield from (f"warning: {plain_text(text)}" for text in profile.warnings)
    yield environment_line(profile.versions, profile.machine)


def _label(family: NodeGroup, names: LayerNames) -> tuple[Text, str]:
    """The layers of a group of nodes, and their operator without its hash."""
    nodes = [name for row in family.rows for name in row.originals or (row.name,)]
    style = "" if family.kernel else "dim"
    op = family.op.rpartition("_")[0] if family.kernel else ""
    return Text(plain_text(names.of(nodes)), style=style), plain_text(op or family.op)


def _inner(call: ProfileRow) -> Text:
    return Text(f"  {call.op}", style="italic")


def _rest(rows: Sequence[ProfileRow], profile: Profile) -> tuple[str, str]:
    us = sum(row.us for row in rows)
    return format_three_digits(us), f"{us / (profile.us or 1.0):.1%}"
