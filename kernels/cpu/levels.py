"""Instruction-set levels: vector width, CPU features, compiler flags, and processor detection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tracea_graph.hardware.cpu import CpuProfile, profile_cpu

__all__ = [
    "BF16_ISAS", "COMMON_FLAGS", "ISAS", "LEVELS", "TILES", "VNNI_ISAS", "Isa", "features_of",
    "fingerprint", "host_levels", "isa_of", "levels_of", "vectors_of",
]  # fmt: skip

COMMON_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
)
"""Compiler flags of every kernel.

Fused multiply-adds are explicit and contraction is off, so that results do not depend on the tile
shape."""

_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl")
_AVX512_FEATURES = ("avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl")


@dataclass(frozen=True)
class Isa:
    """One instruction-set level: its name, float32 lanes per vector, CPU features and flags.

    ``features`` are spelled as in Linux's ``/proc/cpuinfo``.  A level with a ``base`` uses that
    level's vectors, and its kernels where it has no kernel itself.
    """

    name: str
    width: int
    features: tuple[str, ...]
    flags: tuple[str, ...]
    base: str = ""


ISAS = (
    Isa("scalar", 1, (), ()),
    Isa("avx2", 8, ("avx2", "fma"), _AVX2),
    Isa("avx512", 16, _AVX512_FEATURES, _AVX512),
)
"""Levels for every precision, lowest first, in the order of the library's table."""

VNNI_ISAS = (
    Isa(
        "avx512vnni",
        16,
        (*_AVX512_FEATURES, "avx512_vnni"),
        (*_AVX512, "-mavx512vnni"),
        "avx512",
    ),
)
"""Higher levels, for kernels that multiply 8-bit integers."""

BF16_ISAS = (
    Isa(
        "avx512bf16",
        16,
        (*_AVX512_FEATURES, "avx512_bf16", "avx512_vnni"),
        (*_AVX512, "-mavx512bf16", "-mavx512vnni"),
        "avx512vnni",
    ),
    Isa(
        "amxbf16",
        16,
        (*_AVX512_FEATURES, "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16"),
        (*_AVX512, "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16"),
        "avx512bf16",
    ),
)
"""Higher levels, for kernels that multiply bf16 or int16, lowest first."""

LEVELS = (*ISAS, *VNNI_ISAS, *BF16_ISAS)

TILES = "amxbf16"
"""The level with matrix tiles."""

_NOTED = (
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)
"""Features beyond those of the levels that variants may need."""


_LEVEL: Mapping[str, Isa] = MappingProxyType({isa.name: isa for isa in LEVELS})


def isa_of(name: str) -> Isa:
    """The level called ``name``.  Raises KeyError for an unknown one."""
    return _LEVEL[name]


def vectors_of(name: str) -> str:
    """The level whose vectors the level ``name`` uses.  Raises KeyError if unknown."""
    base = isa_of(name).base
    return vectors_of(base) if base else name


# ---- what a processor has ------------------------------------------------------------------


def levels_of(cpu: CpuProfile, precision: str = "fp32") -> tuple[str, ...]:
    """The levels of a processor, lowest first.

    Int8, int16 and bf16 precisions add higher ones.
    """
    found: tuple[str, ...] = ()
    for isa in ISAS:
        if not cpu.flags.issuperset(isa.features):
            break
        found += (isa.name,)
    higher = {"int8": VNNI_ISAS, "int16": BF16_ISAS, "bf16": BF16_ISAS, "bf16x2": BF16_ISAS}
    if found and found[-1] == ISAS[-1].name:
        for isa in higher.get(precision.removesuffix("-weights"), ()):
            if not cpu.flags.issuperset(isa.features):
                break
            found += (isa.name,)
    return found


def host_levels(precision: str = "fp32") -> tuple[str, ...]:
    """The levels of this machine's processor for a precision, lowest first."""
    return levels_of(profile_cpu(), precision)


def features_of(cpu: CpuProfile) -> tuple[str, ...]:
    """The processor's features beyond its levels that variants may need."""
    return tuple(flag for flag in _NOTED if flag in cpu.flags)


def fingerprint(cpu: CpuProfile) -> dict[str, Any]:
    """The processor's properties that results depend on, as JSON-ready values.

    The names are stored in caches.
    """
    return {
        "model": cpu.model, "isas": levels_of(cpu), "epilogue_inputs": features_of(cpu),
        "cores": cpu.cores, "threads": cpu.threads, "l1d": cpu.l1d, "l2": cpu.l2, "l3": cpu.l3,
    }  # fmt: skip
