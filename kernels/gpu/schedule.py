"""Schedules of the GPU backend: the tile that a matrix multiplication or convolution runs in."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.kernels.program import Schedule

__all__ = ["IMAGE_SCHEDULES", "TILE_SCHEDULES", "TileSchedule"]


@dataclass(frozen=True)
class TileSchedule(Schedule):
    """The kernel of one matrix multiplication of up to ``max_rows`` rows, or of one convolution
    of so many images, by its tile.

    A tile has ``m`` rows and ``n`` columns, in steps of ``k`` of the depth (0: the whole of it),
    of which ``stages`` are in flight.  ``split`` blocks of a cluster share the depth.
    ``pingpong``: two tiles are multiplied in turn.  All 0: the backend's rule chooses.
    """

    max_rows: int
    m: int = 0
    n: int = 0
    k: int = 0
    stages: int = 0
    split: int = 0
    pingpong: int = 0

    @property
    def tile(self) -> tuple[int, ...]:
        """The numbers that tell kernels apart."""
        return self.m, self.n, self.k, self.stages, self.split, self.pingpong

    @property
    def text(self) -> str:
        if not any(self.tile):
            return "the tile that the rule chooses"
        depth = f", {self.k} of the depth at a time" if self.k else ""
        stages = f", {self.stages} stages" if self.stages else ""
        split = f", depth shared by {self.split}" if self.split > 1 else ""
        return f"tiles of {self.m}x{self.n}{depth}{stages}{split}{', in turn' * self.pingpong}"


TILE_SCHEDULES: tuple[TileSchedule, ...] = tuple(
    map(TileSchedule, (64, 256, 1024, 4096, 2**31 - 1))
)
"""Ranges of rows that are tuned apart."""
IMAGE_SCHEDULES: tuple[TileSchedule, ...] = tuple(map(TileSchedule, (1, 4, 16, 64, 2**31 - 1)))
"""The same of images."""
