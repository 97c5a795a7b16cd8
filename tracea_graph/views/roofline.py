"""Roofline plot of a profile: as SVG and HTML without a plotting library, or as PNG.

Both axes are logarithmic: operations per byte against operations per second.  Slanted lines are
memory bandwidths, the flat one is the arithmetic peak.  A group of equal nodes or of equal kernel
calls of programs is a disk whose area is its fraction of the time; its distance to the roofs is
the potential gain. Source: Williams, Waterman, Patterson, "Roofline" (CACM 2009).
"""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2

from tracea_graph.errors import UsageError
from tracea_graph.views.profile_record import (
    MOST,
    PETTY,
    NodeGroup,
    Profile,
    ProfileRow,
    Roofs,
    group_equal_nodes,
    notable_groups,
)
from tracea_graph.views.profile_table import (
    abridge_names,
    profile_cells,
    profile_headline,
    profile_summary,
)
from tracea_graph.views.terminal_tables import plain_text

__all__ = ["check_png", "profile_page", "roofline_png", "roofline_svg"]

PAGE = (1010, 540)
LEFT, TOP, WIDTH, HEIGHT = 62.0, 50.0, 560.0, 430.0
NAMED = 13
"""Number of groups the legend has room for; only these show their number."""
X_LABEL, Y_LABEL = "operations per byte moved (FLOP/byte)", "GFLOP/s"
LARGEST, SMALLEST = 34.0, 4.0
"""Radius in pixels of a disk for all the time, and of the smallest disk drawn."""
_TAG, _CHARACTER = 8.0, 7.0
"""Radius in pixels of a number in a circle, and width of a character at most."""
_ANGLES, _DISTANCES = 16, (12.0, 24.0, 38.0, 54.0, 72.0)
_COLOURS = {"kernel": "#2b6cb0", "own": "#c05621"}
"""Colors of the PNG, which is for light pages."""
_CLASSES = {True: "kernel", False: "own"}
"""Classes in the style sheets of the drawing and of the page."""
_KINDS = {True: "generated kernels", False: "ONNX Runtime's own"}

Point = tuple[float, float]


@dataclass(frozen=True)
class PlotDisk:
    """A disk that represents a group of nodes; positions are in pixels.

    ``tag`` is where its number is printed; disks that do not fit in the legend have no number.
    """

    family: NodeGroup
    number: int
    x: float
    y: float
    radius: float
    tag: Point

    @property
    def count(self) -> str:
        """How many nodes or kernel calls of programs the disk shows."""
        rows = self.family.rows
        return f"{len(rows)} {'node' if rows[0].name else 'call'}{'s' * (len(rows) > 1)}"

    @property
    def kind(self) -> str:
        return _CLASSES[self.family.kernel]

    @property
    def inside(self) -> bool:
        """Whether the number is inside the disk and needs no line to it."""
        return self.tag == (self.x, self.y)


@dataclass(frozen=True)
class RoofLine:
    """A roof in pixels; its label is at ``at``, along the line."""

    label: str
    start: Point
    end: Point
    at: Point

    @property
    def angle(self) -> float:
        """Angle of the label in degrees."""
        return math.degrees(math.atan2(self.end[1] - self.start[1], self.end[0] - self.start[0]))


@dataclass(frozen=True)
class PlotScale:
    """The ranges of intensity (FLOP/byte) and rate (GFLOP/s) that the plot covers."""

    low: Point
    high: Point

    @classmethod
    def of(cls, roofs: Roofs, shown: Sequence[NodeGroup]) -> PlotScale:
        """Return ranges that contain every disk and the corner of every roof."""
        corners = [roofs.gflops / m.gbytes for m in roofs.memories]
        xs = [family.rows[0].intensity for family in shown]
        ys = [family.total.gflops for family in shown]
        return cls(
            (min(*xs, *corners, math.inf) / 3, min([*ys, roofs.gflops / 30]) / 1.6),
            (max(*xs, *corners, 0.0) * 3, max([*ys, *roofs.peaks.values()]) * 1.9),
        )

    def at(self, x: float, y: float) -> Point:
        """Return the pixel position of an intensity and a rate."""
        (x0, y0), (x1, y1) = self.low, self.high
        right, up = math.log(x / x0) / math.log(x1 / x0), math.log(y / y0) / math.log(y1 / y0)
        return LEFT + WIDTH * right, TOP + HEIGHT * (1 - up)

    def ticks(self, axis: int) -> list[tuple[str, float]]:
        """Return 1, 2 and 5 times each power of ten along an axis, with their pixels."""
        low, high = self.low[axis], self.high[axis]
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
        steps = (1,) if high / low > 3e3 else (1, 2, 5)
        values = [s * 10.0**p for p in powers for s in steps]
        return [
            (f"{v:g}", self.at(*((v, self.low[1]) if axis == 0 else (self.low[0], v)))[axis])
            for v in values
            if low <= v <= high
        ]


