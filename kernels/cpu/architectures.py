"""Known processor families: per-core figures, and tiles that perform well on each.

Sources: AMD's Software Optimization Guides for families 17h, 19h and 1Ah, Intel's Optimization
Reference Manual, and Apple's Silicon CPU Optimization Guide.  The tiles seed a search; the
schedules it keeps are measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tracea_graph.hardware.cpu import CpuProfile
from tracea_graph.kernels.cpu.levels import levels_of
from tracea_graph.policy import Processor

__all__ = ["ARCHITECTURES", "architecture_of"]


def _cpu(
    name: str, near: int, far: int, flops: int, lanes: int, tile: tuple[int, int], rows: int
) -> Processor:
    """A CPU family; ``near`` and ``far`` are its L1 and L2 sizes in KiB.

    ``flops``: per cycle; ``tile``: rows and columns of the register tile; ``rows``: rows of a
    task on large problems.
    """
    registers = 16 if lanes == 8 else 32
    m, n = tile
    return Processor(
        name, "cpu", near << 10, far << 10, flops, lanes, registers,
        {
            "square": ({"tile_m": m, "tile_n": n, "tile_k": 256, "rows": rows},
                       {"tile_m": m, "tile_n": n, "tile_k": 512, "rows": 2 * rows}),
            "flat": ({"tile_m": min(m, 4), "tile_n": n, "tile_k": 512, "rows": 32},),
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
)
ARCHITECTURES: Mapping[str, Processor] = MappingProxyType({a.name: a for a in _ALL})
"""Known processor families by name."""

_KB = 1 << 10


def architecture_of(cpu: CpuProfile) -> Processor | None:
    """The family of a processor, from its vendor, levels and cache sizes; None if unknown."""
    model, levels = cpu.model.lower(), levels_of(cpu)
    wide = "avx512" in levels
    if "apple" in model:
        return ARCHITECTURES["apple-m"]
    if "amd" in model:
        if wide:
            return ARCHITECTURES["zen5" if cpu.l1d >= 48 * _KB else "zen4"]
        if "avx2" in levels and cpu.l2 >= 512 * _KB:
            return ARCHITECTURES["zen3" if cpu.l3 >= 32 << 20 else "zen2"]
    if "intel" in model and wide:
        return ARCHITECTURES["sapphire-rapids" if cpu.l2 >= 2048 * _KB else "ice-lake"]
    return None
