"""Known processors: the figures a tile has to fit, and the tiles that do well on each (heroes).

Figures are a core's (an SM's) unless they say otherwise, from the makers' documents: AMD's
Software Optimization Guides for families 17h, 19h and 1Ah, Intel's Optimization Reference Manual,
Apple's Silicon CPU Optimization Guide, and NVIDIA's CUDA C++ Programming Guide (table of compute
capabilities) and architecture whitepapers.  They seed a search; what is kept is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tracea_graph.hardware.cpu import CpuProfile

__all__ = ["ARCHITECTURES", "Architecture", "architecture_of"]


@dataclass(frozen=True)
class Architecture:
    """One family of processors.

    ``near`` are bytes a tile's operands may take (L1 of a core, shared memory of a block),
    ``far`` those of the next level (L2); ``flops`` fp32 operations a cycle, ``lanes`` fp32 lanes
    of a vector (a warp), ``registers`` vector registers (32-bit registers of an SM, for GPUs).
    ``heroes`` are configurations of a matrix product by kind of shape: ``square`` and ``flat``.
    """

    name: str
    device: str
    near: int
    far: int
    flops: int
    lanes: int
    registers: int
    heroes: Mapping[str, tuple[Mapping[str, int], ...]] = field(default_factory=dict)


def _cpu(
    name: str, near: int, far: int, flops: int, lanes: int, tile: tuple[int, int], rows: int
) -> Architecture:
    """``tile``: rows and columns of the register tile; ``rows``: of a task on large problems."""
    registers = 16 if lanes == 8 else 32
    m, n = tile
    return Architecture(
        name, "cpu", near << 10, far << 10, flops, lanes, registers,
        {
            "square": ({"tile_m": m, "tile_n": n, "tile_k": 256, "rows": rows},
                       {"tile_m": m, "tile_n": n, "tile_k": 512, "rows": 2 * rows}),
            "flat": ({"tile_m": min(m, 4), "tile_n": n, "tile_k": 512, "rows": 32},),
        },
    )  # fmt: skip


def _gpu(name: str, shared: int, l2: int, flops: int, *square: tuple[int, ...]) -> Architecture:
    """``square``: tile_m, tile_n, tile_k, stages, warps."""
    axes = ("tile_m", "tile_n", "tile_k", "stages", "warps")
    flat = (16, 128, 64, 3 if shared > 128 else 2, 4)
    return Architecture(
        name, "cuda", shared << 10, l2 << 20, flops, 32, 65536,
        {
            "square": tuple(dict(zip(axes, one, strict=True)) for one in square),
            "flat": (dict(zip(axes, flat, strict=True)),),
        },
    )  # fmt: skip


_ALL = (
    _cpu("zen2", 32, 512, 32, 8, (6, 16), 96),
    _cpu("zen3", 32, 512, 32, 8, (6, 16), 96),
    _cpu("zen4", 32, 1024, 32, 16, (8, 48), 128),
    _cpu("zen5", 48, 1024, 64, 16, (8, 48), 128),
    _cpu("ice-lake", 48, 1280, 64, 16, (8, 48), 128),
    _cpu("sapphire-rapids", 48, 2048, 64, 16, (8, 48), 192),
    _cpu("apple-m", 128, 4096, 32, 4, (8, 12), 128),
    _gpu("sm_80", 163, 40, 128, (128, 256, 32, 3, 8), (128, 128, 32, 4, 4)),
    _gpu("sm_86", 99, 6, 256, (128, 128, 32, 3, 4), (64, 128, 32, 4, 4)),
    _gpu("sm_89", 99, 72, 256, (128, 128, 32, 3, 4), (128, 64, 64, 3, 4)),
    _gpu("sm_90", 227, 50, 256, (128, 256, 64, 4, 8), (128, 128, 64, 4, 4)),
    _gpu("sm_100", 227, 126, 256, (128, 256, 64, 4, 8), (256, 128, 64, 3, 8)),
)
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({a.name: a for a in _ALL})
"""By name."""

_KB = 1 << 10


def architecture_of(cpu: CpuProfile) -> Architecture | None:
    """The family a processor belongs to, told by maker, vectors and caches; None if unknown."""
    model, wide = cpu.model.lower(), "avx512" in cpu.isas
    if "apple" in model:
        return ARCHITECTURES["apple-m"]
    if "amd" in model:
        if wide:
            return ARCHITECTURES["zen5" if cpu.l1d >= 48 * _KB else "zen4"]
        if "avx2" in cpu.isas and cpu.l2 >= 512 * _KB:
            return ARCHITECTURES["zen3" if cpu.l3 >= 32 << 20 else "zen2"]
    if "intel" in model and wide:
        return ARCHITECTURES["sapphire-rapids" if cpu.l2 >= 2048 * _KB else "ice-lake"]
    return None