def roofline_svg(profile: Profile) -> str:
    """Return the plot with a legend of all disks, a self-contained SVG."""
    return _render("roofline.svg.jinja", style=_text("roofline.css"), **_scene(profile))


def profile_page(profile: Profile) -> str:
    """Return a profile's roofline plot and its figures as one HTML page, light or dark.

    The page has no scripts and needs no other file.
    """
    named, rest = notable_groups(profile)
    drawn = _drawn(profile)[:NAMED]
    numbers = {(f.op, f.rows[0].size): index + 1 for index, f in enumerate(drawn)}
    return _render(
        "profile.html.jinja",
        title=profile_headline(profile),
        style=_text("page.css"),
        svg=roofline_svg(profile),
        families=[
            (
                _number(numbers, f.rows[0]),
                f,
                profile_cells(f.total, profile),
                [(_number(numbers, call), call, profile_cells(call, profile)) for call in f.calls],
            )
            for f in named
        ],
        rest=rest,
        largest=max((family.us for family in named), default=0.0) or 1.0,
        rows=[
            (r, profile_cells(r, profile), _inner(r.calls if len(r.calls) > 1 else (), profile))
            for r in profile.rows
        ],
        summary=list(profile_summary(profile)),
    )


def _number(numbers: Mapping[tuple[str, str], int], row: ProfileRow) -> str:
    """Return the number of the disk that shows a row; empty for programs, which show as calls."""
    return "" if len(row.calls) > 1 else str(numbers.get((row.op, row.size), ""))


def _inner(
    calls: Sequence[ProfileRow], profile: Profile
) -> list[tuple[ProfileRow, tuple[str, ...]]]:
    return [(call, profile_cells(call, profile)) for call in calls]


def check_png() -> None:
    """Raise UsageError if matplotlib, which :func:`roofline_png` needs, is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "a PNG needs matplotlib: pip install tracea-graph[notebook], or write an SVG"
        )


def roofline_png(profile: Profile) -> bytes:
    """Return the plot as PNG; raises UsageError without matplotlib."""
    check_png()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE[0] / 100, PAGE[1] / 100), dpi=150)
    _plot(figure.add_axes((0.0, 0.0, 1.0, 1.0)), _scene(profile))
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


# ---- layout ----------------------------------------------------------------------------


def _scene(profile: Profile) -> dict[str, Any]:
    """Everything that is drawn, in pixels."""
    shown, total = _drawn(profile), profile.us or 1.0
    scale = PlotScale.of(profile.roofs, shown)
    return {
        "title": profile_headline(profile),
        "x_label": X_LABEL,
        "y_label": Y_LABEL,
        "page": PAGE,
        "disks": _disks(profile, shown, scale),
        "named": NAMED,
        "lines": list(_lines(profile.roofs, scale)),
        "x_ticks": scale.ticks(0),
        "y_ticks": scale.ticks(1),
        "left": LEFT,
        "top": TOP,
        "right": LEFT + WIDTH,
        "bottom": TOP + HEIGHT,
        "total": total,
        "kinds": [(_KINDS[k], _CLASSES[k]) for k in _KINDS if any(f.kernel == k for f in shown)],
        "rest": max(0.0, 1.0 - sum(family.us for family in shown) / total),
    }


def _drawn(profile: Profile) -> list[NodeGroup]:
    """Groups of nodes and kernel calls that compute something and are long enough to measure."""
    every = group_equal_nodes([call for row in profile.rows for call in _calls_of(row)])[:MOST]
    return [
        f for f in every
        if f.us >= PETTY * profile.us and f.rows[0].intensity > 0 and f.total.gflops > 0
    ]  # fmt: skip


def _calls_of(row: ProfileRow) -> Sequence[ProfileRow]:
    """The calls of a program with several kernel calls; any other node itself."""
    return row.calls if len(row.calls) > 1 else (row,)


def _disks(profile: Profile, shown: Sequence[NodeGroup], scale: PlotScale) -> list[PlotDisk]:
    disks: list[PlotDisk] = []
    for number, family in enumerate(shown, 1):
        x, y = scale.at(family.rows[0].intensity, family.total.gflops)
        radius = max(SMALLEST, LARGEST * math.sqrt(family.us / (profile.us or 1.0)))
        disks.append(PlotDisk(family, number, x, y, radius, (x, y)))
    tags: list[Point] = []
    placed: list[PlotDisk] = []
    for disk in disks:
        tag = _tag(disk, disks, tags) if disk.number <= NAMED else disk.tag
        tags.append(tag)
        placed.append(PlotDisk(disk.family, disk.number, disk.x, disk.y, disk.radius, tag))
    return placed


def _tag(disk: PlotDisk, disks: Sequence[PlotDisk], tags: Sequence[Point]) -> Point:
    """Nearest position for a disk's number that overlaps neither numbers nor other disks."""
    others = [other for other in disks if other is not disk]
    centre = (disk.x, disk.y)
    places = [centre] if disk.radius > _TAG else []
    for distance in _DISTANCES:
        for turn in range(_ANGLES):
            angle, reach = 2 * math.pi * turn / _ANGLES, disk.radius + distance
            places.append((disk.x + reach * math.cos(angle), disk.y - reach * math.sin(angle)))
    for place in places:
        clear = all(math.dist(place, (o.x, o.y)) > o.radius + _TAG for o in others)
        free = all(math.dist(place, tag) > 2 * _TAG for tag in tags)
        within = LEFT + _TAG < place[0] < LEFT + WIDTH - _TAG and place[1] > TOP + _TAG
        if clear and free and within and place[1] < TOP + HEIGHT - _TAG:
            return place
    return centre


