"""Drivers: how the library divides the work of one product or one convolution."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.kernels.program import Driver

__all__ = ["ConvDriver", "GemmDriver"]


@dataclass(frozen=True)
class GemmDriver(Driver):
    """Loop order and blocking of one GEMM for up to ``max_rows`` rows; pure data.

    ``tile_panels``: 16-wide panels per register tile (0: the variant's own).
    ``row_chunk``: rows per task.  ``panel_group``: register-tile columns per task (0: automatic).
    ``prefetch``: cache lines of the next panel are prefetched when 1.
    """

    max_rows: int
    tile_panels: int = 0
    row_chunk: int = 128
    panel_group: int = 0
    prefetch: int = 1

    @property
    def text(self) -> str:
        width = f"{self.tile_panels} panels" if self.tile_panels else "widest tile"
        group = f", {self.panel_group} columns a task" if self.panel_group else ""
        return f"{width}, {self.row_chunk} rows{group}{', prefetch' if self.prefetch else ''}"


@dataclass(frozen=True)
class ConvDriver(Driver):
    """How one convolution of up to ``max_images`` images is cut; pure data, 0: automatic.

    ``pixels``: outputs of a tile's line, at most the variant's.  ``lines``: 1 keeps tiles of
    narrow images from taking two lines.  ``part``: input blocks summed at once.  ``bands``: tasks
    over the tiles of one image; Winograd's one band is shared by all threads.  ``columns``:
    groups of output channels per task.
    """

    max_images: int = 2**31 - 1
    pixels: int = 0
    lines: int = 0
    part: int = 0
    bands: int = 0
    columns: int = 0
