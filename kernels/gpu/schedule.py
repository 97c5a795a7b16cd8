"""Schedules of the GPU backend: the tile that a matmul, convolution or attention runs in."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.kernels.program import Schedule

__all__ = ["IMAGE_SCHEDULES", "TILE_SCHEDULES", "TileSchedule"]


@dataclass(frozen=True)
class TileSchedule(Schedule):
    """The tile of a matmul, of a convolution, which is computed as a matmul, or of attention.

    It applies to at most ``max_rows`` rows, images of a convolution, or tokens or sequences of
    attention.  A tile has ``m`` rows and ``n`` columns, or ``m`` queries and ``n`` keys.  It
    advances by ``k`` elements of the depth at a time (0: the whole depth), and ``stages`` such
    steps are in flight.  ``split`` blocks of a cluster share the depth.  ``pingpong`` is 1 if two
    tiles are multiplied alternately, ``pair`` if two blocks of a cluster share their rows of x.
    If all are 0, the backend's rule chooses the tile.
    """

    max_rows: int
    m: int = 0
    n: int = 0
    k: int = 0
    stages: int = 0
    split: int = 0
    pingpong: int = 0
    pair: int = 0

    @property
    def tile(self) -> tuple[int, ...]:
        """The numbers that identify the kernel."""
        return self.m, self.n, self.k, self.stages, self.split, self.pingpong, self.pair

    @property
    def text(self) -> str:
        if not any(self.tile):
            return "the tile that the backend's rule chooses"
        depth = f", depth in steps of {self.k}" if self.k else ""
        stages = f", {self.stages} stages" if self.stages else ""
        split = f", depth shared by {self.split} blocks" if self.split > 1 else ""
        shared = ", two in turn" * self.pingpong + ", rows shared by 2 blocks" * self.pair
        return f"tiles of {self.m}x{self.n}{depth}{stages}{split}{shared}"


TILE_SCHEDULES: tuple[TileSchedule, ...] = tuple(
    map(TileSchedule, (64, 256, 1024, 4096, 2**31 - 1))
)
"""Ranges of rows or tokens that are tuned separately, by their largest number."""
IMAGE_SCHEDULES: tuple[TileSchedule, ...] = tuple(map(TileSchedule, (1, 4, 16, 64, 2**31 - 1)))
"""Ranges of images or sequences that are tuned separately, by their largest number."""
