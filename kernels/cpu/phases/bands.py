"""Steps of a program take turns, some rows each, where what lies between them would not stay near.

FusedRegion -> FusedRegion with ``bands`` (``ops.region.RowBand``)

Which steps, and how many rows a turn makes, the tile graph's plan says (``ttg.plan``): turns that
do not fit are rejected by footprint, of the others the few that move the fewest bytes are
proposed.  The first is taken; whether another pays more, and any of them at all, is measured
against the same program without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tracea_graph.errors import GraphError
from tracea_graph.kernels.cpu.lowering.loops import NotCut
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.ops.bands import plans_inside, row_bands
from tracea_graph.ops.inside import Inside
from tracea_graph.ops.region import RegionParams, RowBand
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import ROOMS, MemoryLevel, Region, TileGraph

__all__ = ["BANDED", "LENGTHS", "RunInBands"]

BANDED = "bands"
"""The rule's name."""
LENGTHS = (BANDED, *(f"{BANDED}-{i}" for i in range(2, len(ROOMS) + 1)))
"""What its proposals are called, those with the longest turns first."""

_OPEN = "sizes of what {!r} is made of are known only when it runs"


@dataclass(frozen=True)
class RunInBands:
    """Bands for symbol values ``sizes`` and the machine's memory ``levels``, innermost first."""

    sizes: Mapping[str, int]
    levels: Sequence[MemoryLevel]
    name: str = BANDED

    def propose(self, graph: TileGraph, region: Region) -> Iterator[Proposal | Miss]:
        params = region.params
        if not isinstance(params, RegionParams) or params.bands:
            return
        inside = Inside(graph, region)
        plans = plans_inside(inside, self.sizes, self.levels, ROOMS)
        told, known = set[Miss](), set[tuple[RowBand, ...]]()
        for rule in LENGTHS:
            try:
                plan = next(plans)
            except GraphError:
                yield Miss(self.name, region.id, _OPEN.format(region.results[0]))
                return
            bands, why = self._fit(graph, region, row_bands(inside, plan))
            yield from (miss for miss in why if miss not in told)
            told |= {*why}
            if bands and bands not in known:
                known.add(bands)
                new = replace(region, params=replace(params, bands=bands))
                yield Proposal(rule, (region,), (new,))

    def _fit(
        self, graph: TileGraph, region: Region, bands: tuple[RowBand, ...]
    ) -> tuple[tuple[RowBand, ...], list[Miss]]:
        """Those that kernels can run, and why not the others.

        Mostly all of them can be cut; which cannot is found out one by one.
        """
        if not bands or _why_not(graph, region, bands) is None:
            return bands, []
        why = {band: _why_not(graph, region, (band,)) for band in bands}
        misses = [
            Miss(self.name, region.id, f"{_steps(region, band)}: {reason}")
            for band, reason in why.items()
            if reason is not None
        ]
        return tuple(band for band in bands if why[band] is None), misses


def _steps(region: Region, band: RowBand) -> str:
    """Some steps, by what they read from outside their program."""
    params: RegionParams = region.params
    reads = [
        region.operands[i]
        for step in params.steps[band.first : band.last + 1]
        for i in step.operands
        if i < params.inputs
    ]
    if not reads:
        return f"{band.last + 1 - band.first} steps of {region.results[0]!r}"
    return f"from the step that reads {reads[0]!r} to the one that reads {reads[-1]!r}"


def _why_not(graph: TileGraph, region: Region, bands: tuple[RowBand, ...]) -> str | None:
    """Why the calls of some steps cannot take turns; None if they can."""
    try:
        lower(graph, replace(region, params=replace(region.params, bands=bands)))
    except NotCut as error:
        return str(error)
    return None
