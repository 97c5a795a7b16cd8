"""What GPUs do to a graph before it is lowered, in order: views, then programs."""

from __future__ import annotations

from tracea_graph.passes import CONNECT, MOVEMENT, Request, trunk
from tracea_graph.rewrite import Phase

__all__ = ["phases"]

_MOST_STEPS, _MOST_OPERANDS = 2000, 1000
"""Of one program: what a plan holds, with room for scratch."""


def phases(request: Request) -> tuple[Phase, ...]:
    """The phases after those of :func:`tracea_graph.passes.phases`."""
    return (
        *MOVEMENT,
        Phase(CONNECT, (trunk.ConnectAll(_MOST_STEPS, _MOST_OPERANDS),)),
    )
