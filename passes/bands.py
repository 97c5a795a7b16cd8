"""Steps of a program take turns, some rows each, where what lies between them would not stay near.

FusedRegion -> FusedRegion with ``bands`` (``ops.region.RowBand``)

Which steps, and how many rows a turn makes, the tile graph's plan says (``ttg.plan``); whether
that pays is measured against the same program without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tracea_graph.errors import GraphError
from tracea_graph.ops.bands import plan_inside, row_bands
from tracea_graph.ops.inside import Inside
from tracea_graph.ops.region import RegionParams, RowBand
from tracea_graph.passes.lowering.loops import NotCut
from tracea_graph.passes.lowering.lower import lower
from tracea_graph.rewrite import Miss, Proposal
from tracea_graph.ttg import MemoryLevel, Region, TileGraph

__all__ = ["BANDED", "RunInBands"]

BANDED = "bands"
"""The rule's name."""


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
        try:
            inside = Inside(graph, region)
            bands = row_bands(inside, plan_inside(inside, self.sizes, self.levels))
        except GraphError as error:
            yield Miss(self.name, region.id, f"its sizes are not known: {error}")
            return
        # mostly all of them can be cut; which cannot is found out one by one
        if bands and _why_not(graph, region, params, bands) is not None:
            why = {band: _why_not(graph, region, params, (band,)) for band in bands}
            bands = tuple(band for band in bands if why[band] is None)
            yield from (
                Miss(self.name, region.id, f"steps {band.first} to {band.last}: {reason}")
                for band, reason in why.items()
                if reason is not None
            )
        if bands:
            new = replace(region, params=replace(params, bands=bands))
            yield Proposal(self.name, (region,), (new,))


def _why_not(
    graph: TileGraph, region: Region, params: RegionParams, bands: tuple[RowBand, ...]
) -> str | None:
    """Why the calls of some steps cannot take turns; None if they can."""
    try:
        lower(graph, replace(region, params=replace(params, bands=bands)))
    except NotCut as error:
        return str(error)
    return None
