"""What GPUs do to a graph before it is lowered, in order: views, then programs."""

from __future__ import annotations

from tracea_graph.passes import CONNECT, MOVEMENT, Request, trunk
from tracea_graph.rewrite import Phase

__all__ = ["phases"]


def phases(request: Request) -> tuple[Phase, ...]:
    """The phases after those of :func:`tracea_graph.passes.phases`."""
    return (
        Phase(CONNECT, (trunk.ConnectTrunk(),)),
        *MOVEMENT,
        Phase(CONNECT, (trunk.ConnectBlocks(),)),
    )
