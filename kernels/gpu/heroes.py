"""Known-good matmul tiles for each GPU architecture (heroes), used by the policy.

Limits are per SM, from NVIDIA's CUDA C++ Programming Guide (table of compute capabilities) and
architecture whitepapers.  The tiles seed a search; measurements decide what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tracea_graph.policy import Processor

__all__ = ["HEROES"]


def _gpu(name: str, shared: int, l2: int, flops: int, *square: tuple[int, ...]) -> Processor:
    """Describe a GPU; each ``square`` is (tile_m, tile_n, tile_k, stages, warps)."""
    axes = ("tile_m", "tile_n", "tile_k", "stages", "warps")
    flat = (16, 128, 64, 3 if shared > 128 else 2, 4)
    return Processor(
        name, "cuda", shared << 10, l2 << 20, flops, 32, 65536,
        {
            "square": tuple(dict(zip(axes, one, strict=True)) for one in square),
            "flat": (dict(zip(axes, flat, strict=True)),),
        },
    )  # fmt: skip


_ALL = (
    _gpu("sm_80", 163, 40, 128, (128, 256, 32, 3, 8), (128, 128, 32, 4, 4)),
    _gpu("sm_86", 99, 6, 256, (128, 128, 32, 3, 4), (64, 128, 32, 4, 4)),
    _gpu("sm_89", 99, 72, 256, (128, 128, 32, 3, 4), (128, 64, 64, 3, 4)),
    _gpu("sm_90", 227, 50, 256, (128, 256, 64, 4, 8), (128, 128, 64, 4, 4)),
    _gpu("sm_100", 227, 126, 256, (128, 256, 64, 4, 8), (256, 128, 64, 3, 8)),
)
HEROES: Mapping[str, Processor] = MappingProxyType({a.name: a for a in _ALL})
"""Heroes by the architecture's name."""