def _lines(roofs: Roofs, scale: PlotScale) -> Iterator[RoofLine]:
    """The peaks, and each memory up to the highest.

    Labels are where few disks lie: left of a peak if there is room, and low on a memory's line.
    """
    (x0, y0), (x1, _) = scale.low, scale.high
    widths = [m.gbytes for m in roofs.memories]
    for name, peak in roofs.peaks.items():
        x, y = scale.at(peak / max(widths), peak)
        label = f"{peak:.0f} GFLOP/s {name}"
        before = x - _CHARACTER * len(label)
        at = (before, y + 4) if before >= LEFT else (x + 8, y - 6)
        yield RoofLine(label, (x, y), scale.at(x1, peak), at=at)
    for memory in roofs.memories:
        first = max(x0, y0 / memory.gbytes)
        corner = roofs.gflops / memory.gbytes
        highest = max(roofs.peaks.values())
        middle = math.exp(0.72 * math.log(first) + 0.28 * math.log(corner))
        x, y = scale.at(middle, middle * memory.gbytes)
        yield RoofLine(
            f"{memory.name} {memory.gbytes:.0f} GB/s",
            scale.at(first, first * memory.gbytes),
            scale.at(highest / memory.gbytes, highest),
            at=(x, y),
        )


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"plain": plain_text, "abridged": abridge_names}
    return made


def _render(template: str, **values: Any) -> str:
    return _environment().from_string(_text(template)).render(**values)


def _text(name: str) -> str:
    return resources.files("tracea_graph.views").joinpath(name).read_text("utf-8")


# ---- matplotlib ------------------------------------------------------------------------


def _plot(axes: Any, scene: Mapping[str, Any]) -> None:
    """Draw the scene in the SVG's pixel coordinates."""
    left, right, top, bottom = (scene[k] for k in ("left", "right", "top", "bottom"))
    axes.set(xlim=(0, PAGE[0]), ylim=(PAGE[1], 0), aspect="equal")
    axes.set_axis_off()

    def write(at: Point, text: str, **style: Any) -> None:
        axes.text(*at, text, **{"color": "#4a5565", "size": 8.5, **style})

    def draw(a: Point, b: Point, colour: str) -> None:
        axes.plot((a[0], b[0]), (a[1], b[1]), color=colour, linewidth=0.9)

    write((left, 24), scene["title"], color="#1c2430", size=11, weight="bold")
    for index, (name, kind) in enumerate(scene["kinds"]):
        write((left + 150 * index, 42), f"● {name}", color=_COLOURS[kind])
    write(((left + right) / 2, bottom + 40), X_LABEL, ha="center")
    write((16, (top + bottom) / 2), Y_LABEL, rotation=90, va="center")
    for label, x in scene["x_ticks"]:
        draw((x, top), (x, bottom), "#e6eaef")
        write((x, bottom + 17), label, ha="center")
    for label, y in scene["y_ticks"]:
        draw((left, y), (right, y), "#e6eaef")
        write((left - 7, y), label, ha="right", va="center")
    for line in scene["lines"]:
        draw(line.start, line.end, "#7b8794")
        turn = {"rotation": -line.angle, "rotation_mode": "anchor"}
        write((line.at[0], line.at[1] - 4), line.label, **turn)
    for index, disk in enumerate(scene["disks"]):
        centre, colour = (disk.x, disk.y), _COLOURS[disk.kind]
        axes.add_artist(_circle(centre, disk.radius, facecolor=colour, alpha=0.6, zorder=2.5))
        if index >= NAMED:
            continue
        if not disk.inside:
            draw(centre, disk.tag, colour)
            axes.add_artist(_circle(disk.tag, _TAG, edgecolor=colour, facecolor="white", zorder=3))
        inked = {"color": "white" if disk.inside else colour, "size": 8, "zorder": 4}
        write(disk.tag, str(disk.number), ha="center", va="center_baseline", **inked)
        share = disk.family.us / scene["total"]
        said = f"{disk.number}  {disk.family.op} {disk.family.rows[0].size}, {share:.1%}"
        write((right + 26, top + 12 + index * 33), plain_text(said))


def _circle(at: Point, radius: float, **style: Any) -> Any:
    from matplotlib.patches import Circle

    return Circle(at, radius, **style)
