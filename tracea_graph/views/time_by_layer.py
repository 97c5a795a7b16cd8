"""A profile by layer and by op type: where the time of a model goes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracea_graph.views.layer_names import LayerNames
from tracea_graph.views.profile_record import Profile, ProfileRow

__all__ = ["LayerTime", "OpTotals", "layer_times", "op_totals"]

_NUMBERED = re.compile(r"\d")


@dataclass
class LayerTime:
    """The kernel calls and operators of one layer; times are in µs.

    ``limit_us`` is the minimum time for the layer's work according to the machine's limits, at
    most ``us``; ``known_us`` is the time of rows whose work is known.
    """

    name: str
    rows: list[ProfileRow] = field(default_factory=list)
    steps: list[LayerTime] = field(default_factory=list)

    @property
    def us(self) -> float:
        return sum(row.us for row in self.rows)

    @property
    def known_us(self) -> float:
        return sum(row.us for row in self.rows if row.flops is not None)

    @property
    def limit_us(self) -> float:
        return sum(min(row.us, max(row.compute_us, row.memory_us)) for row in self.rows)

    @property
    def kernel(self) -> bool:
        """Whether generated kernels take most of its time."""
        return 2 * sum(row.us for row in self.rows if row.kernel) > self.us

    @property
    def ops(self) -> str:
        """The kernels or operators, each once, in order."""
        return ", ".join(dict.fromkeys(row.op for row in self.rows))

    @property
    def bound(self) -> str:
        """The bound of most of its time."""
        bounds: dict[str, float] = {}
        for row in self.rows:
            bounds[row.bound] = bounds.get(row.bound, 0.0) + row.us
        return max(bounds, key=bounds.__getitem__, default="")


def layer_times(profile: Profile, names: LayerNames) -> list[LayerTime]:
    """Return the layers of a model in the order in which they occur in the profile.

    A layer consists of the operators whose names agree up to the first numbered component, such as
    ``encoder/layer.0``.  Its ``steps`` are the modules inside it.
    """
    found: dict[str, LayerTime] = {}
    for name, row in _named(profile.rows, names):
        layer = found.setdefault(_block(name), LayerTime(_block(name)))
        layer.rows.append(row)
        step = next((s for s in layer.steps if s.name == name), None)
        if step is None:
            layer.steps.append(step := LayerTime(name))
        step.rows.append(row)
    return list(found.values())


def _named(rows: Sequence[ProfileRow], names: LayerNames) -> Iterator[tuple[str, ProfileRow]]:
    """Every kernel call and operator with the name of its layer."""
    for row in rows:
        calls = row.calls if len(row.calls) > 1 else ()
        before = ""
        for call in calls:
            before = names.of(call.originals) or before or names.of(row.originals)
            yield before, call
        if not calls:
            yield names.of(row.originals or (row.name,)) or row.name, row


def _block(name: str) -> str:
    """``encoder/layer.0`` of ``encoder/layer.0/attention``; the name itself without numbers."""
    parts = name.split("/")
    for i, part in enumerate(parts[:-1]):
        if _NUMBERED.search(part) or " … " in part:
            return "/".join(parts[: i + 1])
    return name


@dataclass(frozen=True)
class OpTotals:
    """Sums over all nodes or kernel calls of one op type; unknown FLOPs and bytes count as 0."""

    count: int
    us: float
    flops: float
    bytes: float


def op_totals(profile: Profile) -> Mapping[str, OpTotals]:
    """Return the totals of each op type; programs are divided into their kernel calls."""
    rows: dict[str, list[ProfileRow]] = {}
    for row in profile.rows:
        for one in row.calls or (row,):
            rows.setdefault(one.op, []).append(one)
    return {
        op: OpTotals(
            len(some), sum(r.us for r in some), sum(r.flops or 0.0 for r in some),
            sum(r.bytes or 0.0 for r in some),
        )
        for op, some in rows.items()
    }  # fmt: skip
