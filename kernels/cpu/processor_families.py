"""Known processor families: per-core figures, and tiles that perform well on each.

Sources: AMD's Software Optimization Guides for families 17h, 19h and 1Ah, Intel's Optimization
Reference Manual, Arm's Software Optimization Guides and Technical Reference Manuals of each core,
and Apple's Silicon CPU Optimization Guide.  Arm's and Apple's cores were not measured; their tiles
are from ``python -m models.modelled_tiles``.  Tiles seed a search; the schedules it keeps are
measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from tracea_graph.hardware.cpu import CpuProfile
from tracea_graph.kernels.cpu.isa_levels import levels_of
from tracea_graph.policy import ProcessorFamily

__all__ = ["ARCHITECTURES", "architecture_of", "nominal_ghz", "pipes_of"]


def _cpu(
    name: str, near: int, far: int, flops: int, lanes: int, tile: tuple[int, int], rows: int
) -> ProcessorFamily:
    """A CPU family; ``near`` and ``far`` are its L1 and L2 sizes in KiB.

    ``flops``: per cycle; ``tile``: rows and columns of the register tile; ``rows``: rows of a
    task on large problems.
    """
    registers = 16 if lanes == 8 else 32
    m, n = tile
    return ProcessorFamily(
        name, "cpu", near << 10, far << 10, flops, lanes, registers,
        {
            "square": ({"tile_m": m, "tile_n": n, "tile_k": 256, "rows": rows},
                       {"tile_m": m, "tile_n": n, "tile_k": 512, "rows": 2 * rows}),
            "flat": ({"tile_m": min(m, 4), "tile_n": n, "tile_k": 512, "rows": 32},),
        },
    )  # fmt: skip


def _arm(name: str, near: int, far: int, pipes: int, tile: int = 6) -> ProcessorFamily:
    """A core with ``pipes`` multiply-add units of four lanes; ``tile``: rows of its tiles.

    ``far`` is its share of an L2 that several cores use.  A task's rows of A take a quarter of
    it, 512 steps of k deep.
    """
    rows = (far << 10) // 4 // (512 * 4)
    return _cpu(name, near, far, 8 * pipes, 4, (tile, 16), max(rows, 48))


_ALL = (
    _cpu("zen2", 32, 512, 32, 8, (6, 16), 96),
    _cpu("zen3", 32, 512, 32, 8, (6, 16), 96),
    _cpu("zen4", 32, 1024, 32, 16, (8, 48), 128),
    _cpu("zen5", 48, 1024, 64, 16, (8, 48), 128),
    _cpu("ice-lake", 48, 1280, 64, 16, (8, 48), 128),
    _cpu("sapphire-rapids", 48, 2048, 64, 16, (8, 48), 192),
    _arm("cortex-a53", 32, 128, 1, tile=4),
    _arm("cortex-a55", 32, 128, 1, tile=4),
    _arm("cortex-a76", 64, 512, 2),
    _arm("neoverse-n1", 64, 1024, 2),
    _arm("neoverse-v1", 64, 1024, 4),
    _arm("neoverse-n2", 64, 1024, 2),
    _arm("neoverse-v2", 64, 2048, 4),
    _arm("apple-m1", 128, 3072, 4),
    _arm("apple-m2", 128, 4096, 4),
    _arm("apple-m3", 128, 4096, 4),
    _arm("apple-m4", 128, 4096, 4),
)
ARCHITECTURES: Mapping[str, ProcessorFamily] = MappingProxyType({a.name: a for a in _ALL})
"""Known processor families by name."""

_KB = 1 << 10
_PARTS: Mapping[str, str] = MappingProxyType(
    {
        "0xd03": "cortex-a53",
        "0xd05": "cortex-a55",
        "0xd0b": "cortex-a76",
        "0xd0c": "neoverse-n1",
        "0xd40": "neoverse-v1",
        "0xd49": "neoverse-n2",
        "0xd4f": "neoverse-v2",
    }
)
"""Arm's numbers of its cores (MIDR_EL1, part number)."""
_GHZ: Mapping[str, float] = MappingProxyType(
    {
        "cortex-a53": 1.4, "cortex-a55": 1.8, "cortex-a76": 2.4, "neoverse-n1": 2.5,
        "neoverse-v1": 2.6,
        "neoverse-n2": 2.7, "neoverse-v2": 2.8, "apple-m1": 3.2, "apple-m2": 3.5,
        "apple-m3": 4.0, "apple-m4": 4.4,
    }
)  # fmt: skip
"""Clocks, as commonly sold, of cores whose operating systems do not report them."""


def architecture_of(cpu: CpuProfile) -> ProcessorFamily | None:
    """The family of a processor, from its vendor, levels and cache sizes; None if unknown."""
    model, levels = cpu.model.lower(), levels_of(cpu)
    wide = "avx512" in levels
    if apple := re.match(r"apple m(\d+)", model):
        return ARCHITECTURES[f"apple-m{min(max(int(apple[1]), 1), 4)}"]
    if arm := re.fullmatch(r"arm 0x41 (0x\w+)", model):
        return ARCHITECTURES.get(_PARTS.get(arm[1], ""))
    if "amd" in model:
        if wide:
            return ARCHITECTURES["zen5" if cpu.l1d >= 48 * _KB else "zen4"]
        if "avx2" in levels and cpu.l2 >= 512 * _KB:
            return ARCHITECTURES["zen3" if cpu.l3 >= 32 << 20 else "zen2"]
    if "intel" in model and wide:
        return ARCHITECTURES["sapphire-rapids" if cpu.l2 >= 2048 * _KB else "ice-lake"]
    return None


def pipes_of(cpu: CpuProfile, width: int) -> float:
    """Return how many multiply-adds of ``width`` lanes a core does per cycle; two if unknown.

    The result is a fraction if a core splits vectors of this width; several narrow vectors are not
    counted as one wide vector.
    """
    known = architecture_of(cpu)
    if known is None:
        return 2.0
    return min(known.flops / (2 * width), max(2.0, known.flops / (2 * known.lanes)))


def nominal_ghz(cpu: CpuProfile) -> float:
    """The clock that a core of a known family is sold with; 0 if unknown."""
    known = architecture_of(cpu)
    return _GHZ.get(known.name, 0.0) if known else 0.0
